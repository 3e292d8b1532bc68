"""Cross-entropy of batches in which every label may be ignored."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from nantrap.ops.elementary import safe_divide
from nantrap.ops.precision import widen


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum", "none"] = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """`torch.nn.functional.cross_entropy` for class indices; with every label ignored it is 0 with gradient 0.

    torch divides the sum by the number of labels that count: 0/0 for a batch of nothing but padding, and the NaN loss
    spoils the running mean, the scheduler and the other terms. And an ignored row whose logits are NaN has a NaN
    gradient, since its softmax is multiplied by 0, not left out. Half precision is computed in float32 and the loss
    stays there.

    Args:
        logits: [N, C, ...] or [C].
        target: Class indices, [N, ...] or a scalar; a label outside [0, C) raises as in torch.
        weight: [C], or none. If all labels that count have weight 0, the mean is 0.
        ignore_index: The label that does not count.
        reduction: As in torch.
        label_smoothing: As in torch.

    Example:
        >>> logits = torch.zeros(2, 4, requires_grad=True)
        >>> loss = cross_entropy(logits, torch.tensor([-100, -100]))
        >>> loss.item(), torch.autograd.grad(loss, logits)[0].abs().sum().item()
        (0.0, 0.0)
    """
    if target.is_floating_point():
        raise ValueError(
            f"the target is {target.dtype}, but must hold class indices; "
            "for probabilities use -(target * log_p).sum() with nantrap.ops.masked_log_softmax"
        )
    counts = target != ignore_index
    class_dim = min(1, logits.dim() - 1)
    wide: Tensor = _StopGradient.apply(widen(logits), counts.unsqueeze(class_dim))  # type: ignore[no-untyped-call]
    wide_weight = None if weight is None else weight.to(wide.dtype)
    loss = F.cross_entropy(
        wide,
        target,
        weight=wide_weight,
        ignore_index=ignore_index,
        reduction="none" if reduction == "none" else "sum",
        label_smoothing=label_smoothing,
    )
    if reduction != "mean":
        return loss
    if wide_weight is None:
        return loss / counts.sum().clamp(min=1)
    return safe_divide(loss, torch.where(counts, wide_weight[torch.where(counts, target, 0)], 0.0).sum())


class _StopGradient(torch.autograd.Function):
    """The identity; backward, only the rows that count get through.

    torch leaves ignored rows out of the value already, so only their gradient needs a selection. Selecting the logits
    themselves would cost a pass over [N, C] in both directions.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: Tensor) -> Tensor:
        ctx.save_for_backward(counts)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (counts,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted
            return torch.where(counts, grad, 0.0), None
        # In place: this gradient comes fresh from torch's cross-entropy, which alone has seen our output.
        return grad.masked_fill_(~counts, 0.0), None
