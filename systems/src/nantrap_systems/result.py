"""What becomes of a run: trained for some steps, plain or guarded, then examined."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from nantrap import finite
from nantrap.errors import NonFiniteError
from nantrap.incident import Incident
from nantrap_systems.system import Run
from nantrap_systems.training import Step, guard_of, mean_of_last, train


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one run.

    Attributes:
        name: `clean`, `plain`, the name of a remedy, or `nantrap`.
        steps: how many were tried; fewer than asked for if the run ended early.
        applied: how many moved the weights.
        first_bad: the first step whose loss was not finite.
        final_loss: the mean of the last ten training losses, of applied steps under the guard.
        held_out_loss: on held-out data at the end.
        quality: the system's figure at the end.
        state_finite: whether every parameter and buffer is finite at the end.
        incidents: how many there were.
        stopped: whether the guard stopped the run.
        error: what ended the run early, if an exception did; a hang ends as the time-out of the group.
        ranks_agree: whether all processes ended with the same weights; `None` if there was only one.
        seconds: how long it took, diagnosis included.
        losses: of every step that was tried.
        skipped: the steps that did not move the weights.
    """

    name: str
    steps: int
    applied: int
    first_bad: int | None
    final_loss: float
    held_out_loss: float
    quality: float
    state_finite: bool
    incidents: int = 0
    stopped: bool = False
    error: str | None = None
    ranks_agree: bool | None = None
    seconds: float = 0.0
    losses: Sequence[float] = ()
    skipped: Sequence[int] = ()


def measure(
    name: str, run: Run, steps: int, *, guarded: bool = False, run_dir: Path | None = None, quiet: bool = False
) -> tuple[Result, Incident | None]:
    """Train for a number of steps, plain or guarded: the result, and the guard's first incident."""
    began = time.perf_counter()
    done: list[Step] = []
    incidents: list[Incident] = []
    stopped, failure = False, None
    guard = guard_of(run, run_dir=run_dir, quiet=quiet, repeat_diagnoses=1) if guarded else None
    try:
        for step in train(run, steps=steps, guard=guard):
            done.append(step)
            incidents += [step.incident] if step.incident is not None else []
    except NonFiniteError as error:
        stopped = True
        done.append(Step(len(done), math.nan, False))
        incidents.append(error.incident)
    except Exception as error:  # whatever ends a run early is a part of its story
        failure = _first_line(error)
    finally:
        if guard is not None:
            guard.close()
    found = run.evaluate()
    state: list[torch.Tensor] = [*run.model.parameters(), *run.model.buffers()]
    result = Result(
        name=name,
        steps=len(done) + (failure is not None),
        applied=sum(step.applied for step in done),
        first_bad=next((step.number for step in done if not math.isfinite(step.loss)), None),
        final_loss=mean_of_last([step.loss for step in done if step.applied]),
        held_out_loss=found.loss,
        quality=found.quality,
        state_finite=not finite.any_nonfinite(state),
        incidents=len(incidents),
        stopped=stopped,
        error=failure,
        seconds=time.perf_counter() - began,
        losses=[step.loss for step in done],
        skipped=[step.number for step in done if not step.applied],
    )
    return result, incidents[0] if incidents else None


def _first_line(error: Exception) -> str:
    text = str(error).strip().split("\n", 1)[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
