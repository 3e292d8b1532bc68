"""Optimizers that evaluate the loss themselves (LBFGS): the whole step is one careful update."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from nantrap import finite
from nantrap.errors import UsageError
from nantrap.guard.diagnose import Observed
from nantrap.guard.loss import LossLike, as_loss
from nantrap.guard.outcome import Outcome
from nantrap.guard.rates import current_rates
from nantrap.guard.snapshot import UpdateSnapshot
from nantrap.guard.window import Micro, Window
from nantrap.incident import Action
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

    def closure() -> Tensor:
        guard._members.clear_gradients()
        micro = Micro(as_loss(fn(batch)), 1.0, batch, fn, rng)
        micro.loss.total.backward()
        micro.values = finite.read([micro.loss.total.detach()])
        evaluations.append(micro)
        return micro.loss.total.detach()

    snapshot = UpdateSnapshot(guard._members.parameters, guard.optimizer)
    snapshot.take()
    rates = current_rates(guard.optimizer)
    guard.optimizer.step(closure)  # type: ignore[arg-type]
    first = evaluations[0]
    window.micros = [first]
    window.loss = first.values[0] if first.values else math.nan
    norm = finite.read([finite.gradient_norm(guard._members.gradients())])[0]
    undone = guard._update.findings("optimizer")
    if not math.isfinite(window.loss) or undone or not math.isfinite(norm):
        snapshot.restore()
        observed = Observed(
            guard._step, first, first.values or [], norm, update=undone if math.isfinite(window.loss) else []
        )
        return guard._bad_step(window, observed, {})
    guard._buffers.adopt()
    if guard.scheduler is not None:
        guard.scheduler.step()
    if guard._ema_update is not None:
        guard._ema_update()
    guard._members.clear_gradients()
    guard._ladder.applied()
    guard.tally.applied += 1
    return guard._end(window, Action.APPLY, norm, {}, rates, incident=None)
