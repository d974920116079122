"""Draws each method's trade-off between learning and forgetting as its strength varies.

    python experiments/frontier.py --config experiments/configs/baselines.toml --out runs/frontier

For every method one sweep over its strength and all seeds at once; other settings are the config's.
Writes to --out, after every curve: frontier.json (everything), frontier.md (the points, and which
of them no other method without replay beats in both respects), frontier.png and frontier.svg. A
sweep that was stopped goes on with --resume: curves that are there already are kept.
"""

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path

import numpy as np
from run_stream import add_no_cache, open_stream, split

from hmcl_jax.continual import ConfigError, RunError, make_method, run_sweep
from hmcl_jax.continual.cache import keep_programs
from hmcl_jax.continual.config import parse_override
from hmcl_jax.continual.experiment import Experiment, read_experiment, read_order
from hmcl_jax.continual.threads import decompose_in_one_thread
from hmcl_jax.data.validation import StoreError
from hmcl_jax.report.figures import Curve, draw_frontier
from hmcl_jax.report.results import write_files

RHO = (0.4, 0.6, 0.7, 0.8, 0.9)
BETA = (0.0, 0.02, 0.05, 0.1, 0.3)
# Method, setting, values; no setting for those that have nothing to vary.
SWEEPS = (
    ("vanilla", None, ()),
    ("hmcl_mr", "variance", RHO),
    ("hmcl_mr", "beta", BETA),
    ("hmcl_ca", "variance", RHO),
    ("hmcl_ca", "beta", BETA),
    ("hmcl_rotation", "variance", RHO),
    ("hmcl_rotation", "beta", BETA),
    ("ewc", "coefficient", (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)),
    ("dns", "lambda_min", (1e-4, 1e-3, 1e-2, 1e-1, 1.0)),
    ("nullspace", "variance", (0.8, 0.9, 0.95, 0.98, 0.995)),
    ("gem", "margin", (0.0, 0.1, 0.25, 0.5, 2.0)),
    ("agem", None, ()),
    ("cflat", None, ()),  # four gradients per step: one point is slow enough
    ("derpp", "alpha", (0.5, 5.0, 50.0, 500.0, 5000.0)),
    ("joint", None, ()),
)
REPLAY = ("gem", "agem", "cflat", "derpp", "joint")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", help="a TOML file: stream, seeds, settings of the methods")
    parser.add_argument("--stream", help="pocket, or the path of a store")
    parser.add_argument("--seeds", help="whole numbers, separated by commas")
    parser.add_argument("--methods", help="names, separated by commas; by default all")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="as for run_stream.py"
    )
    parser.add_argument("--out", required=True)
    parser.add_argument("--resume", action="store_true", help="keep the curves that are there")
    add_no_cache(parser)
    arguments = parser.parse_args()
    keep_programs(not arguments.no_cache)
    decompose_in_one_thread()
    try:
        sweep_all(arguments)
    except (ConfigError, StoreError, RunError, ImportError, OSError) as error:
        sys.exit(f"frontier: {error}")
    except KeyboardInterrupt:
        print("\nfrontier: stopped; go on with --resume.", file=sys.stderr)
        sys.exit(130)


def chosen_sweeps(names: list[str] | None) -> list[tuple]:
    known = list(dict.fromkeys(sweep[0] for sweep in SWEEPS))
    for name in names or ():
        if name not in known:
            raise ConfigError(f"--methods must be among {', '.join(known)}, got {name!r}.")
    return [sweep for sweep in SWEEPS if names is None or sweep[0] in names]


def sweep_all(arguments: argparse.Namespace) -> None:
    """Runs what is missing, and writes after every curve."""
    sweeps = chosen_sweeps(split("--methods", arguments.methods))
    seeds = [parse_override(f"x={s}")["x"] for s in split("--seeds", arguments.seeds) or ()]
    names = list(dict.fromkeys(sweep[0] for sweep in sweeps))
    experiment = read_experiment(
        arguments.config,
        arguments.set,
        methods=names,
        stream=arguments.stream,
        seeds=seeds or None,
    )
    for name, setting, values in sweeps:
        given = dict(experiment.settings.get(name, {}))
        for value in values:
            make_method(name, {**given, setting: value})
    store = open_stream(experiment.stream)
    order = read_order(experiment.order, list(store.orders))
    about = identity(experiment, store)
    out = Path(arguments.out)
    found = known_curves(out / "frontier.json", about, arguments.resume)
    for name, setting, values in sweeps:
        label = f"{name}: {setting}" if setting else name
        points = [{setting: value} for value in values] or [{}]
        given = experiment.settings.get(name, {})
        asked = [make_method(name, {**given, **point}).described() for point in points]
        if label in found and found[label]["settings"] == asked:
            continue
        start = time.perf_counter()

        def tell(event, label=label) -> None:
            if event.kind == "scores":
                print(f"{label}: task {event.number}/{event.count}", file=sys.stderr, flush=True)

        results = run_sweep(
            store,
            name,
            points,
            experiment.seeds,
            experiment.train,
            settings=given,
            order=order,
            listener=tell,
        )
        learned = np.stack([np.diagonal(r.scores, axis1=1, axis2=2) for r in results])
        final = np.stack([r.scores[:, -1] for r in results])
        found[label] = {
            "method": name,
            "settings": [dict(r.settings) for r in results],
            "values": list(values),
            "immediate": (100 * learned.mean(axis=2)).tolist(),
            "forgetting": (100 * (learned - final).mean(axis=2)).tolist(),
            "seconds": time.perf_counter() - start,
            "programs": results[0].programs,
        }
        write(out, about, found)
        print(f"{label}: {len(points)} points, {found[label]['seconds']:.0f} s", flush=True)
    write(out, about, found)
    print(table(found))
    print(f"wrote {out}/frontier.json, .md, .png and .svg")


def identity(experiment: Experiment, store) -> dict:
    """What curves must have in common to be put in one picture."""
    return {
        "store": {"name": store.name, "fingerprint": store.fingerprint},
        "seeds": list(experiment.seeds),
        "order": experiment.order,
        "train": dataclasses.asdict(experiment.train),
    }


def known_curves(path: Path, about: dict, resume: bool) -> dict:
    """Curves of an earlier start of the same sweep."""
    if not path.exists():
        return {}
    if not resume:
        raise RunError(f"{path} exists already; choose another --out, or go on with --resume.")
    try:
        held = json.loads(path.read_text("utf8"))
        known, curves = held["about"], held["curves"]
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is not of a sweep; choose another --out.") from error
    if known != json.loads(json.dumps(about)):
        raise RunError(f"{path} is of another experiment; choose another --out.")
    return curves


def write(out: Path, about: dict, found: dict) -> None:
    """All files, each whole or not at all; the pictures from the numbers."""
    text = json.dumps({"about": about, "curves": found}, indent=1).replace("NaN", "null")
    write_files(out, {"frontier.json": text + "\n", "frontier.md": table(found) + "\n"})
    curves = []
    for label, curve in found.items():
        forgetting, immediate = arrays(curve)
        kept = np.isfinite(forgetting).all(axis=1)  # points that did not diverge
        values = [v for v, keep in zip(curve["values"], kept, strict=False) if keep]
        curves.append(
            Curve(
                label,
                curve["method"],
                values,
                forgetting[kept],
                immediate[kept],
                curve["method"] in REPLAY,
            )
        )
    for ending in ("png", "svg"):
        draw_frontier(curves, out / f"frontier.{ending}")


def arrays(curve: dict) -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.array(curve[name], float) for name in ("forgetting", "immediate"))


def table(found: dict) -> str:
    """All points, and whether another method without replay does better in both respects."""
    rows = []
    for label, curve in found.items():
        forgetting, immediate = (x.mean(axis=1) for x in arrays(curve))
        shown = [f"{value:g}" for value in curve["values"]] or ["-"]
        rows += [
            (label, curve["method"], *row) for row in zip(shown, forgetting, immediate, strict=True)
        ]
    lines = [
        "| Curve | Value | Immediate | Forgetting | Final | Beaten in both by |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for label, method, value, forgetting, immediate in rows:
        better = [
            f"{other} {at}"
            for other, name, at, f, i in rows
            if name != method and name not in REPLAY and f < forgetting and i > immediate
        ]
        by = ("-" if not better else better[0]) if method not in REPLAY else "(replay)"
        cells = (f"{immediate:.2f}", f"{forgetting:.2f}", f"{immediate - forgetting:.2f}")
        lines.append(f"| {label} | {value} | {' | '.join(cells)} | {by} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
