"""A progress line with loss and rate: rewritten in place on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from nantrap.systems.training import Step

_SECONDS_BETWEEN_LINES = 5.0


class ProgressLine:
    """Shows the step, the loss and the speed. Holds the time it began, and when it last wrote."""

    def __init__(self, steps: int, *, start: int = 0, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._start, self._end = start, start + steps
        self._began = self._written = time.perf_counter()

    def show(self, step: Step, rate: float) -> None:
        """The line of a step; `rate` is the learning rate in force."""
        now = time.perf_counter()
        done = step.number + 1
        last = done == self._end
        if not self._terminal and not last and now - self._written < _SECONDS_BETWEEN_LINES:
            return
        self._written = now
        speed = (done - self._start) / max(now - self._began, 1e-9)
        line = f"step {done:,}/{self._end:,}  loss {step.loss:.4f}  lr {rate:.3g}  {speed:.1f} steps/s"
        line += "" if step.applied else "  (skipped)"
        before, after = ("\r\x1b[K", "\n" if last else "") if self._terminal else ("", "\n")
        self._stream.write(before + line + after)
        self._stream.flush()
