"""Sections of the page, one per table and stream: from results, or with what is missing and why."""

import dataclasses
import sys
import traceback
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hmcl_jax.continual import ConfigError, RunError, StreamResult
from hmcl_jax.data.store import Store
from hmcl_jax.report.results import without_stopped
from paper.claims import judge
from paper.compare import HOW, OTHER, beside
from paper.plan import Item, about_of
from paper.runs import described
from paper.tables import Table, read_tables
from paper.views import Found, make_tables, relative_change

Results = Mapping[str, StreamResult]


@dataclasses.dataclass(frozen=True)
class Setting:
    """What all sections are made with.

    Attributes:
      stores: by stream.
      out: folder of the reproduction.
      users: methods of the user's.
      same: whether the data are the paper's.
      synsets: file with the synset of every class of ImageNet, one per line, if given.
      wordnet: folder of WordNet, if given.
    """

    stores: Mapping[str, Store]
    out: Path
    users: Collection[str] = ()
    same: bool = True
    synsets: str | None = None
    wordnet: str | None = None


def left_out(name: str, stream: str, why: str) -> dict[str, Any]:
    """A section that is not made."""
    return {"name": name, "title": about_of(name)["title"], "stream": stream, "missing": why}


def make_section(
    item: Item, results: Results, failures: Mapping[str, str], setting: Setting
) -> dict[str, Any]:
    """A table with cells and verdicts, or with what is missing.

    A method of the user's that failed, or of which a seed was stopped, is left out; a failure of
    any other method leaves out the table, because claims are about all of them. Seeds that were
    stopped are left out of all rows, so that means and pairs are over the same ones.

    Args:
      item: the table on one stream.
      results: by folder of the run.
      failures: likewise, of runs that have no result.
      setting: shared by all sections.
    """
    failed = {
        job.folder: failures[job.folder]
        for labels in item.jobs.values()
        for job in labels.values()
        if job.folder in failures and job.method not in setting.users
    }
    if failed:
        return left_out(item.name, item.stream, " ".join(failed.values()))
    item, notes = _without_failed(item, results, failures, setting.users)
    try:
        found, more = _found(item, results, setting)
        made = _made(found, setting.same)
    except Exception as error:  # a page with all other tables is worth more than none
        ours = _without(item, setting.users)
        if ours.jobs == item.jobs:
            return left_out(item.name, item.stream, _told(error))
        notes.append(f"Without {', '.join(setting.users)}: {_told(error)}")
        try:
            found, more = _found(ours, results, setting)
            made = _made(found, setting.same)
        except Exception as second:
            return left_out(item.name, item.stream, _told(second))
    title = {"name": item.name, "title": item.about["title"], "stream": item.stream}
    return {**title, **made, "notes": [*notes, *more]}


def _told(error: Exception) -> str:
    """What an error says; one that no check has foreseen also goes to stderr, whole."""
    if isinstance(error, ConfigError | RunError):
        return str(error)
    traceback.print_exception(error, file=sys.stderr)
    return described(error)


def _without(item: Item, users: Collection[str]) -> Item:
    """An item without the user's methods."""
    jobs = {
        order: {label: job for label, job in labels.items() if job.method not in users}
        for order, labels in item.jobs.items()
    }
    return dataclasses.replace(item, jobs=jobs)


def _without_failed(
    item: Item, results: Results, failures: Mapping[str, str], users: Collection[str]
) -> tuple[Item, list[str]]:
    """An item without those of the user's methods that have no whole result, and why."""
    jobs: dict[str, dict[str, Any]] = {}
    notes: dict[str, None] = {}  # in order, each once
    for order, labels in item.jobs.items():
        jobs[order] = {}
        for label, job in labels.items():
            result = results.get(job.folder)
            why = failures.get(job.folder)
            if job.method in users and result is not None and result.stopped:
                why = "; ".join(map(str, result.stopped))
            if why is None:
                jobs[order][label] = job
            else:
                notes[f"Without {label}: {why}"] = None
    return dataclasses.replace(item, jobs=jobs), list(notes)


def _found(item: Item, results: Results, setting: Setting) -> tuple[Found, list[str]]:
    """What a table is made of, over the seeds that all its runs have; and a note on the others."""
    rows = {
        order: {label: results[job.folder] for label, job in labels.items()}
        for order, labels in item.jobs.items()
        if item.needed
    }
    stopped = {
        label: result.stopped
        for labels in rows.values()
        for label, result in labels.items()
        if result.stopped
    }
    every = tuple({found.seed_index: found for each in stopped.values() for found in each}.values())
    if every:
        count = next(iter(next(iter(rows.values())).values())).seeds
        if len(every) == len(count):
            raise ConfigError(
                f"Every seed was stopped in some run: {_stops(stopped)}; lower the learning rates."
            )
        rows = {
            order: {
                label: without_stopped(dataclasses.replace(result, stopped=every))
                for label, result in labels.items()
            }
            for order, labels in rows.items()
        }
    notes = [f"All rows are over the seeds that no run lost. {_stops(stopped)}."] if every else []
    store = setting.stores[item.stream]
    return Found(item, store, rows, setting.out, setting.synsets, setting.wordnet), notes


def _stops(stopped: Mapping[str, Sequence[Any]]) -> str:
    return "; ".join(f"{label}: {found}" for label, each in stopped.items() for found in each)


def _made(found: Found, same: bool) -> dict[str, Any]:
    """Tables, verdicts and maps."""
    paper, about = read_tables(), found.item.about
    tables: list[Table] = make_tables(found)
    reference = about["streams"][-1]
    made: dict[str, Any] = {
        "tables": [(t, beside(t, paper.get(t.label), reference, same)) for t in tables],
        "verdicts": [verdict for table in tables for verdict in judge(table)],
        "how": HOW if same else OTHER.format(reference=reference),
    }
    if about["show"] == "stages":
        made["tasks"] = next(iter(found.rows.values())).tasks
        made["maps"] = {
            label: relative_change(result, found.place).T for label, result in found.rows.items()
        }
    return made
