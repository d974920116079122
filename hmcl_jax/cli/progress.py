"""Progress of runs, extractions and analyses: bars on a terminal, plain lines elsewhere."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from hmcl_jax.backbones.extract import Step
    from hmcl_jax.continual import Event


class _View:
    """Bars while it is entered, where it writes to a terminal.

    Args:
      console: where to; standard output by default.
      columns: of the bars, after the counts.
    """

    def __init__(self, console: Console | None, *columns: ProgressColumn) -> None:
        self.console = console or Console(file=sys.stdout)
        self.started = time.perf_counter()
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            *columns,
            console=self.console,
        )
        self.tasks: dict[Any, Any] = {}

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.console.is_terminal:
            self.bars.stop()

    def bar(self, key: Any, title: str, done: int, total: int, note: str = "") -> None:
        """Moves a bar, which begins at its first call."""
        if key not in self.tasks:
            self.tasks[key] = self.bars.add_task(title, total=total, note=note)
        bar = self.tasks[key]
        self.bars.update(bar, description=title, completed=done, total=total, note=note)

    def line(self, text: str, clock: bool = True) -> None:
        """Prints a line, after the seconds since the view was made."""
        seconds = f"[{time.perf_counter() - self.started:7.1f} s] " if clock else ""
        print(f"{seconds}{text}", file=self.console.file, flush=True)


class ProgressView(_View):
    """A listener for :func:`hmcl_jax.continual.run_stream`, and a context manager.

    Args:
      methods: names, in order.
      console: where to; standard output by default.
    """

    def __init__(self, methods: tuple[str, ...], console: Console | None = None) -> None:
        left = (TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
        super().__init__(console, *left)
        self.methods = methods

    def __call__(self, event: "Event") -> None:
        title = f"{event.method}: {event.task}"
        note = ""
        if event.scores is not None and event.number:
            mean, change = _standing(event.scores, event.number)
            note = f"mean {mean:.1f} %, change since learned {change:+.1f}"
        if not self.console.is_terminal:
            if event.kind == "epoch":
                self.line(f"{title}, epoch {event.number}/{event.count}")
            elif event.kind == "scores":
                logs = "".join(f", {name} {value:.3g}" for name, value in event.log.items())
                where = f"{event.method}: task {event.number}/{event.count} {event.task}"
                self.line(f"{where} done, {note}{logs}")
        elif event.kind == "epoch":
            self.bar("epochs", "epochs", event.number, event.count)
        elif event.kind in ("task", "scores"):
            done = self.methods.index(event.method) * event.count + event.number
            total = event.count * len(self.methods)
            self.bar("tasks", title, done, total, note)


class ExtractView(_View):
    """A listener for :func:`hmcl_jax.backbones.extract.extract_store`, and a context manager.

    Args:
      console: where to; standard output by default.
      every: seconds between lines where it is not a terminal.
    """

    def __init__(self, console: Console | None = None, every: float = 10.0) -> None:
        super().__init__(console, TextColumn("{task.fields[note]}"))
        self.every = every
        self.last_line, self.finished = 0.0, set[tuple[str, str]]()

    def __call__(self, step: "Step") -> None:
        part, title = (step.task, step.part), f"{step.task}: {step.part}"
        rate = step.fresh / step.seconds if step.fresh and step.seconds > 0 else 0.0
        left = "" if not rate else f"{rate:.1f}/s, left {_clock((step.total - step.done) / rate)}"
        if self.console.is_terminal:
            self.bar(part, title, step.done, step.total, left)
            return
        now, ended = time.perf_counter(), step.done == step.total
        if part in self.finished or not (ended or now - self.last_line >= self.every):
            return
        self.last_line = now
        if ended:
            self.finished.add(part)
            left = f"{rate:.1f}/s" if rate else "kept"
        self.line(f"{title} {step.done}/{step.total}, {left}", clock=False)


class AnalysisView(_View):
    """A listener for :func:`hmcl_jax.report.analyse.analyse`, and a context manager.

    Args:
      console: where to; standard output by default.
    """

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(console)

    def __call__(self, name: str, done: int, total: int) -> None:
        if self.console.is_terminal:
            self.bar("", name, done, total)
        else:
            self.line(f"{name} ({done + 1}/{total})")


def _clock(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _standing(scores: np.ndarray, number: int) -> tuple[float, float]:
    """Mean score of the seen tasks and its change since each was learned, in percent."""
    going = np.isfinite(scores[:, number - 1, 0])  # not the seeds that were stopped
    now = scores[going, number - 1, :number]
    learned = np.diagonal(scores, axis1=1, axis2=2)[going, :number]
    return 100 * float(now.mean()), 100 * float((now - learned).mean())
