"""NT5xx: a run that is finite and learns nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap.causes.claim import Claim
from nantrap.causes.registry import rule

if TYPE_CHECKING:
    from nantrap.causes.case import Case

_STILL = 8


@rule("dead_training")
def dead_training(case: Case) -> Claim | None:
    """Nothing is learned: the updates are exactly zero.

    The run looks healthy and learns nothing. No gradient reaches the parameters (a `detach`, a frozen layer, a dead
    ReLU), or the update is 0: an Inf in Adam's second moment divides every later update to nothing, a clipped gradient
    of infinite norm is multiplied by 0.

    Example:
        import torch

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [torch.randn(4, 3) for _ in range(12)]
        batches[11][0] = float("nan")  # the run stopped learning long before this

        def loss_fn(batch):
            return (model(batch).detach() + 0 * model.weight.sum()).square().mean()  # no gradient reaches the model

    Why:
        A gradient of 0 is a valid gradient. Nothing raises, the loss is finite, and the curves are flat.

    Fix:
        Find where the gradient ends:

            - loss = (model(x).detach() - y).square().mean()
            + loss = (model(x) - y).square().mean()

        For an Inf in the optimizer's state: restore an older state, or `optimizer.state.clear()`. A higher learning
        rate does not help, 0 times anything is 0.

    Proof:
        The gradient norm was exactly 0 in the last eight steps or more, while the loss was finite; the first of those
        steps is named. It is listed below the cause of the failure, since it does not cause a NaN.
    """
    applied = case.history.applied()
    still = [record for record in applied[-_STILL:] if record.grad_norm == 0]
    if len(applied) < _STILL or len(still) < _STILL:
        return None
    first, count = applied[-1].step, 0
    for record in reversed(applied):
        if record.grad_norm != 0:
            break
        first, count = record.step, count + 1
    return Claim(
        "hint",
        f"nothing has been learned since step {first:,}: the gradient norm is exactly 0",
        (),
        history=(f"the gradient norm is exactly 0 in each of the last {count:,} steps",),
        help="look for a detach, a frozen layer or a term without a graph between the loss and the parameters",
    )
