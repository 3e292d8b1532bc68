"""Optimizers that evaluate the loss themselves (LBFGS): the whole step is one careful update."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from nantrap import finite
from nantrap.errors import UsageError
from nantrap.guard.conclude import accept, refuse
from nantrap.guard.diagnose import Observed
from nantrap.guard.loss import LossLike, as_loss
from nantrap.guard.outcome import Outcome
from nantrap.guard.rates import current_rates
from nantrap.guard.snapshot import UpdateSnapshot
from nantrap.guard.window import Micro, Window
from nantrap.locate import RngState

if TYPE_CHECKING:
    from nantrap.guard.guard import Guard


def attempt_with_closure(
    guard: Guard, fn: Callable[[Any], LossLike], batch: Any, rng: RngState, more: tuple[Any, ...]
) -> Outcome:
    """`optimizer.step(closure)`, exactly as in the plain loop: gradients are not clipped between its evaluations."""
    if more or guard._scaling.enabled:
        raise UsageError(
            f"{type(guard.optimizer).__name__} takes one batch a step and no GradScaler: it evaluates the loss "
            "several times and compares the values"
        )
    window = Window(started=time.perf_counter())
    evaluations: list[Micro] = []
    norms: list[Tensor] = []

    def closure() -> Tensor:
        guard._members.clear_gradients()
        micro = Micro(as_loss(fn(batch)), 1.0, batch, fn, rng)
        micro.loss.total.backward()
        if not evaluations:
            micro.values = finite.read(micro.loss.scalars())
            norms.append(finite.gradient_norm(guard._members.gradients()))
        evaluations.append(micro)
        return micro.loss.total.detach()

    snapshot = UpdateSnapshot(guard._members.parameters, guard.optimizer)
    snapshot.take()
    rates = current_rates(guard.optimizer)
    guard.optimizer.step(closure)  # type: ignore[arg-type]
    first = evaluations[0]
    window.micros = [first]
    return judge_evaluations(guard, window, first, finite.read(norms)[0], snapshot, rates=rates)


def judge_evaluations(
    guard: Guard,
    window: Window,
    first: Micro,
    norm: float,
    snapshot: UpdateSnapshot,
    *,
    rates: tuple[float, ...] | None = None,
) -> Outcome:
    """After an optimizer evaluated the loss as it liked: keep the result, or go back to the copy taken before.

    A line search may try points where the loss overflows and turn back; what counts is the start and the result.
    """
    undone = guard._update.findings("state")
    bad = first.bad or bool(undone) or not math.isfinite(norm)
    verdict = guard._agreement.decide(origin=bad, harmful=True)
    if verdict.bad:
        snapshot.restore()
        observed = Observed(
            guard._step,
            first,
            first.values or [],
            norm,
            update=[] if first.bad or not math.isfinite(norm) else [replace(f, phase="optimizer") for f in undone],
            rank=verdict.first_rank,
            local=guard._agreement.rank in verdict.bad_ranks,
        )
        return refuse(guard, window, observed, {})
    window.count(first)
    return accept(guard, window, norm, {}, current_rates(guard.optimizer) if rates is None else rates)
