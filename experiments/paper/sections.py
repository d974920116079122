"""Sections of the page, one per table and stream: from results, or with what is missing and why."""

import dataclasses
import sys
import traceback
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hmcl_jax.continual import ConfigError, RunError, StreamResult
from hmcl_jax.report.results import without_stopped
from paper.claims import judge
from paper.compare import HOW, OTHER, side_by_side
from paper.jobs import one_line
from paper.measured import Inputs, Setting, make_tables, relative_change
from paper.page import Section
from paper.plan import Item, Job, about_of
from paper.published import read_tables

Results = Mapping[str, StreamResult]


def left_out(name: str, stream: str, why: str) -> Section:
    """A section that is not made."""
    return Section(name, about_of(name)["title"], stream, why)


def make_section(
    item: Item, results: Results, failures: Mapping[str, str], setting: Setting
) -> Section:
    """A table with cells and verdicts, or with what is missing.

    A method of the user's that failed, or of which a seed was stopped, is left out; a failure of
    any other method leaves out the table, because claims are about all of them. Seeds that were
    stopped are left out of all rows, so that means and pairs are over the same ones. `results` and
    `failures`, of runs that have no result, are by folder of the run.
    """
    jobs = [job for labels in item.jobs.values() for job in labels.values()]
    failed = {
        job.folder: failures[job.folder]
        for job in jobs
        if job.folder in failures and job.method not in setting.users
    }
    if failed:
        return left_out(item.name, item.stream, " ".join(failed.values()))
    notes: dict[str, None] = {}  # in order, each once
    lost = set()
    for order, labels in item.jobs.items():
        for label, job in labels.items():
            if why := _failure(job, results, failures, setting.users):
                notes[f"Without {label}: {why}"] = None
                lost.add((order, label))
    item = _keep(item, lambda order, label, job: (order, label) not in lost)
    try:
        return _made(item, results, setting, list(notes))
    except Exception as error:  # a page with all other tables is worth more than none
        ours = _keep(item, lambda order, label, job: job.method not in setting.users)
        if ours.jobs == item.jobs:
            return left_out(item.name, item.stream, _in_words(error))
        notes[f"Without {', '.join(setting.users)}: {_in_words(error)}"] = None
        try:
            return _made(ours, results, setting, list(notes))
        except Exception as second:
            return left_out(item.name, item.stream, _in_words(second))


def _failure(
    job: Job, results: Results, failures: Mapping[str, str], users: Collection[str]
) -> str | None:
    """Why a run has no whole result; seeds that stopped count for methods of the user's alone."""
    result = results.get(job.folder)
    if job.method in users and result is not None and result.stopped:
        return "; ".join(map(str, result.stopped))
    return failures.get(job.folder)


def _keep(item: Item, keep: Any) -> Item:
    """An item with some of its jobs."""
    jobs = {
        order: {label: job for label, job in labels.items() if keep(order, label, job)}
        for order, labels in item.jobs.items()
    }
    return dataclasses.replace(item, jobs=jobs)


def _in_words(error: Exception) -> str:
    """The message of an error; one that no check has foreseen also goes to stderr, whole."""
    if isinstance(error, ConfigError | RunError):
        return str(error)
    traceback.print_exception(error, file=sys.stderr)
    return one_line(error)


def _made(item: Item, results: Results, setting: Setting, notes: Sequence[str]) -> Section:
    """Tables, verdicts and maps, over the seeds that all runs have."""
    rows = {
        order: {label: results[job.folder] for label, job in labels.items()}
        for order, labels in item.jobs.items()
        if item.needed
    }
    runs = {label: result for labels in rows.values() for label, result in labels.items()}
    texts = [f"{label}: {seed}" for label, result in runs.items() for seed in result.stopped]
    stopped = {seed.seed_index: seed for result in runs.values() for seed in result.stopped}
    if stopped and len(stopped) == len(next(iter(runs.values())).seeds):
        known = "; ".join(texts)
        raise ConfigError(f"Every seed was stopped in some run: {known}; lower the learning rates.")
    if stopped:
        notes = [*notes, f"All rows are over the seeds that no run lost. {'; '.join(texts)}."]
        every = tuple(stopped.values())
        rows = {
            order: {
                label: without_stopped(dataclasses.replace(result, stopped=every))
                for label, result in labels.items()
            }
            for order, labels in rows.items()
        }
    inputs, about = Inputs(item, rows, setting), item.about
    tables, paper, reference = make_tables(inputs), read_tables(), about["streams"][-1]
    maps = {}
    if about["show"] == "stages":
        maps = {
            label: relative_change(result, inputs.place).T for label, result in inputs.rows.items()
        }
    return Section(
        item.name,
        about["title"],
        item.stream,
        notes=tuple(notes),
        tables=tuple(
            (table, side_by_side(table, paper.get(table.label), reference, setting.same))
            for table in tables
        ),
        verdicts=tuple(verdict for table in tables for verdict in judge(table)),
        how=HOW if setting.same else OTHER.format(reference=reference),
        tasks=next(iter(inputs.rows.values())).tasks if maps else (),
        maps=maps,
    )
