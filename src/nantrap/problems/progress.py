"""The progress of a command while it reads: callbacks for who reads, and a bar for who watches."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

_PAUSE: Final = 0.05
"""Seconds between two drawings: rich takes longer to note a chunk than an audit to read one."""

Unit = Literal["bytes", "samples", "checks"]


class ReadingProgress(NamedTuple):
    """Gets the progress of reading. Called from several threads.

    Attributes:
        on_total: called with the number of bytes that are to be read, once or several times.
        on_bytes: called with the number of bytes that were read since the last call.
        on_samples: for a dataset made by code: how many samples were read, and how many there are, if that is known.
    """

    on_total: Callable[[int], None] = lambda total: None
    on_bytes: Callable[[int], None] = lambda count: None
    on_samples: Callable[[int, int | None], None] = lambda done, total: None


class ProgressBar:
    """A bar on a terminal that appears once the work has lasted `after` seconds.

    While it is shown, what is written to `sys.stderr` appears above it, and what is written to `sys.stdout` as well if
    that is a terminal. Only who sees it pays for the import of rich.
    """

    def __init__(self, stream: TextIO, *, after: float = 1.0) -> None:
        self._shows = stream.isatty()
        self._next = time.monotonic() + after
        self._total = self._done = 0
        self._lock = threading.Lock()
        self._unit: Unit | None = None
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def reading(self) -> ReadingProgress:
        """The callbacks that move this bar."""
        return ReadingProgress(self.add_total, self.add_bytes, self.show_samples)

    def add_total(self, count: int) -> None:
        """More bytes are to be read."""
        self._total += count

    def add_bytes(self, count: int) -> None:
        """More bytes were read."""
        with self._lock:
            self._done += count
            self._show("bytes", self._done, self._total)

    def show_samples(self, done: int, total: int | None) -> None:
        """A dataset made by code is counted in samples; a stream has no end that is known."""
        with self._lock:
            self._show("samples", done, total)

    def show_checks(self, done: int, total: int) -> None:
        """How many checks are made."""
        with self._lock:
            self._show("checks", done, total)

    def _show(self, unit: Unit, done: int, total: int | None) -> None:
        """Draw the bar; one of bytes or samples at most 20 times a second."""
        now = time.monotonic()
        if not self._shows or now < self._next:
            return
        if unit != "checks":
            self._next = now + _PAUSE
        if unit != self._unit:
            self._stop()
            self._start(unit, total)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total)

    def _start(self, unit: Unit, total: int | None) -> None:
        """Show a bar that counts in a unit."""
        from rich.console import Console
        from rich.progress import Progress

        self._unit = unit
        on_screen = sys.stdout.isatty()  # a pipe must get what is written for it
        console = Console(stderr=True)
        self._bar = Progress(*_columns(unit), console=console, transient=True, redirect_stdout=on_screen)
        self._task = self._bar.add_task("", total=total)
        self._bar.start()

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _columns(unit: Unit) -> tuple[ProgressColumn, ...]:
    """The columns of a bar that counts in this unit."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    if unit == "bytes":
        return BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    if unit == "samples":
        return BarColumn(), MofNCompleteColumn(), TextColumn("samples"), TimeRemainingColumn()
    return SpinnerColumn(), BarColumn(20), MofNCompleteColumn(), TextColumn("checks"), TimeElapsedColumn()
