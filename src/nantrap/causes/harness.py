"""The harnesses of trials: the failed step, and its update, run again. Each leaves everything as it found it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from nantrap.causes.changes import HALF_DTYPES, described
from nantrap.finite import any_nonfinite, clip_with_norm, gradient_norm
from nantrap.incident import Trial
from nantrap.locate.replay.replay import forward_and_backward
from nantrap.locate.wrapping import state_tensors, states_of

if TYPE_CHECKING:
    from nantrap.causes.case import Case

AS_IT_WAS = object()


@dataclass(frozen=True, slots=True)
class Rerun:
    """What a run of a step gave.

    Attributes:
        finite: loss, gradients, buffers and, after an update, parameters and optimizer state.
        loss: the loss, if it was computed.
        bad: the parameters whose gradients are non-finite.
        change: what was changed, where that is known only afterwards.
    """

    finite: bool
    loss: float | None = None
    bad: tuple[str, ...] = ()
    change: str = ""


_UNCHANGED = {
    "step": "nothing: the step as it was",
    "update": "nothing: the update as it was",
    "steps": "nothing: the steps since an older state as they were",
}


def control_trial(harness: str, reason: str, result: Rerun, milliseconds: float) -> Trial:
    """What an unchanged re-run gave, as it is recorded. Controls are not numbered.

    Args:
        harness: what was run.
        reason: why trials in it prove nothing; empty if they do.
        result: what the re-run gave.
        milliseconds: how long it took.
    """
    note = f"no trial counts: {reason}" if reason else "fails as it did: the trials count"
    return Trial(
        number=0,
        name=f"control:{harness}",
        change=_UNCHANGED[harness],
        finite=result.finite,
        loss=result.loss,
        note=note,
        milliseconds=milliseconds,
        harness=harness,
    )


def run_step(
    case: Case,
    *,
    around: contextlib.AbstractContextManager[Any] | None = None,
    seed: float | None = None,
    batch: Any = AS_IT_WAS,
    stop_early: bool = True,
) -> Rerun:
    """The failed step once more, and its update if that failed, with everything restored before and after it.

    Args:
        case: the failure.
        around: changes one thing while the step runs.
        seed: what the loss is multiplied by in backward.
        batch: another batch in place of the failed one.
        stop_early: whether a non-finite loss ends it.
    """
    failed = case.failure
    if failed.forward is None:
        raise LookupError("the two-line form cannot compute the loss again; guard.attempt can")
    if failed.crew is not None:
        description = described(around)
        if description is None:
            raise LookupError("it changes the weights, and each rank holds a part of them")
        own = None if batch is AS_IT_WAS else (batch,)
        return Rerun(*failed.crew.step(description, around, batch=own, seed=seed))
    with failed.rewound(), around or contextlib.nullcontext():
        given = failed.batch if batch is AS_IT_WAS else batch
        part = forward_and_backward(failed, given, seed=seed, stop_early=stop_early)
        if failed.can_update and part.finite:
            clip(case)
            part = part._replace(finite=update_is_finite(case))
        return Rerun(*part)


def clip(case: Case) -> None:
    """Clip the gradients that are there as the guard does."""
    parameters = list(case.failure.parameters.values())
    if case.run.max_grad_norm is not None:
        total = gradient_norm([p.grad for p in parameters if p.grad is not None])
        clip_with_norm(parameters, max_norm=case.run.max_grad_norm, total=total)


@contextlib.contextmanager
def update_rewound(case: Case) -> Iterator[None]:
    """The failed step's gradients in place for one update; everything is restored afterwards."""
    failed = case.failure
    with failed.rewound():
        for name, parameter in failed.parameters.items():
            gradient = failed.gradients.get(name)
            parameter.grad = None if gradient is None else gradient.clone()
        yield


def update_is_finite(case: Case) -> bool:
    """Run the update, and whether parameters and optimizer state are finite after it."""
    failed = case.failure
    failed.update()
    return not any_nonfinite([*failed.parameters.values(), *state_tensors(failed.optimizer)])


def loss_after(case: Case) -> float | None:
    """The loss of the batch after an update that evaluated it itself; of any other it is not computed. Call it inside
    `update_rewound`."""
    failed = case.failure
    if not failed.evaluated or failed.forward is None:
        return None
    return float(failed.forward(failed.batch).detach())


def update_in_float32(case: Case) -> bool:
    """Whether the update is finite with parameters, gradients and state in float32. Call it inside `update_rewound`."""
    failed = case.failure
    kept = [(p, p.data) for p in failed.parameters.values()]
    try:
        for parameter in failed.parameters.values():
            gradient = parameter.grad
            parameter.grad = None
            parameter.data = parameter.data.float()
            parameter.grad = None if gradient is None else gradient.float()
        for _, state in states_of(failed.optimizer):
            for key, value in state.items():
                if isinstance(value, Tensor) and value.dtype in HALF_DTYPES:
                    state[key] = value.float()
        return update_is_finite(case)
    finally:
        for parameter, data in kept:
            parameter.grad = None
            parameter.data = data
