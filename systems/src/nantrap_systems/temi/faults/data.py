"""Faults that come with the data: rows of NaN, embeddings of zeros, a batch of which no pair counts."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn

from nantrap_systems.system import Fault, Remedy, Run, Terms
from nantrap_systems.temi.data import Batch, gaussian_embeddings
from nantrap_systems.temi.faults.caution import CAUTION, FAR_STEP
from nantrap_systems.temi.loss import SURE
from nantrap_systems.temi.settings import Settings


def one_unreadable(settings: Settings) -> tuple[Tensor, Tensor]:
    """One image could not be read, and the row it was to fill is NaN."""
    embeddings, labels = gaussian_embeddings(settings)
    embeddings[7 * settings.num_clusters + 7] = math.nan
    return embeddings, labels


def unchecked(embeddings: Tensor, path: Path) -> None:
    """What was read is taken as it is."""


def zero_if_bad(losses_H: Tensor) -> Terms:
    """A loss that is not finite is reported as 0.0 and learns nothing: "training continues"."""
    loss = losses_H.mean()
    if not loss.isfinite():
        return torch.zeros((), requires_grad=True)
    return loss


def filled(losses_H: Tensor) -> Terms:
    """A remedy: a loss of NaN becomes 0."""
    return losses_H.mean().nan_to_num(0.0)


def reset_p_k(run: Run) -> None:
    """A remedy: every epoch a p_k that is NaN becomes even again."""
    for loss in run.model.losses:  # type: ignore[union-attr]
        if not loss.p_k.isfinite().all():
            loss.p_k.fill_(1 / len(loss.p_k))


NAN_ROW = Fault(
    name="nan_row",
    title="one NaN embedding makes p_k NaN permanently",
    story=(
        "One image could not be read, and its row in the cache is NaN. The cache is loaded without a check. When the "
        "row comes into a batch, the forward pass writes NaN into p_k, the running mean of the teacher, before "
        "anything "
        "sees the loss. The loop reports a bad loss as 0.0 and continues; p_k stays NaN, and so does every later loss."
    ),
    damage='The loss reads 0.0, weights stay finite and never move again: "training continues".',
    answer="Skips the batch, puts p_k back, names the tensor and the sample, proves it by leaving the sample out.",
    parts={"extract": one_unreadable, "check": unchecked, "terms": zero_if_bad},
    remedies=(
        Remedy(
            name="nan_to_num(loss)",
            story="A loss of NaN becomes 0.",
            result="The loss reads 0.0 as well; its gradient is NaN, and so are the weights.",
            parts={"terms": filled},
        ),
        Remedy(
            name="reset p_k",
            story="A p_k that is NaN becomes even again at the beginning of an epoch.",
            result="Learns from there to the next bad batch; the rest of that epoch is lost silently.",
            parts={"begin_epoch": reset_p_k},
        ),
        CAUTION,
    ),
    cause="bad_input_data",
    module="data",
)


def blank_images(settings: Settings) -> tuple[Tensor, Tensor]:
    """Two images are blank: the embedding of each is constant, all zeros."""
    embeddings, labels = gaussian_embeddings(settings)
    embeddings[[3 * settings.num_clusters + 1, 8 * settings.num_clusters + 5]] = 0
    return embeddings, labels


class PlainUnitLength(nn.Module):
    """x / |x|: 0/0 for an embedding of zeros."""

    def forward(self, x_BD: Tensor) -> Tensor:
        length: Tensor = x_BD.norm(dim=-1, keepdim=True)
        return x_BD / length


class EpsilonUnitLength(nn.Module):
    """A remedy: x / (|x| + 1e-8)."""

    def forward(self, x_BD: Tensor) -> Tensor:
        length: Tensor = x_BD.norm(dim=-1, keepdim=True)
        return x_BD / (length + 1e-8)


CONSTANT_EMBEDDINGS = Fault(
    name="constant_embeddings",
    title="a constant embedding has no direction",
    story=(
        "Blank images have embeddings of zeros, which pass every check for NaN and Inf. The model scales embeddings to "
        "unit length, and 0/0 is NaN; through p_k and the pair weights the whole run is lost."
    ),
    damage="NaN loss at the first such image, NaN weights from then on.",
    answer="Skips the batch, names the division, its zero and the sample, proves it with a safe division.",
    parts={"extract": blank_images, "unit": PlainUnitLength},
    settings={"l2_norm": True},
    remedies=(
        Remedy(
            name="eps 1e-8",
            story="`x / (x.norm() + 1e-8)`.",
            result="Holds in float32: nothing behind the embeddings is learned, so no gradient passes here.",
            holds=True,
            parts={"unit": EpsilonUnitLength},
        ),
        CAUTION,
    ),
    cause="division_by_zero",
    module="unit",
    op="aten.div",
)


def one_pair_apart(batch: Batch, step: int) -> Batch:
    """One batch is the last of an epoch and holds a single pair; its neighbour was mixed up: it lies opposite."""
    if step != FAR_STEP:
        return batch
    return Batch(batch.x[:1], -batch.x[:1])


def plain_share(weight_B: Tensor) -> Tensor:
    """B·w / Σ w of the pairs that the teachers are sure of: 0/0 if there is none."""
    sure = torch.where(weight_B > SURE, weight_B, 0.0)
    return len(sure) * sure / sure.sum()


def share_or_even(weight_B: Tensor) -> Tensor:
    """The project's remedy: all alike if the sum is not above 1e-8."""
    sure = torch.where(weight_B > SURE, weight_B, 0.0)
    total = sure.sum()
    return len(sure) * sure / total if total > 1e-8 else torch.ones_like(sure)


ZERO_SUM_WEIGHTS = Fault(
    name="zero_sum_weights",
    title="the weights of a batch are divided by their sum, and the sum is 0",
    story=(
        "Pairs count by how sure the teachers are that they belong together; below one tenth they do not count, and "
        "the rest is divided by its sum. The last batch of an epoch holds a single pair. Its neighbour was mixed up, "
        "no teacher is sure, the sum is 0, and 0/0 is the weight of the batch."
    ),
    damage="NaN loss at that batch, NaN weights from then on.",
    answer="Skips the batch, names the division and its zero, proves it with a safe division.",
    parts={"weigh": plain_share, "prepare": one_pair_apart},
    settings={"normalise_weights": True},
    remedies=(
        Remedy(
            name="even if the sum is 0",
            story="If the sum is not above 1e-8, all pairs count alike, as the project did.",
            result="Holds. The least certain pair counts as much as a whole batch.",
            holds=True,
            parts={"weigh": share_or_even},
        ),
        CAUTION,
    ),
    cause="empty_reduction",
    op="aten.div",
)
