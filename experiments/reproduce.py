"""Reproduces the paper's tables and figures, its numbers beside ours.

    python experiments/reproduce.py --all --stream pocket --out runs/reproduced
    python experiments/reproduce.py main drift --store meru-l=PATH --store meru-b=PATH \
        --store hycoclip-b=PATH --out runs/paper
    python experiments/reproduce.py --all --stream pocket --out runs/reproduced --plan
    python experiments/reproduce.py main --stream pocket --method-file mine.py --out runs/mine

NAME is a config in experiments/configs/paper, which says what it needs and costs. Runs what is
missing and goes on with what was stopped, at any moment; tables share runs. Then writes to --out
reproduction.html (the page), the same as reproduction.md, and reproduction.json (all numbers).
With --stream pocket the embedded streams stand in for the paper's data. --method-file adds your own
methods to all tables; the file is executed.
"""

import argparse
import json
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paper.claims import judge
from paper.compare import HOW, OTHER, as_json, beside, markdown, verdict_rows
from paper.page import html
from paper.plan import NAMES, Item, Job, about_of, known_streams, read_item, streams_of
from paper.runs import finished, run_jobs, unique
from paper.tables import TABLES, read_tables
from paper.views import Found, make_tables, relative_change
from rich.console import Console
from run_stream import add_method_file, add_no_cache, open_stream

from hmcl_jax._versions import versions
from hmcl_jax.continual import ConfigError, RunError, StreamResult
from hmcl_jax.continual.cache import keep_programs
from hmcl_jax.continual.plugins import load_methods
from hmcl_jax.continual.threads import decompose_in_one_thread
from hmcl_jax.data.store import Store
from hmcl_jax.data.validation import StoreError
from hmcl_jax.report.progress import ProgressView
from hmcl_jax.report.results import markdown_rows, write_files

EXPECTED = (ConfigError, StoreError, RunError, OSError)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--all", action="store_true", help="every NAME")
    parser.add_argument(
        "--store",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help=f"a store of one of {', '.join(known_streams())}; may be repeated",
    )
    parser.add_argument("--stream", choices=("pocket",), help="the embedded stream, for trials")
    parser.add_argument("--out", required=True, help="folder for runs and the page")
    parser.add_argument("--plan", action="store_true", help="print the runs and their cost only")
    parser.add_argument("--seeds", help="whole numbers, instead of the configs'")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--synsets", help="file with ImageNet's synsets, one per line, for hierarchy"
    )
    parser.add_argument(
        "--wordnet", help="folder of WordNet 3.0, if it is not where packages put it"
    )
    add_method_file(parser)
    add_no_cache(parser)
    found = parser.parse_args(arguments)
    if bool(found.names) == found.all:
        parser.error("name tables, or --all")
    if bool(found.store) == bool(found.stream):
        parser.error("either --store NAME=PATH, once or more, or --stream pocket")
    return found


def read_stores(given: Sequence[str]) -> dict[str, str]:
    """Paths by stream."""
    stores: dict[str, str] = {}
    for text in given:
        name, _, path = text.partition("=")
        if name not in known_streams() or not path or name in stores:
            raise ConfigError(
                f"--store is written NAME=PATH, once each, with NAME one of "
                f"{', '.join(known_streams())}; got {text!r}."
            )
        stores[name] = path
    return stores


def read_items(
    arguments: argparse.Namespace, extra: Sequence[str]
) -> tuple[list[Item], dict[str, Store], list[dict[str, Any]]]:
    """Tables that can be made, the stores they need, and sections for those that cannot."""
    paths = read_stores(arguments.store)
    pocket = arguments.stream == "pocket"
    seeds = read_seeds(arguments.seeds)
    items, stores, left_out = [], {}, []
    for name in NAMES if arguments.all else dict.fromkeys(arguments.names):
        there, missing = streams_of(name, paths, pocket)
        if missing:
            names = " ".join(f"--store {stream}=PATH" for stream in missing)
            left_out.append(_left_out(name, ", ".join(missing), f"it needs {names}."))
        for stream in there:
            item = read_item(name, stream, arguments.set, extra, seeds)
            if stream not in stores:
                try:
                    stores[stream] = open_stream(stream if pocket else paths[stream])
                except StoreError as error:
                    if not pocket:
                        raise
                    left_out.append(_left_out(name, stream, str(error)))
                    continue
            items.append(item)
    if not items:
        reasons = " ".join(section["missing"] for section in left_out)
        raise ConfigError(f"Nothing can be made: {reasons}")
    return items, stores, left_out


def checkpoints_kept(
    arguments: argparse.Namespace, stores: Mapping[str, Store], extra: Sequence[str]
) -> set[str]:
    """Runs of which all checkpoints stay: those of main, whose drift may be asked for later."""
    about = about_of("main")
    streams = [name for name in stores if name in (*about["streams"], about["pocket"])]
    seeds = read_seeds(arguments.seeds)
    return set(unique(read_item("main", name, arguments.set, extra, seeds) for name in streams))


def read_seeds(text: str | None) -> list[int] | None:
    """Whole numbers, separated by commas."""
    try:
        return None if text is None else [int(seed) for seed in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds must be whole numbers, got {text!r}.") from None


def _left_out(name: str, stream: str, why: str) -> dict[str, Any]:
    return {"name": name, "title": about_of(name)["title"], "stream": stream, "missing": why}


def plan_table(
    items: Sequence[Item], jobs: Mapping[str, Job], stores: Mapping[str, Store], out: Path
) -> str:
    """All runs: which tables need them, how far they are, what they may cost."""
    rows = [["Run", "for", "tasks done", "minutes left"]]
    total = 0.0
    for folder, job in jobs.items():
        users = [item.name for item in items if folder in {j.folder for j in item.needed}]
        count = len(stores[job.stream].orders[job.order])
        done = finished(job, out)
        left = job.seconds(stores[job.stream]) * (1 - done / count) / 60
        total += left
        rows.append([folder, ", ".join(dict.fromkeys(users)), f"{done}/{count}", f"{left:.1f}"])
    guess = "a guess from the pocket stream on 2 idle cores, without compiling"
    return f"{markdown_rows(rows)}\n\n{len(jobs)} runs, about {total:.0f} minutes left ({guess})."


def make_sections(
    items: Sequence[Item],
    stores: Mapping[str, Store],
    results: Mapping[str, StreamResult],
    failures: Mapping[str, str],
    arguments: argparse.Namespace,
) -> list[dict[str, Any]]:
    """One per table and stream, with cells and verdicts, or with what is missing."""
    paper, sections = read_tables(), []
    for item in items:
        title = {"name": item.name, "title": item.about["title"], "stream": item.stream}
        failed = [failures[job.folder] for job in item.needed if job.folder in failures]
        if failed:
            sections.append({**title, "missing": " ".join(failed)})
            continue
        rows = {
            order: {label: results[job.folder] for label, job in labels.items()}
            for order, labels in item.jobs.items()
            if item.needed
        }
        found = Found(
            item,
            stores[item.stream],
            rows,
            Path(arguments.out),
            arguments.synsets,
            arguments.wordnet,
        )
        try:
            tables = make_tables(found)
        except (ConfigError, RunError, ValueError) as error:
            sections.append({**title, "missing": str(error)})
            continue
        reference = item.about["streams"][-1]
        same = arguments.stream is None
        cells = [
            (table, beside(table, paper.get(table.label), reference, same)) for table in tables
        ]
        how = HOW if same else OTHER.format(reference=reference)
        verdicts = [verdict for table in tables for verdict in judge(table)]
        section = {**title, "tables": cells, "verdicts": verdicts, "how": how}
        if item.about["show"] == "stages":
            section["tasks"] = next(iter(found.rows.values())).tasks
            section["maps"] = {
                label: relative_change(result, found.place).T
                for label, result in found.rows.items()
            }
        sections.append(section)
    return sections


def main() -> None:
    arguments = parse()
    keep_programs(not arguments.no_cache)
    decompose_in_one_thread()
    start = time.perf_counter()
    try:
        extra = [name for path in arguments.method_file for name in load_methods(path)]
        items, stores, left_out = read_items(arguments, extra)
        out, jobs = Path(arguments.out), unique(items)
        print(plan_table(items, jobs, stores, out), flush=True)
        if arguments.plan:
            return
        with ProgressView(tuple(jobs), Console()) as view:
            whole = checkpoints_kept(arguments, stores, extra)
            results, failures = run_jobs(jobs, stores, out, view, whole)
        sections = make_sections(items, stores, results, failures, arguments)
        about = {
            "lead": lead(arguments, stores),
            "inconsistencies": tomllib.loads(
                (TABLES.parent / "inconsistencies.toml").read_text("utf8")
            )["found"],
            "versions": versions(),
            "stores": {name: store.fingerprint for name, store in stores.items()},
            "seconds": time.perf_counter() - start,
        }
        sections += left_out
        written = write_page(out, sections, about)
    except EXPECTED as error:
        sys.exit(f"reproduce: {error}")
    except KeyboardInterrupt:
        print("\nreproduce: stopped; the same command goes on.", file=sys.stderr)
        sys.exit(130)
    verdicts = [verdict for section in sections for verdict in section.get("verdicts", ())]
    for verdict in verdict_rows(verdicts)[1:]:
        print(f"{verdict[2].strip('*')}: {verdict[0]} ({verdict[1]})")
    for section in sections:
        if "missing" in section:
            print(f"not made: {section['name']} on {section['stream']}: {section['missing']}")
    print(f"{time.perf_counter() - start:.0f} s; wrote {', '.join(map(str, written))}")


def lead(arguments: argparse.Namespace, stores: Mapping[str, Store]) -> str:
    """What this page is of."""
    names = ", ".join(f"{name} ({store.name})" for name, store in stores.items())
    if arguments.stream:
        return f"The paper's protocols on embedded data: {names}. Percent unless said otherwise."
    return f"The paper's tables from stores of its backbones: {names}."


def write_page(
    out: Path, sections: Sequence[Mapping[str, Any]], about: Mapping[str, Any]
) -> list[Path]:
    """The page and all numbers."""
    data = json.dumps(as_json(sections, about), indent=1) + "\n"
    texts = {"md": markdown(sections, about), "json": data, "html": html(sections, about)}
    return write_files(out, {f"reproduction.{ending}": text for ending, text in texts.items()})


if __name__ == "__main__":
    main()
