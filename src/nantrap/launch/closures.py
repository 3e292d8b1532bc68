"""The script's `optimizer.step(closure)`: the optimizer evaluates the loss itself, once or several times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS

from nantrap import finite
from nantrap.guard.closure import judge_evaluations
from nantrap.guard.outcome import Outcome
from nantrap.guard.state.rates import current_rates
from nantrap.guard.state.snapshot import UpdateSnapshot
from nantrap.guard.window import Window
from nantrap.launch.loop import ScriptLoop


def step_with_closure(loop: ScriptLoop, run: Callable[[Callable[[], Any]], Any], closure: Callable[[], Any]) -> Any:
    """What `optimizer.step(closure)` returns, where the step is judged first.

    Args:
        loop: the guard of the optimizer.
        run: the call itself; takes the closure that is to be used.
        closure: the script's.
    """
    if loop.stopped is not None:
        loop.refuse_again()
    optimizer = loop.optimizer
    if type(optimizer).__module__.startswith("torch.optim") and not isinstance(optimizer, LBFGS):
        # it evaluates the closure once, before its update: done here, so that the loss is judged before it is used
        with torch.enable_grad():
            value = closure()
        loop.step(lambda: run(lambda: value))
        return value
    return _evaluated_step(loop, run, closure)


def _evaluated_step(loop: ScriptLoop, run: Callable[[Callable[[], Any]], Any], closure: Callable[[], Any]) -> Any:
    """An optimizer that evaluates the loss several times: a copy is taken, start and result are judged."""
    members = loop.parts.protected.members
    norms: list[Tensor] = []
    first: list[Window | None] = []

    def watched() -> Any:
        value = closure()
        if not norms:
            norms.append(finite.gradient_norm(members.gradients()))
            first.append(loop.collector.window)
        return value

    snapshot = UpdateSnapshot(members.parameters, loop.optimizer)
    snapshot.take()
    rates = current_rates(loop.optimizer)
    loop.evaluating = True  # the closure clears the gradients before each evaluation
    try:
        taken = run(watched)
    finally:
        loop.evaluating = False
    if first and first[0] is not None:
        loop.collector.window = first[0]
    loop.shared.asked.trained(taken)
    loop.shared.asked.tensors = []
    norm = finite.read(norms or [torch.zeros(())])[0]

    def judged(window: Window) -> Outcome:
        first = window.micros[0]
        first.values = finite.read(first.loss.scalars()) if first.values is None else first.values
        return judge_evaluations(loop.parts, loop.driver, window, norm, snapshot, rates)

    loop.step(lambda: taken, judge=judged)
    return taken
