"""A progress line with loss and learning rate: rewritten in place on a terminal, a line at intervals elsewhere.

Ep 15/80:  45% step 145/800, 2.37 it/s, loss=2.341, lr=1.23e-04
"""

from __future__ import annotations

import math
import sys
import time
from typing import TextIO

from nantrap.systems.training import Step

_SECONDS_BETWEEN_LINES = 5.0


class ProgressLine:
    """Shows epoch, step, loss and speed. Holds the time it began, and when it last wrote."""

    def __init__(self, steps: int, *, start: int = 0, epoch_steps: int = 100, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._start, self._end, self._epoch_steps = start, start + steps, epoch_steps
        self._began = self._written = time.perf_counter()

    def show(self, step: Step, lr: float) -> None:
        """The line of a step; `lr` is the learning rate in force."""
        now = time.perf_counter()
        done = step.number + 1
        last = done == self._end
        if not self._terminal and not last and now - self._written < _SECONDS_BETWEEN_LINES:
            return
        self._written = now
        speed = (done - self._start) / max(now - self._began, 1e-9)
        epoch, epochs = step.number // self._epoch_steps + 1, math.ceil(self._end / self._epoch_steps)
        share = (step.number % self._epoch_steps + 1) / self._epoch_steps
        line = f"Ep {epoch}/{epochs}: {share:4.0%} step {done}/{self._end}, {speed:.2f} it/s"
        line += f", loss={step.loss:.3f}, lr={lr:.2e}" + ("" if step.applied else " (skipped)")
        before, after = ("\r\x1b[K", "\n" if last else "") if self._terminal else ("", "\n")
        self._stream.write(before + line + after)
        self._stream.flush()
