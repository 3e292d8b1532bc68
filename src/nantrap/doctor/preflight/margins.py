"""How far a step is from breaking: how much learning rate, input scale and logit scale can grow; other random numbers.

A model that draws noise levels, dropout or masks gets their rare values one day.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from nantrap.doctor.preflight.edges import parts_of
from nantrap.doctor.preflight.report import PreflightCheck
from nantrap.doctor.preflight.subject import Subject, quiet, try_step
from nantrap.locate.batch import with_tensor

_DRAWS_NAME = "random draws"
_DRAWS = 64
_LOOKED_AT = 3
_DRAW_SECONDS = 5.0
_STEPS = 5
_DIVERGED = 10.0
"""A loss that is ten times the first one, and 10 above it, has diverged."""
_SECONDS = 10.0
"""How long one margin is searched."""
_MOST = 8
"""Powers of ten that are tried. A margin of 1e8 needs no further search."""


def check_margins(subject: Subject) -> Iterator[PreflightCheck]:
    """Three margins, each by powers of ten."""
    inputs = [tensor for part, _, tensor in parts_of(subject.batch) if part == "input"]
    rate = float(subject.optimizer.param_groups[0].get("lr", 0.0))
    yield _margin(
        "margin: learning rate",
        lambda factor: _trains(subject, factor),
        f"from {rate:g}, {_STEPS} steps",
        "ten times the learning rate diverges: lower it, or warm it up",
    )
    if inputs:
        yield _margin("margin: input scale", lambda factor: _holds(subject, inputs=factor), "one step")
    else:
        yield PreflightCheck("margin: input scale", "unjudged", "the batch has no input of floats")
    yield _margin("margin: logit scale", lambda factor: _holds(subject, logits=factor), "one step")


def _margin(
    name: str, holds: Callable[[float], bool], note: str, help_text: str = "little room for a bad batch"
) -> PreflightCheck:
    """The largest power of ten that holds, and the first that does not.

    ×10 is tried first, since that is what is judged, then the largest; in between the interval is halved.
    """
    begin = time.perf_counter()
    if not holds(10.0):
        values: dict[str, Any] = {"safe_factor": 1.0, "breaks_at": 10.0}
        return PreflightCheck(name, "warning", f"breaks already at ×10 ({note})", help_text, values)
    if holds(10.0**_MOST):
        values = {"safe_factor": 10.0**_MOST, "breaks_at": None}
        return PreflightCheck(name, "ok", f"×{10.0**_MOST:.0e} still holds ({note})", data=values)
    low, high = 1, _MOST
    while high - low > 1 and time.perf_counter() - begin < _SECONDS:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(10.0**middle) else (low, middle)
    limit = "" if high - low == 1 else f"; no closer in {_SECONDS:.0f} s"
    text = f"×{10.0**low:,.0f} holds, ×{10.0**high:,.0f} breaks ({note}{limit})"
    return PreflightCheck(name, "ok", text, data={"safe_factor": 10.0**low, "breaks_at": 10.0**high})


def _trains(subject: Subject, factor: float) -> bool:
    """Whether a few steps at a larger learning rate stay finite, and the loss near where it began."""
    fresh = subject.fresh()
    model, optimizer = fresh.model, fresh.optimizer
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * factor
    torch.manual_seed(0)
    with quiet():
        first = math.inf
        for _ in range(_STEPS):
            try:
                loss = fresh.total_loss(subject.batch)
                value = float(loss.detach())
                first = min(first, value) if math.isinf(first) else first
                if not math.isfinite(value) or value > max(_DIVERGED * first, first + _DIVERGED):
                    return False
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            except (RuntimeError, ValueError, ArithmeticError):  # a failed decomposition, or a check in the user's code
                return False
    return all(bool(parameter.isfinite().all()) for parameter in model.parameters())


def _holds(subject: Subject, *, inputs: float = 1.0, logits: float = 1.0) -> bool:
    """Whether loss and gradients stay finite with larger inputs or a larger output."""
    fresh = subject.fresh()
    model = fresh.model
    batch = subject.batch
    if inputs != 1.0:
        for part, _, tensor in parts_of(batch):
            if part == "input":
                batch = with_tensor(batch, tensor, tensor * inputs)
    if logits != 1.0:
        model.register_forward_hook(lambda _module, _args, output: _scaled(output, logits))
    torch.manual_seed(0)
    with quiet():
        try:
            loss = fresh.total_loss(batch)
            loss.backward()
        except (RuntimeError, ValueError, ArithmeticError):
            return False
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return bool(loss.isfinite()) and all(bool(gradient.isfinite().all()) for gradient in gradients)


def _scaled(output: Any, factor: float) -> Any:
    if isinstance(output, Tensor):
        return output * factor if output.is_floating_point() else output
    if isinstance(output, tuple) and not hasattr(output, "_fields"):
        return tuple(_scaled(part, factor) for part in output)
    return output


def check_draws(subject: Subject) -> PreflightCheck:
    """The loss of the same batch under other random numbers. The first bad one is made again as a step."""
    losses = _drawn_losses(subject)
    if not math.isfinite(losses[-1]):
        return _failed_draw(subject, seed=len(losses))
    if len(set(losses)) == 1:
        return PreflightCheck(_DRAWS_NAME, "unjudged", "the loss draws no random numbers")
    limit = f" (no more in {_DRAW_SECONDS:.0f} s)" if len(losses) < _DRAWS else ""
    text = f"{len(losses)} draws, loss {min(losses):.4g} to {max(losses):.4g}{limit}"
    return PreflightCheck(
        _DRAWS_NAME, "ok", text, data={"draws": len(losses), "least": min(losses), "largest": max(losses)}
    )


def _drawn_losses(subject: Subject) -> list[float]:
    """The loss after the seeds 1, 2, ...; up to the first that is not finite, or a few if all are equal."""
    fresh = subject.fresh()
    losses: list[float] = []
    begin = time.perf_counter()
    with quiet(), torch.no_grad():
        for seed in range(1, _DRAWS + 1):
            torch.manual_seed(seed)
            losses.append(float(fresh.total_loss(subject.batch)))
            constant = len(losses) == _LOOKED_AT and len(set(losses)) == 1
            if constant or not math.isfinite(losses[-1]) or time.perf_counter() - begin > _DRAW_SECONDS:
                break
    return losses


def _failed_draw(subject: Subject, *, seed: int) -> PreflightCheck:
    """The check that a draw failed: with its place and cause if the same seed breaks a step again."""
    result = try_step(subject, seed=seed)
    words = f"not finite after torch.manual_seed({seed})"
    if result.finite or result.error:  # it needs what the draws before it left behind
        return PreflightCheck(_DRAWS_NAME, "error", words, "a rare random value breaks the loss", {"seed": seed})
    help_text = result.help or "a rare random value breaks the loss"
    return PreflightCheck(
        _DRAWS_NAME, "error", f"{result.message}, {words}", help_text, {**result.values(), "seed": seed}
    )
