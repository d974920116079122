"""What frontier.py, replay_budget.py and select_all.py share: options, sweeps, and their file.

A record is what one sweep gives, as plain data: the immediate score and the forgetting of every
point and seed. Records stand by label in one JSON file, beside what they have in common, so that a
command that was stopped goes on with --resume.
"""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from run_stream import add_no_cache, open_stream, split

from hmcl_jax._files import json_text
from hmcl_jax.continual import ConfigError, RunError, make_method, run_sweep
from hmcl_jax.continual.cache import keep_programs
from hmcl_jax.continual.config import parse_override
from hmcl_jax.continual.experiment import Experiment, read_experiment, read_order
from hmcl_jax.continual.threads import decompose_in_one_thread
from hmcl_jax.data.errors import StoreError
from hmcl_jax.data.store import Store

Record = dict[str, Any]


class Bench(NamedTuple):
    """What all sweeps of a command are run on.

    Attributes:
      experiment: as the command line and the config say.
      store: the stream.
      order: of its tasks.
      about: what records must have in common to stand in one file.
    """

    experiment: Experiment
    store: Store
    order: str | list[str]
    about: dict[str, Any]


def make_parser(about: str) -> argparse.ArgumentParser:
    """The options of all commands."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--config", help="a TOML file: stream, seeds, settings of the methods")
    parser.add_argument("--stream", help="pocket, or the path of a store")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="as for run_stream.py"
    )
    parser.add_argument("--out", required=True)
    parser.add_argument("--resume", action="store_true", help="keep what is there already")
    add_no_cache(parser)
    return parser


def run_command(
    name: str, work: Callable[[argparse.Namespace], None], arguments: argparse.Namespace
) -> None:
    """Does the work, and says in a line why it ended early."""
    keep_programs(not arguments.no_cache)
    decompose_in_one_thread()
    try:
        work(arguments)
    except (ConfigError, StoreError, RunError, FloatingPointError, ImportError, OSError) as error:
        sys.exit(f"{name}: {error}")
    except KeyboardInterrupt:
        print(f"\n{name}: stopped; go on with --resume.", file=sys.stderr)
        sys.exit(130)


def split_numbers(option: str, text: str | None) -> list[Any] | None:
    """Numbers separated by commas; which ones are allowed is checked elsewhere."""
    names = split(option, text)
    return None if names is None else [parse_override(f"x={name}")["x"] for name in names]


def open_bench(
    arguments: argparse.Namespace,
    methods: Sequence[str],
    seeds: Sequence[int] | None,
    given: Sequence[str] = (),
) -> Bench:
    """Reads the config and opens the stream.

    Args:
      arguments: see :func:`make_parser`.
      methods: names, each a method or a row of the config.
      seeds: instead of the config's.
      given: settings like those of --set, which lie on top of these.
    """
    experiment = read_experiment(
        arguments.config,
        [*given, *arguments.set],
        methods=methods,
        stream=arguments.stream,
        seeds=seeds,
    )
    store = open_stream(experiment.stream)
    about = {
        "store": {"name": store.name, "fingerprint": store.fingerprint},
        "seeds": list(experiment.seeds),
        "order": experiment.order,
        "train": dataclasses.asdict(experiment.train),
    }
    return Bench(experiment, store, read_order(experiment.order, list(store.orders)), about)


def known_records(path: Path, about: Mapping[str, Any], resume: bool) -> dict[str, Record]:
    """Records of an earlier start of the same command."""
    if not path.exists():
        return {}
    if not resume:
        raise RunError(f"{path} exists already; choose another --out, or go on with --resume.")
    try:
        held = json.loads(path.read_text("utf8"))
        known, records = held["about"], dict(held["records"])
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is not of a sweep; choose another --out.") from error
    if known != json.loads(json.dumps(about)):
        raise RunError(f"{path} is of another experiment; choose another --out.")
    return records


def as_text(about: Mapping[str, Any], records: Mapping[str, Record], **more: Any) -> str:
    """The file's text; numbers that are not finite are null."""
    return json_text({"about": about, "records": records, **more})


def described(
    name: str, given: Mapping[str, Any], points: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """All settings of every point, as a record keeps them; bad ones are refused."""
    return [
        json.loads(json.dumps(make_method(name, {**given, **point}).described()))
        for point in points
    ]


def measure(
    bench: Bench,
    label: str,
    name: str,
    given: Mapping[str, Any],
    points: Sequence[Mapping[str, Any]],
) -> Record:
    """One sweep. Points that differ in knobs alone run side by side.

    Args:
      bench: what it is run on.
      label: for the messages.
      name: of a method, or a name of one's own if `given` says the ``"method"``.
      given: settings of all points.
      points: settings by name.

    Returns:
      ``method`` (the one that was run), ``settings`` of every point, ``immediate`` and
      ``forgetting`` in percent, ``(points, seeds)``, ``seconds`` and ``programs``.
    """
    start = time.perf_counter()

    def tell(event: Any) -> None:
        if event.kind == "scores":
            print(f"{label}: task {event.number}/{event.count}", file=sys.stderr, flush=True)

    results = run_sweep(
        bench.store,
        name,
        points,
        bench.experiment.seeds,
        bench.experiment.train,
        settings=given,
        order=bench.order,
        listener=tell,
    )
    learned = np.stack([np.diagonal(r.scores, axis1=1, axis2=2) for r in results])
    final = np.stack([r.scores[:, -1] for r in results])
    record = {
        "method": given.get("method", name),
        "settings": described(name, given, points),
        "immediate": (100 * learned.mean(axis=2)).tolist(),
        "forgetting": (100 * (learned - final).mean(axis=2)).tolist(),
        "seconds": time.perf_counter() - start,
        "programs": results[0].programs,
    }
    print(f"{label}: {len(points)} points, {record['seconds']:.0f} s", flush=True)
    return record


def forgetting_and_immediate(record: Record) -> tuple[np.ndarray, np.ndarray]:
    """Both of a record as arrays, NaN where training diverged."""
    return np.array(record["forgetting"], float), np.array(record["immediate"], float)


def overall(record: Record) -> np.ndarray:
    """Mean final score in percent, ``(points, seeds)``."""
    forgetting, immediate = forgetting_and_immediate(record)
    return immediate - forgetting
