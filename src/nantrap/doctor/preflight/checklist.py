"""`preflight`: every check in order; a check that fails does not stop the others."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from nantrap.doctor.preflight.compiled import Backend, check_compiled
from nantrap.doctor.preflight.drill import check_cost, check_guard, ranks_in_waiting
from nantrap.doctor.preflight.edges import check_edges
from nantrap.doctor.preflight.fresh_model import check_activations, check_first_loss, check_gradients, check_weights
from nantrap.doctor.preflight.margins import check_draws, check_margins
from nantrap.doctor.preflight.report import PreflightCheck, PreflightReport
from nantrap.doctor.preflight.subject import LossFunction, StepResult, Subject, make_subject, try_step
from nantrap.locate import RngState

_HALVES = (("bf16", torch.bfloat16), ("fp16", torch.float16))


def preflight(
    target: str | nn.Module | dict[str, Any] | Callable[[], Any],
    *,
    optimizer: Optimizer | None = None,
    batch: Any = None,
    loss: LossFunction | None = None,
    expected_loss: float | None = None,
    guard: bool = True,
    ranks: bool = False,
    compiled: Backend | None = None,
    on_check: Callable[[PreflightCheck], None] | None = None,
) -> PreflightReport:
    """Test a model before its first real step. Runs the user's code; trains only copies.

    Args:
        target: `"module:factory"`, a function without arguments, a dict with model, optimizer, batch and loss (a
            function of model and batch), or a module. What is missing has defaults: AdamW with learning rate 1e-3,
            random inputs of the first layer's size, the mean square of the output as the loss.
        optimizer: instead of the factory's.
        batch: instead of the factory's.
        loss: instead of the factory's.
        expected_loss: what the first loss should be, where it does not follow from the loss itself.
        guard: also find the margins, and show that the guard holds in this loop and what it costs: the longest part.
        ranks: also run the factory in two processes that average their gradients, with a fault on one of them; only
            for `"module:factory"`.
        compiled: also make the step compiled with this backend of `torch.compile` (`"inductor"`), and compare loss and
            gradients with the eager ones.
        on_check: called with each check as soon as it is made.

    Returns:
        A report; `.passed` is true if no check failed.

    Example:
        >>> import torch, nantrap
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> nantrap.preflight(model).passed
        True
    """
    begin = time.perf_counter()
    streams = RngState.capture()
    try:
        given = {"optimizer": optimizer, "batch": batch, "loss": loss, "expected_loss": expected_loss}
        subject = make_subject(target, given)
        checks = []
        drilled = target if ranks and isinstance(target, str) else ""
        for check in _all_checks(subject, guard=guard, drilled=drilled, compiled=compiled):
            checks.append(check)
            if on_check is not None:
                on_check(check)
    finally:
        streams.restore()
    return PreflightReport(subject.name, subject.describe(), tuple(checks), time.perf_counter() - begin)


def _all_checks(subject: Subject, *, guard: bool, drilled: str, compiled: Backend | None) -> Iterable[PreflightCheck]:
    """Every check in order; those that need a finite step are left out after a first step that is not."""
    for text in subject.defaults:
        yield PreflightCheck("default", "unjudged", f"not given, so: {text}")
    weights = list(_safely("initialisation", lambda: [check_weights(subject)]))
    yield from weights
    first = try_step(subject)
    if not first.finite:
        yield PreflightCheck("fp32", "error", first.message, first.help, first.values())
        if first.error:
            return  # no step can be made, so there is nothing more to learn
        if any(check.status == "fail" for check in weights):
            yield PreflightCheck(
                "other checks", "unjudged", "not made: with a weight that is not finite, every one of them fails"
            )
            return
    else:
        yield PreflightCheck("fp32", "ok", first.message, data=first.values())
    wanted = ranks_in_waiting(drilled) if drilled and guard and first.finite else contextlib.nullcontext()
    with wanted as ranks:
        yield from _further_checks(subject, first, guard=guard)
        if ranks is not None:
            yield from _safely("guard on two ranks", lambda: [ranks()])
    if first.finite and compiled is not None:
        yield from _safely("compiled", lambda: [check_compiled(subject, compiled)])
    if first.finite and guard:  # last, when no other process of ours runs
        yield from _safely("guard cost", lambda: [check_cost(subject)])


def _further_checks(subject: Subject, first: StepResult, *, guard: bool) -> Iterable[PreflightCheck]:
    """What is checked of a model that makes a step."""
    yield from _safely("first loss", lambda: [check_first_loss(subject)])
    yield from _safely("activation scale", lambda: [check_activations(subject)])
    yield from _safely("gradient flow", lambda: check_gradients(subject))
    for name, dtype in _HALVES:
        yield from _new_failures(_safely(name, functools.partial(_half, subject, name, dtype)), first)
    yield from _new_failures(_safely("edges", lambda: check_edges(subject)), first)
    if first.finite:
        yield from _safely("random draws", lambda: [check_draws(subject)])
    if first.finite and guard:
        yield from _safely("margins", lambda: check_margins(subject))
        yield from _safely("guard", lambda: [check_guard(subject)])


def _half(subject: Subject, name: str, dtype: torch.dtype) -> Iterable[PreflightCheck]:
    """One step under autocast."""
    result = try_step(subject, autocast=dtype)
    if result.finite:
        yield PreflightCheck(name, "ok", f"{result.message} (autocast)", data=result.values())
    elif result.error:
        yield PreflightCheck(name, "unjudged", f"cannot run here: {result.error}", data=result.values())
    else:
        yield PreflightCheck(name, "warning", f"{result.message} (autocast)", result.help, result.values())


def _new_failures(checks: Iterable[PreflightCheck], first: StepResult) -> Iterable[PreflightCheck]:
    """A step that fails on the batch itself fails on every variation of it too; that is said once."""
    for check in checks:
        same = all(check.values.get(key) == first.values()[key] for key in ("cause", "where"))
        if not first.finite and check.status in ("warn", "fail") and same:
            yield PreflightCheck(check.name, "unjudged", "fails as the batch itself does", data=check.values)
        else:
            yield check


def _safely(name: str, make: Callable[[], Iterable[PreflightCheck]]) -> Iterable[PreflightCheck]:
    """A check that raises becomes a failed check."""
    try:
        yield from make()
    except Exception as error:
        text = f"the check could not be made: {type(error).__name__}: {str(error).partition(chr(10))[0][:160]}"
        yield PreflightCheck(name, "warning", text)
