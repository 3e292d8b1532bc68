"""The loss: over heads h and both directions of a pair (x, x'), with a teacher that is an average of the student,

    p = softmax(z/T)      PMI_β = log Σ_k (p_s(k|x)·p_t(k|x'))^β / p_k      loss = -w·PMI_β

where w, the same for all heads, is the mean over the teachers of Σ_k p_t(k|x)·p_t(k|x'): pairs that belong together
count more. And the evaluation: the same on held-out pairs, and the purity of the best head's clusters.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from nantrap.ops import safe_divide
from nantrap_systems.precision import autocast
from nantrap_systems.system import Evaluation
from nantrap_systems.temi.data import Batch
from nantrap_systems.temi.model import Temi, teacher_probabilities

OverHeads = Callable[[Tensor], Tensor]
"""The mean over the first dimension, the heads."""


Weigh = Callable[[Tensor], Tensor]
"""The weights of the pairs of a batch [B], as they are used."""


def as_they_are(weight_B: Tensor) -> Tensor:
    """Every pair by its own weight, whatever the others have."""
    return weight_B


SURE = 0.1
"""With `normalise_weights`, pairs of which the teachers are less sure than this do not count."""


def share_of_sure_pairs(weight_B: Tensor) -> Tensor:
    """B·w / Σ w of the pairs that the teachers are sure of; 0 if there is none."""
    sure = torch.where(weight_B > SURE, weight_B, 0.0)
    return len(sure) * safe_divide(sure, sure.sum())


def mean_of_heads(values_H: Tensor) -> Tensor:
    """The mean over heads: one bad head is seen in it."""
    return values_H.mean(0)


def head_losses(
    model: Temi,
    teacher: nn.Module,
    batch: Batch,
    *,
    dtype: torch.dtype | None = None,
    over_heads: OverHeads = mean_of_heads,
    weigh: Weigh = as_they_are,
) -> Tensor:
    """The loss of every head, [H]. In training mode this also updates every p_k."""
    both = torch.cat(batch)
    with autocast(dtype):
        student_H2BK = model(both).unflatten(1, (2, -1))
        with torch.no_grad():
            teacher_H2BK = teacher(both).unflatten(1, (2, -1))
        weight_B = weigh(over_heads(pair_weights(model, teacher_H2BK)))
        found = [
            loss(student, target, weight_B)
            for loss, student, target in zip(model.losses, student_H2BK, teacher_H2BK, strict=True)
        ]
    return torch.stack(found)


def pair_weights(model: Temi, teacher_H2BK: Tensor) -> Tensor:
    """w of every head, [H, B]: how sure its teacher is that both points are of one cluster."""
    probabilities = teacher_probabilities(teacher_H2BK, model.settings.teacher_temp)
    return (probabilities[:, 0] * probabilities[:, 1]).sum(-1)


@torch.no_grad()
def evaluate(
    model: Temi,
    teacher: nn.Module,
    held_out: Batch,
    labels: Tensor,
    *,
    dtype: torch.dtype | None = None,
    over_heads: OverHeads = mean_of_heads,
) -> Evaluation:
    """The mean loss of the heads, and the purity of the head with the lowest one."""
    model.eval()
    losses = head_losses(model, teacher, held_out, dtype=dtype, over_heads=over_heads).float()
    with autocast(dtype):
        logits_HBK = model(held_out.x).float()
    model.train()
    best = int(losses.nan_to_num(nan=torch.inf).argmin())
    return Evaluation(over_heads(losses).item(), purity(logits_HBK[best], labels))


def purity(logits_BK: Tensor, labels_B: Tensor) -> float:
    """The share of points whose true cluster is the most frequent one of the cluster they were put in; NaN is wrong."""
    fine = logits_BK.isfinite().all(-1)
    found, true = logits_BK[fine].argmax(-1), labels_B[fine]
    table = torch.zeros(logits_BK.shape[-1], int(labels_B.max()) + 1)
    table.index_put_((found, true), torch.ones(len(found)), accumulate=True)
    return float(table.amax(1).sum()) / len(labels_B)
