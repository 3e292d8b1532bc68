"""Losses: cross-entropy with ignored labels, CTC with targets that do not fit, the KL of a Gaussian, and beta-PMI."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from nantrap.ops.distributions import temperature_log_softmax
from nantrap.ops.elementary import safe_divide, safe_log
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


_LOWEST_LOG_PROBABILITY = -1e4


def ctc_feasible(
    targets: Tensor, input_lengths: Tensor | Sequence[int], target_lengths: Tensor | Sequence[int]
) -> Tensor:
    """Which targets fit: input length ≥ target length + number of neighbours that are equal.

    CTC puts a blank between two equal labels, so "AAB" needs 4 frames, not 3.

    Args:
        targets: [B, S], padded.
        input_lengths: [B].
        target_lengths: [B].

    Returns:
        Boolean, [B].

    Example:
        >>> ctc_feasible(torch.tensor([[1, 1, 2], [1, 2, 3]]), [3, 3], [3, 3])
        tensor([False,  True])
    """
    if targets.dim() != 2:
        raise ValueError(
            f"targets have shape {tuple(targets.shape)}, but must be padded to [batch, length]; "
            "torch.nn.utils.rnn.pad_sequence(list_of_targets, batch_first=True) does it"
        )
    inputs = torch.as_tensor(input_lengths, device=targets.device)
    lengths = torch.as_tensor(target_lengths, device=targets.device)
    position = torch.arange(1, targets.shape[1], device=targets.device)
    repeats = ((targets[:, 1:] == targets[:, :-1]) & (position < lengths[:, None])).sum(1)
    return inputs >= lengths + repeats


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    *,
    blank: int = 0,
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> Tensor:
    """`torch.nn.functional.ctc_loss` over the samples whose target fits; the others are 0 with gradient 0.

    A target that does not fit has probability 0: loss Inf, gradient NaN. torch's `zero_infinity=True` hides it, still
    divides by the whole batch, and lets through the NaN gradient of a log-probability of -Inf, even of a class that no
    target uses. Here the mean is over the samples that fit (`ctc_feasible` says which do not), what an infeasible
    sample holds reaches nothing, and log-probabilities below -10,000 count as -10,000 with gradient 0.

    torch's CTC kernel has no second derivative, and `torch.compile` breaks its graph at it.

    Args:
        log_probs: [T, B, C], from log_softmax. Half precision is computed in float32 and the loss stays there.
        targets: [B, S], padded.
        input_lengths: [B].
        target_lengths: [B].
        blank: The class of the blank.
        reduction: "mean" divides each loss by its target length first, as in torch.

    Example:
        >>> log_probs = torch.zeros(2, 2, 3).log_softmax(-1)
        >>> ctc_loss(log_probs, torch.tensor([[1, 1], [1, 2]]), (2, 2), (2, 2), reduction="none")
        tensor([0.0000, 2.1972])
    """
    if log_probs.dim() != 3:
        raise ValueError(f"log_probs have shape {tuple(log_probs.shape)}, but must be [time, batch, classes]")
    fits = ctc_feasible(targets, input_lengths, target_lengths)
    wide = torch.where(fits[:, None], widen(log_probs), 0.0)
    losses = F.ctc_loss(
        F.threshold(wide, _LOWEST_LOG_PROBABILITY, _LOWEST_LOG_PROBABILITY),
        targets,
        input_lengths,  # type: ignore[arg-type]  # torch's stub forgets the tuple
        target_lengths,  # type: ignore[arg-type]
        blank=blank,
        reduction="none",
        zero_infinity=True,
    )
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    lengths = torch.as_tensor(target_lengths, device=losses.device).clamp(min=1)
    return (losses / lengths).sum() / fits.sum().clamp(min=1)


def kl_divergence(
    mu: Tensor, logvar: Tensor, *, reduction: Literal["mean", "sum", "none"] = "mean", limit: float = 20.0
) -> Tensor:
    """KL(N(μ, σ²) ‖ N(0, 1)) = ½(μ² + σ² - 1 - log σ²), with σ² = exp(logvar) continued as a line above the limit.

    exp overflows above 88.7, in float16 above 11.09. Clamping the log-variance stops that, but gives it gradient 0
    beyond the clamp: it can never come back. Here e^l continues as its tangent e^limit·(1 + l - limit), which is
    finite, continuous in value and slope, and still pulls back. Below there is no limit: -log σ² is a line already.
    `expm1` keeps the digits of σ² - 1 near σ = 1.

    Args:
        mu: The mean. Half precision is computed in float32 and the result stays there.
        logvar: The log-variance, of the same shape.
        reduction: "none" keeps the shape.
        limit: The log-variance from which the exponential is a line.

    Example:
        >>> kl_divergence(torch.zeros(2), torch.tensor([0.0, 1000.0])).isfinite()
        tensor(True)
    """
    spread: Tensor = _Spread.apply(widen(logvar), limit)  # type: ignore[no-untyped-call]
    doubled = widen(mu).square() + spread
    if reduction == "none":
        return 0.5 * doubled
    return 0.5 * (doubled.sum() if reduction == "sum" else doubled.mean())


class _Spread(torch.autograd.Function):
    """f(l) = e^l - 1 - l, above the limit its tangent; f'(l) = e^min(l, limit) - 1."""

    @staticmethod
    def forward(ctx: Any, logvar: Tensor, limit: float) -> Tensor:
        below = logvar.clamp(max=limit)
        slope = below.expm1()
        ctx.save_for_backward(logvar, slope)
        ctx.limit = limit
        # (e^b - 1) - b + (e^limit - 1)·a. Not - l, which would be Inf - Inf for a log-variance of Inf.
        above = (logvar - limit).clamp_(min=0)
        return above.mul_(math.expm1(limit)).sub_(below).add_(slope)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        logvar, slope = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted, and the kept slope is a constant
            slope = logvar.clamp(max=ctx.limit).expm1()
        return grad * slope, None


def beta_pmi(
    student_logits: Tensor,
    teacher_logits: Tensor,
    cluster_probability: Tensor,
    *,
    beta: float = 0.6,
    student_temperature: float | Tensor = 0.1,
    teacher_temperature: float | Tensor = 0.04,
) -> Tensor:
    """log Σ_k (p_s·p_t)^β / p_k = logsumexp_k(β(log p_s + log p_t) - log p_k), with p = softmax(z/T).

    p_s·p_t underflows to 0 once gap/T_s + gap/T_t exceeds about 103, a gap of 3 between logits at these temperatures,
    and the slope of x^β at 0 is infinite for β < 1: a NaN gradient under a finite loss. `clamp(1e-8)` removes the
    gradient of exactly the pairs that disagree. The threshold is the same for every β from 1/7 to below 1; smaller ones
    reach it earlier, since x^(β-1) overflows before x is 0. In log space nothing underflows.

    Args:
        student_logits: [..., K]; half precision is computed in float32 and the result stays there.
        teacher_logits: [..., K].
        cluster_probability: p_k, [K] or [..., K]. A dead cluster's 0 counts as the smallest normal number.
        beta: 1 is the plain mutual information; smaller values even the clusters out.
        student_temperature: T_s.
        teacher_temperature: T_t.

    Returns:
        [...], one value a pair. The loss is its negative.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0]], requires_grad=True)
        >>> pmi = beta_pmi(logits, torch.tensor([[0.0, 4.0]]), torch.tensor([0.5, 0.5]))
        >>> torch.autograd.grad(pmi.sum(), logits)
        (tensor([[-6.,  6.]]),)
    """
    log_student = temperature_log_softmax(widen(student_logits), student_temperature)
    log_teacher = temperature_log_softmax(widen(teacher_logits), teacher_temperature)
    # A quarter of the lowest number: the sum of two, times β, still fits, so no row is -inf throughout.
    lowest = torch.finfo(log_student.dtype).min / 4
    joint = F.threshold(log_student, lowest, lowest) + F.threshold(log_teacher, lowest, lowest)
    return torch.logsumexp(beta * joint - safe_log(widen(cluster_probability)), -1)
