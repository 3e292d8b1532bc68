"""Optimizers that evaluate the loss themselves (LBFGS): the whole step is one careful update."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from nantrap import finite
from nantrap.errors import UsageError
from nantrap.guard.diagnosis.describe import observe
from nantrap.guard.driver import Driver
from nantrap.guard.judge import Flags, Kind, judge
from nantrap.guard.session import Session
from nantrap.guard.state.copies import UpdateSnapshot
from nantrap.guard.state.members import current_rates
from nantrap.guard.step import accept, apply_anyway, refuse_bad
from nantrap.guard.window import LossLike, Micro, Outcome, Reading, Window, as_loss
from nantrap.locate import RngState


def attempt_with_closure(
    session: Session, driver: Driver, fn: Callable[[Any], LossLike], batch: Any, rng: RngState, more: tuple[Any, ...]
) -> Outcome:
    """`optimizer.step(closure)`, exactly as in the plain loop: gradients are not clipped between its evaluations."""
    optimizer, members = session.protected.optimizer, session.protected.members
    if more or driver.scaling.enabled:
        raise UsageError(
            f"{type(optimizer).__name__} takes one batch per step and no GradScaler: it evaluates the loss "
            "several times and compares the values"
        )
    window = Window(started=time.perf_counter())
    evaluations: list[Micro] = []
    norms: list[Tensor] = []

    def closure() -> Tensor:
        """Evaluate the loss and its gradients once; the first evaluation is read, to judge where the step began."""
        members.clear_gradients()
        micro = Micro(as_loss(fn(batch)), 1.0, batch, fn, rng)
        micro.loss.total.backward()
        if not evaluations:
            micro.values = finite.read(micro.loss.scalars())
            norms.append(finite.gradient_norm(members.gradients()))
        evaluations.append(micro)
        return micro.loss.total.detach()

    session.protected.copy_for_update()
    rates = current_rates(optimizer)
    optimizer.step(closure)  # type: ignore[arg-type]
    window.micros = [evaluations[0]]
    return judge_evaluations(session, driver, window, finite.read(norms)[0], rates)


def judge_evaluations(
    session: Session, driver: Driver, window: Window, norm: float, rates: tuple[float, ...]
) -> Outcome:
    """After an optimizer evaluated the loss several times: keep the result, or restore what `copy_for_update` copied.

    A line search may try points where the loss overflows and reject them; only the start and the result count.

    Args:
        session: of the run.
        driver: who makes the update.
        window: the step, with its first evaluation.
        norm: the gradient norm of the first evaluation.
        rates: the learning rates in force.
    """
    first = window.micros[0]
    made = session.protected.findings("state")
    start_bad = first.bad or not math.isfinite(norm)
    verdict = session.ranks.agree(Flags(origin=start_bad or bool(made), harmful=True))
    if not verdict.bad:
        window.count(first)
        session.protected.release()
        reading = Reading(norm, window.loss, window.terms, rates)
        return accept(session, driver, window, reading)
    decision = judge(verdict, session.policy)
    result = UpdateSnapshot(session.protected.members.parameters, session.protected.optimizer)
    if decision.kind is Kind.OBSERVE:
        result.take()
    session.protected.undo()
    update = [] if start_bad else [replace(found, phase="optimizer") for found in made]
    observation = observe(
        session,
        first,
        norm,
        verdict=verdict,
        update=update,
        agreed=True,
        copy_gradients=not driver.owns_gradients,
        evaluated=True,
    )
    reading = Reading(norm, math.nan, {}, rates)
    if decision.kind is Kind.OBSERVE:
        return apply_anyway(session, driver, window, reading, observation, put_back=result.restore)
    return refuse_bad(session, driver, window, reading, observation, decision)
