"""The stages of a run, judged by its training log: `python -m nantrap_systems.restran_mhc.stages RUN_DIR`.

1  epochs 1 to 5: the loss falls, no step is skipped, every α stays below 0.1
2  epochs 6 to 30: the loss keeps falling or stays, no step is skipped, every α stays below 1
3  then scale up: twice the streams, 1.5 times the learning rate and the batch
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from nantrap.errors import UsageError
from nantrap_systems.log import TRAINING_LOG, read_log


class Stage(NamedTuple):
    """Epochs from `first` to `last`, and the α that are allowed in them."""

    number: int
    first: int
    last: int
    alpha: float


STAGES = (Stage(1, 1, 5, 0.1), Stage(2, 6, 30, 1.0))
SCALE_UP = "stage 3: scale up: --mhc-n 4, 1.5 times the learning rate, 1.5 times the batch"


def judge(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line for every stage that has begun; the last one is what to do next."""
    lines = []
    for stage in STAGES:
        of_it = [row for row in rows if stage.first <= row["epoch"] <= stage.last]
        if not of_it:
            break
        problems = _problems(of_it, stage)
        ended = max(row["epoch"] for row in rows) >= stage.last
        losses = [row["loss"] for row in of_it if row["loss"] is not None]
        course = f"loss {losses[0]:.3f} to {losses[-1]:.3f}" if losses else "no finite loss"
        verdict = "; ".join(problems) if problems else "ok" if ended else "ok so far"
        lines.append(f"stage {stage.number} (epochs {stage.first} to {stage.last}): {verdict} ({course})")
        if problems:
            return lines
        if not ended:
            return lines
    if len(lines) == len(STAGES):
        lines.append(SCALE_UP)
    return lines


def _problems(rows: Sequence[dict[str, Any]], stage: Stage) -> list[str]:
    """What went wrong in a stage, in words: bad losses, skipped steps, no progress, a parameter that is too large."""
    found = []
    bad = sum(row["loss"] is None for row in rows)
    if bad:
        found.append(f"{bad} steps with a loss of NaN or Inf")
    skipped = sum(not row["applied"] for row in rows)
    if skipped:
        found.append(f"{skipped} steps skipped")
    losses = [row["loss"] for row in rows if row["loss"] is not None]
    part = max(len(losses) // 5, 1)
    if len(losses) >= 10 and fmean(losses[-part:]) > fmean(losses[:part]):
        found.append("the loss does not fall")
    values = {name: value for row in rows for name, value in row.get("watched", {}).items()}
    name, value = max(values.items(), key=lambda item: abs(item[1]), default=("", 0.0))
    if abs(value) >= stage.alpha:
        found.append(f"{name} is {value:.3g}, {stage.alpha:g} or more")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the stages of a run. Exit code 0: all that have begun are ok; 1: one is not; 2: wrong use."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if len(given) != 1:
            raise UsageError("expected RUN_DIR, the folder that train.py was given as --run-dir")
        folder = Path(given[0])
        if not (folder / TRAINING_LOG).is_file():
            raise UsageError(f"{folder / TRAINING_LOG}: no such file")
        lines = judge(read_log(folder))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    print("\n".join(lines) or "nothing was trained yet")  # noqa: T201
    return 0 if all(": ok" in line or line == SCALE_UP for line in lines) else 1


if __name__ == "__main__":
    raise SystemExit(main())
