"""Progress of runs, extractions and analyses: bars on a terminal, plain lines elsewhere."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

if TYPE_CHECKING:
    from hmcl_jax.backbones.extract import Step
    from hmcl_jax.continual import Event


class ProgressView:
    """A listener for :func:`hmcl_jax.continual.run_stream`, and a context manager.

    Args:
      methods: names, in order.
      console: where to; standard output by default.
    """

    def __init__(self, methods: tuple[str, ...], console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stdout)
        self.methods = methods
        self.scores: dict[str, tuple[np.ndarray, int]] = {}
        self.started = time.perf_counter()
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
        )
        self.tasks = self.bars.add_task("tasks", total=None)
        self.epochs: Any = None
        self.live: Live | None = None

    def __enter__(self) -> "ProgressView":
        if self.console.is_terminal:
            self.live = Live(self._table(), console=self.console, refresh_per_second=4)
            self.live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.live is not None:
            self.live.__exit__(kind, error, trace)
            self.live = None

    def __call__(self, event: "Event") -> None:
        if event.kind == "task":
            done = self.methods.index(event.method) * event.count + event.number
            description = f"{event.method}: {event.task}"
            total = event.count * len(self.methods)
            self.bars.update(self.tasks, completed=done, total=total, description=description)
            if self.epochs is not None:
                self.bars.remove_task(self.epochs)
                self.epochs = None
        elif event.kind == "epoch":
            if self.epochs is None:
                self.epochs = self.bars.add_task("epochs", total=event.count)
            self.bars.update(self.epochs, completed=event.number)
        if event.scores is not None:
            self.scores[event.method] = (event.scores, event.number)
            if event.kind == "scores":
                done = self.methods.index(event.method) * event.count + event.number
                self.bars.update(self.tasks, completed=done)
        if self.live is not None:
            self.live.update(self._table())
        else:
            self._print(event)

    def _print(self, event: "Event") -> None:
        seconds = f"[{time.perf_counter() - self.started:7.1f} s]"
        if event.kind == "epoch":
            line = f"{event.method}: {event.task}, epoch {event.number}/{event.count}"
        elif event.kind == "scores":
            now, change = _standing(*self.scores[event.method])
            line = (
                f"{event.method}: task {event.number}/{event.count} {event.task} done, "
                f"mean {now:.1f} %, change since learned {change:+.1f}"
            )
            line += "".join(f", {figure} {value:.3g}" for figure, value in event.log.items())
        else:
            return
        print(seconds, line, file=self.console.file, flush=True)

    def _table(self) -> Group:
        table = Table("method", "tasks", "mean of seen tasks", "change since learned")
        for name in self.methods:
            if name in self.scores:
                scores, number = self.scores[name]
                now, change = _standing(scores, number)
                table.add_row(name, str(number), f"{now:.1f} %", f"{change:+.1f}")
        return Group(self.bars, table)


class _BarsView:
    """Bars while it is entered, where it writes to a terminal."""

    def __init__(self, console: Console | None, *more: ProgressColumn) -> None:
        self.console = console or Console(file=sys.stdout)
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            *more,
            console=self.console,
        )

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


class ExtractView(_BarsView):
    """A listener for :func:`hmcl_jax.backbones.extract.extract_store`, and a context manager.

    Args:
      console: where to; standard output by default.
      every: seconds between lines where it is not a terminal.
    """

    def __init__(self, console: Console | None = None, every: float = 10.0) -> None:
        super().__init__(console, TextColumn("{task.fields[rate]}"))
        self.every = every
        self.parts: dict[tuple[str, str], Any] = {}
        self.last_line, self.finished = 0.0, set[tuple[str, str]]()

    def __call__(self, step: "Step") -> None:
        part = (step.task, step.part)
        rate = step.fresh / step.seconds if step.fresh and step.seconds > 0 else 0.0
        left = "" if not rate else f"{rate:.1f}/s, left {_clock((step.total - step.done) / rate)}"
        if self.console.is_terminal:
            if part not in self.parts:
                title = f"{step.task}: {step.part}"
                self.parts[part] = self.bars.add_task(title, total=step.total, rate="")
            self.bars.update(self.parts[part], completed=step.done, rate=left)
            return
        now, ended = time.perf_counter(), step.done == step.total
        if part in self.finished or not (ended or now - self.last_line >= self.every):
            return
        self.last_line = now
        if ended:
            self.finished.add(part)
            left = f"{rate:.1f}/s" if rate else "kept"
        line = f"{step.task}: {step.part} {step.done}/{step.total}, {left}"
        print(line, file=self.console.file, flush=True)


class AnalysisView(_BarsView):
    """A listener for :func:`hmcl_jax.report.analysis.analyse`, and a context manager.

    Args:
      console: where to; standard output by default.
    """

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(console)
        self.started = time.perf_counter()
        self.bar: Any = None

    def __call__(self, name: str, done: int, total: int) -> None:
        if self.console.is_terminal:
            if self.bar is None:
                self.bar = self.bars.add_task("")
            shown = name.replace("[", r"\[")
            self.bars.update(self.bar, description=shown, completed=done, total=total)
            return
        seconds = f"[{time.perf_counter() - self.started:7.1f} s]"
        print(seconds, f"{name} ({done + 1}/{total})", file=self.console.file, flush=True)


def _clock(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _standing(scores: np.ndarray, number: int) -> tuple[float, float]:
    """Mean score of the seen tasks and its change since each was learned, in percent."""
    going = np.isfinite(scores[:, number - 1, 0])  # not the seeds that were stopped
    now = scores[going, number - 1, :number]
    learned = np.diagonal(scores, axis1=1, axis2=2)[going, :number]
    return 100 * float(now.mean()), 100 * float((now - learned).mean())
