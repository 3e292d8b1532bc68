"""What a script says and writes: lines on stderr and in `latest.log`, and `training_log.jsonl`.

Voice           lines of text on stderr, and in `latest.log` of the run's folder, for `tail -f` and `grep`
ProgressLine    a line with loss and learning rate: rewritten in place on a terminal, a line at intervals elsewhere
TrainingLog     one line per step, with or without a guard, for any tool that reads JSON lines

    Ep 15/80:  45% step 145/800, 2.37 it/s, loss=2.341, lr=1.23e-04
    {"step": 14, "epoch": 2, "loss": 2.341, "lr": 0.000123, "applied": true, "terms": {"text": 2.1, "latent": 0.241}}

A loss that is not finite is `null`; `terms` is there where the loss has several, `incident` where the guard had one. A
resumed run appends, after lines of steps that are taken again were removed.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from nantrap.errors import UsageError
from nantrap.record import write_atomically
from nantrap_systems.training import Step

LATEST_LOG = "latest.log"
TRAINING_LOG = "training_log.jsonl"
_SECONDS_BETWEEN_LINES = 5.0
_CLEAR = "\x1b[K"


class Voice:
    """Says lines. Holds the open file, once there is a folder, and what was said before; `terminal` says whether a line
    can be rewritten."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self.terminal = self._stream.isatty()
        self._file: TextIO | None = None
        self._early: list[str] = []

    def write_to(self, folder: Path) -> None:
        """Write every line into `latest.log` of this folder as well, those said so far too; a run that continues
        appends."""
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / LATEST_LOG).open("a", encoding="utf-8")
        for text in self._early:
            self.note(text)

    def say(self, text: str) -> None:
        """A line, on both."""
        self._stream.write((_CLEAR if self.terminal else "") + text + "\n")
        self._stream.flush()
        self.note(text)

    def rewrite(self, text: str) -> None:
        """A line of a terminal that the next one replaces, whoever writes it: the cursor stays at its beginning."""
        self._stream.write(_CLEAR + text + "\r")
        self._stream.flush()

    def note(self, text: str) -> None:
        """A line that only the file gets."""
        if self._file is None:
            self._early.append(text)
        else:
            self._file.write(text + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class ProgressLine:
    """Shows epoch, step, loss and speed. Holds the time it began, and when it last wrote."""

    def __init__(self, steps: int, *, start: int = 0, epoch_steps: int = 100, voice: Voice | None = None) -> None:
        self._voice = voice or Voice()
        self._start, self._end, self._epoch_steps = start, start + steps, epoch_steps
        self._began = self._written = time.perf_counter()

    def show(self, step: Step, lr: float) -> None:
        """The line of a step; `lr` is the learning rate in force."""
        now = time.perf_counter()
        last = step.number + 1 == self._end
        due = last or now - self._written >= _SECONDS_BETWEEN_LINES
        line = self._line(step, lr, now)
        if self._voice.terminal and not last:
            self._voice.rewrite(line)
        if due:
            self._written = now
            (self._voice.say if last or not self._voice.terminal else self._voice.note)(line)

    def _line(self, step: Step, lr: float, now: float) -> str:
        done, size = step.number + 1, self._epoch_steps
        speed = (done - self._start) / max(now - self._began, 1e-9)
        epoch, epochs = step.number // size + 1, math.ceil(self._end / size)
        begins = (epoch - 1) * size
        share = (done - begins) / (min(begins + size, self._end) - begins)  # the last epoch may be a short one
        line = f"Ep {epoch}/{epochs}: {share:4.0%} step {done}/{self._end}, {speed:.2f} it/s"
        return line + f", loss={step.loss:.3f}, lr={lr:.2e}" + ("" if step.applied else " (skipped)")


class TrainingLog:
    """The open file. `start` is the step at which the run begins; `None` for a run that must be new."""

    def __init__(self, folder: Path, *, start: int | None) -> None:
        self.path = folder / TRAINING_LOG
        folder.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            if start is None:
                raise UsageError(
                    f"{self.path} exists and is not overwritten: --resume continues it, or give a new --run-dir"
                )
            rows = [row for row in read_log(folder) if row["step"] < start]
            write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in rows))
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, step: Step, *, lr: float, epoch: int, watched: Mapping[str, float] | None = None) -> None:
        """The line of a step. A value that is not finite is `null`, as JSON has no other word for it."""
        tables = {"terms": step.terms, "watched": watched}
        row = {
            "step": step.number,
            "epoch": epoch,
            "loss": _finite(step.loss),
            "lr": lr,
            "applied": step.applied,
            **({"incident": True} if step.incident is not None else {}),
            **{table: {name: _finite(value) for name, value in held.items()} for table, held in tables.items() if held},
        }
        self._file.write(json.dumps(row, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The rows of a log; a last line that was cut off is left out."""
    rows = []
    for line in (folder / TRAINING_LOG).read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows
