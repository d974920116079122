"""What `hmcl select` and `hmcl sweep` share: jobs to run, and the file of their records.

A job is one method at some settings, its points. Its record is plain data: the immediate score and
the forgetting of every point and seed. All records of a command are in one JSON file, by label,
beside what they have in common, so that an interrupted command continues with --resume.
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
from hmcl_jax.report.results import write_files

Record = dict[str, Any]
Records = dict[str, Record]
Settings = Mapping[str, Any]


class Job(NamedTuple):
    """One method at some settings."""

    label: str  # of its record
    name: str  # of the method, or of a row whose settings name the "method"
    points: Sequence[Settings]
    about: Mapping[str, Any]  # further entries of its record


def add_options(parser: argparse.ArgumentParser) -> None:
    shared.add_experiment(parser)
    parser.add_argument("--out", required=True)
    parser.add_argument("--resume", action="store_true", help="keep the records in --out")
    shared.add_methods(parser)
    shared.add_cache(parser)


class Study:
    """A stream, the settings of all jobs on it, and the file of their records, NAME.json."""

    def __init__(
        self,
        options: argparse.Namespace,
        name: str,
        methods: Sequence[str],
        seeds: Sequence[int] | None,
    ) -> None:
        opened = shared.open_experiment(options, methods, seeds)
        self.experiment, self.store, self.order = opened
        self.out, self.name, self.resume = Path(options.out), name, options.resume
        # What all records in one file have in common.
        self.about: dict[str, Any] = {
            "store": {"name": self.store.name, "fingerprint": self.store.fingerprint},
            "seeds": list(self.experiment.seeds),
            "order": self.experiment.order,
            "train": dataclasses.asdict(self.experiment.train),
        }

    def run(self, jobs: Sequence[Job], write: Callable[[Records], str]) -> None:
        """Runs the jobs that have no record of the same settings yet, and prints the outcome.

        After each job and at the end, `write` gets all records. It calls :meth:`save`, writes what
        else shows the records, and returns a text to print.
        """
        settings = {job.label: full_settings(job) for job in jobs}  # refuses bad ones, first of all
        records = self.known()
        for job in jobs:
            if records.get(job.label, {}).get("settings") != settings[job.label]:
                records[job.label] = {**measure(self, job), **job.about}
                write(records)
        print(write(records))
        print(f"wrote {self.out}")

    def known(self) -> Records:
        """Records that an earlier start of the same command has written."""
        path = self.out / f"{self.name}.json"
        if not path.exists():
            return {}
        if not self.resume:
            raise RunError(f"{path} exists already; choose another --out, or add --resume.")
        try:
            found = json.loads(path.read_text("utf8"))
            about, records = found["about"], dict(found["records"])
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} is not of a sweep; choose another --out.") from error
        if about != json.loads(json.dumps(self.about)):  # JSON has no tuples
            raise RunError(f"{path} is of another experiment; choose another --out.")
        return records

    def save(self, records: Mapping[str, Record], text: str, **more: Any) -> None:
        """Writes the records, with further entries, and a Markdown text of the same name."""
        content = json_text({"about": self.about, "records": records, **more})
        write_files(self.out, {f"{self.name}.json": content, f"{self.name}.md": f"{text}\n"})


def full_settings(job: Job) -> list[dict[str, Any]]:
    """All settings of every point, with the defaults, as JSON reads them back."""
    return [json.loads(json.dumps(make_method(job.name, p).described())) for p in job.points]


def measure(study: Study, job: Job) -> Record:
    """Runs one job. Points that differ in sweepable settings alone run side by side."""
    start = time.perf_counter()

    def show(event: Event) -> None:
        if event.kind == "scores":
            print(f"{job.label}: task {event.number}/{event.count}", file=sys.stderr, flush=True)

    results = run_sweep(
        study.store,
        job.name,
        job.points,
        study.experiment.seeds,
        study.experiment.train,
        order=study.order,
        listener=show,
    )
    learned = np.stack([np.diagonal(r.scores, axis1=1, axis2=2) for r in results])
    final = np.stack([r.scores[:, -1] for r in results])
    seconds = time.perf_counter() - start
    print(f"{job.label}: {len(job.points)} points, {seconds:.0f} s", flush=True)
    return {
        "method": job.points[0].get("method", job.name),
        "settings": full_settings(job),
        "immediate": (100 * learned.mean(axis=2)).tolist(),
        "forgetting": (100 * (learned - final).mean(axis=2)).tolist(),
        "seconds": seconds,
        "programs": results[0].programs,
    }


def scores(record: Record) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Immediate score, forgetting and final score, ``(points, seeds)``; NaN where it diverged."""
    # JSON has null for NaN, which numpy turns back.
    immediate, forgetting = (np.array(record[key], float) for key in ("immediate", "forgetting"))
    return immediate, forgetting, immediate - forgetting
