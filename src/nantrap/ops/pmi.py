"""The pointwise mutual information of self-distillation clustering (TEMI), in log space."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nantrap.ops.elementary import safe_log
from nantrap.ops.precision import widen
from nantrap.ops.temperature import temperature_log_softmax


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
