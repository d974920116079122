"""Runs what is missing, and resumes what was interrupted."""

import dataclasses
import shutil
import traceback
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from hmcl_jax.continual import Event, RunError, SavedRun, StreamResult, read_runs, run_stream
from hmcl_jax.continual.plugins import is_users
from hmcl_jax.continual.run_directory import STEPS, finished_tasks
from hmcl_jax.data.store import Store
from paper.plan import Job

RUNS = "runs"
LONGEST = 400  # letters of an error that are shown


def finished(job: Job, out: Path) -> int:
    """How many tasks of a job are done."""
    return finished_tasks(out / RUNS / job.folder / job.method)


def run_jobs(
    jobs: Mapping[str, Job],
    stores: Mapping[str, Store],
    out: Path,
    listener: Callable[[Event], None] | None = None,
    whole: Collection[str] = (),
) -> tuple[dict[str, StreamResult], dict[str, str]]:
    """Results of all jobs, by folder, and the errors of those that failed.

    A method of the package fails alone only if it diverges; one of the user's with any error of its
    code. Jobs that are done are read back; others begin, or resume. Of a job that is done only the
    last checkpoint stays, unless its folder is among `whole`: all of them together take ten times
    as much room.
    """
    results, failures = {}, {}
    for folder, job in jobs.items():

        def tell(event: Event, title: str = folder) -> None:
            if listener is not None:
                listener(dataclasses.replace(event, method=title))

        try:
            found = run_stream(
                stores[job.stream],
                [job.method],
                job.seeds,
                job.train,
                order=job.order,
                settings={job.method: job.settings},
                out=out / RUNS / folder,
                resume=True,
                listener=tell,
            )
            results[folder] = found[job.method]
            if folder not in whole:
                keep_last(out / RUNS / folder / job.method)
        except FloatingPointError as error:
            failures[folder] = str(error)
        except RunError:
            raise
        except (Exception, SystemExit) as error:
            if not is_users(job.method):
                raise
            failures[folder] = f"{job.method} failed: {one_line(error)}"
    return results, failures


def one_line(error: BaseException) -> str:
    """An error in a line: its class, its message, and where in the user's code it was raised."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
    ours = Path(__file__).parents[2]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename).absolute()
        if path.is_file() and "site-packages" not in path.parts and ours not in path.parents:
            return f"{text} ({path.name}, line {frame.lineno})"
    return text


def keep_last(run: Path) -> None:
    """Removes all checkpoints of a finished run but the last."""
    last = finished_tasks(run)
    for step in (run / STEPS).iterdir():
        if step.name.isdigit() and int(step.name) < last:
            shutil.rmtree(step)


def saved(jobs: Mapping[str, Job], store: Store, out: Path) -> dict[str, SavedRun]:
    """The checkpoints of some jobs, by the name that a table gives them."""
    return {
        label: read_runs(out / RUNS / job.folder, store, [job.method])[job.method]
        for label, job in jobs.items()
    }
