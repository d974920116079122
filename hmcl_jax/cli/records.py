"""What `hmcl select` and `hmcl sweep` share: their options, their sweeps, and the file of these.

A record is the outcome of one sweep as plain data: the immediate score and the forgetting of every
point and seed. Records stand by label in one JSON file, beside what they have in common, so that an
interrupted command continues with --resume.
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

from hmcl_jax._files import json_text
from hmcl_jax.cli import options as shared
from hmcl_jax.continual import Event, RunError, make_method, run_sweep
from hmcl_jax.continual.experiment import Experiment, read_experiment, read_order
from hmcl_jax.data.store import Store

Record = dict[str, Any]
Settings = Mapping[str, Any]


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


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of all commands that keep records."""
    shared.add_experiment(parser)
    parser.add_argument("--out", required=True)
    parser.add_argument("--resume", action="store_true", help="keep the records in --out")
    shared.add_methods(parser)
    shared.add_cache(parser)


def open_bench(
    options: argparse.Namespace,
    methods: Sequence[str],
    seeds: Sequence[int] | None,
    rows: Mapping[str, Settings] | None = None,
) -> Bench:
    """Reads the config and opens the stream.

    Args:
      options: see :func:`add_options`.
      methods: names, each a method or a row of the config.
      seeds: instead of the config's.
      rows: further rows, with the ``"method"`` of each and its settings; --set lies on top.
    """
    given = [
        f"methods.{row}.{key}={json.dumps(value)}"
        for row, table in (rows or {}).items()
        for key, value in table.items()
    ]
    experiment = read_experiment(
        shared.find_config(options.config),
        [*given, *options.set],
        methods=methods,
        variant=options.variant,
        stream=options.stream,
        seeds=seeds,
    )
    store = shared.open_stream(experiment.stream)
    about = {
        "store": {"name": store.name, "fingerprint": store.fingerprint},
        "seeds": list(experiment.seeds),
        "order": experiment.order,
        "train": dataclasses.asdict(experiment.train),
    }
    return Bench(experiment, store, read_order(experiment.order, list(store.orders)), about)


def known_records(path: Path, about: Mapping[str, Any], resume: bool) -> dict[str, Record]:
    """Records that an earlier start of the same command has written."""
    if not path.exists():
        return {}
    if not resume:
        raise RunError(f"{path} exists already; choose another --out, or continue with --resume.")
    try:
        held = json.loads(path.read_text("utf8"))
        known, records = held["about"], dict(held["records"])
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is not of a sweep; choose another --out.") from error
    if known != json.loads(json.dumps(about)):
        raise RunError(f"{path} is of another experiment; choose another --out.")
    return records


class Job(NamedTuple):
    """One sweep to run.

    Attributes:
      label: of its record.
      name: of a method, or a name of one's own if `given` says the ``"method"``.
      given: settings of all points.
      points: settings by name.
      about: what its record says besides.
    """

    label: str
    name: str
    given: Settings
    points: Sequence[Settings]
    about: Mapping[str, Any]


def run_jobs(
    bench: Bench,
    jobs: Sequence[Job],
    path: Path,
    resume: bool,
    write: Callable[[dict[str, Record]], str],
) -> dict[str, Record]:
    """Runs the jobs that have no record of the same settings yet.

    Args:
      bench: what they are run on.
      jobs: all of them; bad settings are refused before any is run.
      path: of the file of records.
      resume: whether records that are there are kept.
      write: writes the file and whatever shows the records; called after each sweep and at the end.

    Returns:
      All records by label.
    """
    settings = {job.label: full_settings(job.name, job.given, job.points) for job in jobs}
    found = known_records(path, bench.about, resume)
    for job in jobs:
        if found.get(job.label, {}).get("settings") != settings[job.label]:
            record = measure(bench, job.label, job.name, job.given, job.points)
            found[job.label] = {**record, **job.about}
            write(found)
    print(write(found))
    return found


def as_text(about: Mapping[str, Any], records: Mapping[str, Record], **more: Any) -> str:
    """The file's text; numbers that are not finite are null."""
    return json_text({"about": about, "records": records, **more})


def full_settings(name: str, given: Settings, points: Sequence[Settings]) -> list[dict[str, Any]]:
    """All settings of every point, as a record keeps them; bad ones are refused."""
    return [
        json.loads(json.dumps(make_method(name, {**given, **point}).described()))
        for point in points
    ]


def measure(
    bench: Bench, label: str, name: str, given: Settings, points: Sequence[Settings]
) -> Record:
    """One sweep. Points that differ in sweepable settings alone run side by side.

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

    def show(event: Event) -> None:
        if event.kind == "scores":
            print(f"{label}: task {event.number}/{event.count}", file=sys.stderr, flush=True)

    results = run_sweep(
        bench.store,
        name,
        [{**given, **point} for point in points],
        bench.experiment.seeds,
        bench.experiment.train,
        order=bench.order,
        listener=show,
    )
    learned = np.stack([np.diagonal(r.scores, axis1=1, axis2=2) for r in results])
    final = np.stack([r.scores[:, -1] for r in results])
    record = {
        "method": given.get("method", name),
        "settings": full_settings(name, given, points),
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
