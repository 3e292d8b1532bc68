"""`training_log.jsonl`: one line per step, written with or without a guard, and read by any tool that reads JSON lines.

    {"step": 14, "epoch": 2, "loss": 2.341, "lr": 0.000123, "applied": true, "terms": {"text": 2.1, "latent": 0.241}}

A loss that is not finite is `null`; `terms` is there where the loss has several. A resumed run appends, after lines of
steps that are taken again were removed.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from nantrap.errors import UsageError
from nantrap.record import write_atomically
from nantrap_systems.training import Step

FILE = "training_log.jsonl"


class TrainingLog:
    """The open file. `start` is the step at which the run begins; `None` for a run that must be new."""

    def __init__(self, folder: Path, *, start: int | None) -> None:
        self.path = folder / FILE
        folder.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            if start is None:
                raise UsageError(
                    f"{self.path} exists and is not overwritten: --resume continues it, or give a new --run-dir"
                )
            rows = [row for row in read_log(folder) if row["step"] < start]
            write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in rows))
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, step: Step, *, lr: float, epoch: int, **more: Any) -> None:
        """The line of a step."""
        row = {
            "step": step.number,
            "epoch": epoch,
            "loss": _finite(step.loss),
            "lr": lr,
            "applied": step.applied,
            **({"terms": {name: _finite(value) for name, value in step.terms.items()}} if step.terms else {}),
            **more,
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
    for line in (folder / FILE).read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows
