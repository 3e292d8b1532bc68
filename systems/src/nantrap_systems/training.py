"""The loop that all systems share: plain, or under a guard.

The plain loop is what one finds in any project: backward, clip, step. It knows nothing of nantrap, so that it can be
guarded from outside as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from nantrap_systems.system import Run, Terms

if TYPE_CHECKING:
    from nantrap.checkpoints import CheckpointStore
    from nantrap.guard import Guard
    from nantrap.incident import Incident


class Step(NamedTuple):
    """The result of a step. `loss` is the mean of its micro-batches, `applied` whether the weights moved, `terms` the
    terms of the loss by name, where it has several."""

    number: int
    loss: float
    applied: bool
    incident: Incident | None = None
    terms: Mapping[str, float] = {}


def train(run: Run, *, steps: int, start: int = 0, guard: Guard | None = None) -> Iterator[Step]:
    """Train step by step. With a guard every step is its `attempt`; it may raise `NonFiniteError` to stop the run."""
    for number in range(start, start + steps):
        run.step = number
        if run.begin_epoch is not None and number % run.epoch_steps == 0:
            run.begin_epoch(run)
        window = run.window(number)
        if guard is None:
            yield _plain_step(run, number, window)
        else:
            guard.set_position(epoch=number // run.epoch_steps + 1, batch=number % run.epoch_steps)
            outcome = guard.attempt(run.loss, *window)
            yield Step(number, outcome.loss, outcome.applied, outcome.incident, outcome.terms)


def guard_of(
    run: Run,
    *,
    run_dir: Path | None = None,
    store: CheckpointStore | None = None,
    quiet: bool = False,
    **policy: Any,
) -> Guard:
    """A guard for the run, with everything the run holds."""
    from nantrap.guard import Guard, Policy

    return Guard(
        run.model,
        run.optimizer,
        scheduler=run.scheduler,
        scaler=run.scaler,
        ema=run.ema,
        max_grad_norm=run.max_grad_norm,
        watch=run.watch,
        process_group=run.process_group,
        policy=Policy(**{**run.policy, **policy}),
        run_dir=run_dir,
        store=store,
        quiet=quiet,
    )


def _plain_step(run: Run, number: int, window: tuple[Any, ...]) -> Step:
    """One step without a guard, over all batches of the accumulation."""
    value = 0.0
    terms: dict[str, float] = {}
    for batch in window:
        found = run.loss(batch)
        loss = total(found) / len(window)
        (run.scaler.scale(loss) if run.scaler is not None else loss).backward()
        value += loss.item()
        for name, term in found.items() if isinstance(found, Mapping) else ():
            terms[name] = terms.get(name, 0.0) + term.item() / len(window)
    applied = run.update(run)
    if applied and run.ema is not None:
        run.ema.update_parameters(run.model)
    return Step(number, value, applied, terms=terms)


def total(terms: Terms) -> Tensor:
    """The loss itself: the sum of its terms."""
    return terms if isinstance(terms, Tensor) else sum(terms.values(), start=next(iter(terms.values())).new_zeros(()))


def mean_of_last(losses: list[float], count: int = 10) -> float:
    """The mean of the last losses; NaN if one of them is, or if there is none."""
    last = losses[-count:]
    return sum(last) / len(last) if last else math.nan
