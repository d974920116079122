"""Progress of runs, extractions and analyses: bars on a terminal, plain lines elsewhere."""

import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from hmcl_jax.evaluation import backward_transfer

if TYPE_CHECKING:
    from hmcl_jax.backbones.extract import Step
    from hmcl_jax.continual import Event


NOTE = TextColumn("{task.fields[note]}", markup=False)


class _View(Progress):
    """Bars on a terminal, while it is entered; elsewhere its subclasses print lines."""

    def __init__(self, console: Console | None, *columns: ProgressColumn) -> None:
        console = console or Console(file=sys.stdout)
        title = TextColumn("{task.description}", markup=False)
        counts = (BarColumn(), MofNCompleteColumn())
        super().__init__(title, *counts, *columns, console=console, disable=not console.is_terminal)
        self.known: dict[str, TaskID] = {}

    def stop(self) -> None:
        if not self.disable:  # Rich 13 prints a blank line here even if it is disabled
            super().stop()

    def bar(self, key: str, title: str, done: int, total: int, note: str = "") -> None:
        """Moves a bar, which begins at its first call."""
        if key not in self.known:
            self.known[key] = self.add_task(title, total=total, note=note)
        self.update(self.known[key], description=title, completed=done, total=total, note=note)

    def line(self, text: str) -> None:
        print(text, file=self.console.file, flush=True)


class ProgressView(_View):
    """A listener for :func:`hmcl_jax.continual.run_stream`, and a context manager."""

    def __init__(self, methods: tuple[str, ...], console: Console | None = None) -> None:
        super().__init__(console, TextColumn("left"), TimeRemainingColumn(), NOTE)
        self.methods, self.started = methods, time.perf_counter()

    def __call__(self, event: "Event") -> None:
        title = f"{event.method}: {event.task}"
        note = ""
        if event.scores is not None and event.number:
            trained = np.isfinite(event.scores[:, event.number - 1, 0])  # not the stopped seeds
            R = event.scores[trained, : event.number, : event.number]
            mean, change = 100 * R[:, -1].mean(), 100 * backward_transfer(R).mean()
            note = f"mean {mean:.1f} %, change since learned {change:+.1f}"
        if not self.console.is_terminal:
            since = f"[{time.perf_counter() - self.started:7.1f} s]"
            if event.kind == "epoch":
                self.line(f"{since} {title}, epoch {event.number}/{event.count}")
            elif event.kind == "scores":
                logs = "".join(f", {name} {value:.3g}" for name, value in event.log.items())
                where = f"{event.method}: task {event.number}/{event.count} {event.task}"
                self.line(f"{since} {where} done, {note}{logs}")
        elif event.kind == "epoch":
            self.bar("epochs", "epochs", event.number, event.count)
        elif event.kind in ("task", "scores"):
            done = self.methods.index(event.method) * event.count + event.number
            self.bar("tasks", title, done, event.count * len(self.methods), note)


class ExtractView(_View):
    """A listener for :func:`hmcl_jax.backbones.extract.extract_store`, and a context manager."""

    def __init__(self, console: Console | None = None, every: float = 10.0) -> None:
        super().__init__(console, NOTE)
        self.every = every  # seconds between lines
        self.last_line, self.ended = 0.0, set[str]()

    def __call__(self, step: "Step") -> None:
        title, ended = f"{step.task}: {step.part}", step.done == step.total
        rate = step.fresh / step.seconds if step.fresh and step.seconds > 0 else 0.0
        note = ""
        if rate:
            left = timedelta(seconds=round((step.total - step.done) / rate))
            note = f"{rate:.1f}/s, left {left}"
        if self.console.is_terminal:
            self.bar(title, title, step.done, step.total, note)
            return
        now = time.perf_counter()
        if title in self.ended or not (ended or now - self.last_line >= self.every):
            return
        self.last_line = now
        if ended:
            self.ended.add(title)
            note = f"{rate:.1f}/s" if rate else "kept"
        self.line(f"{title} {step.done}/{step.total}, {note}")
