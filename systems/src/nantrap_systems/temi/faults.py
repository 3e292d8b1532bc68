"""The faults of temi, each a few lines that take the place of a repaired part, and what was tried against them.

A part is written as one finds it in projects: the same arguments, the same weights, another line in the middle.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn

from nantrap.ops import beta_pmi
from nantrap_systems.system import Fault, Remedy, Run, Terms, lower_rate_and_clip
from nantrap_systems.temi.data import Batch, gaussian_embeddings
from nantrap_systems.temi.loss import SURE
from nantrap_systems.temi.model import Head, Pmi, small_weights
from nantrap_systems.temi.settings import Settings
from nantrap_systems.updates import step_and_clear

# ---- what the faults share: open logits, a far-out embedding, the remedy that is tried first

OPEN_HEAD = {
    "norm_bottleneck": False,
    "init_std": 0.03,
    "teacher_temp": 0.04,
    "learning_rate": 2e-3,
    "schedule_steps": 60,
    "outliers": 0,
}
"""Without unit length in front of the last layer: logits grow with the embedding."""

FAR_STEP = 16
"""The step in which an embedding lies far out."""


def far_out(batch: Batch, step: int, *, times: float = 100.0) -> Batch:
    """In one step of the run an embedding is a hundred times as large as the others: its logits lie as far apart."""
    if step != FAR_STEP:
        return batch
    x = batch.x.clone()
    x[5] *= times
    return batch._replace(x=x)


def caution(rate: float, *, result: str = "Touches nothing of the fault.") -> Remedy:
    """What is usually tried first."""
    story = "A tenth of the learning rate, a tenth of the norm, half the batch."
    settings = {"learning_rate": rate, "clip_grad": 0.1, "batch_size": 64}
    return lower_rate_and_clip(settings, story=story, result=result)


CAUTION = caution(4e-4)


# ---- the mutual information: the product of two probabilities underflows


def product_pmi(
    student_BK: Tensor,
    teacher_BK: Tensor,
    p_k: Tensor,
    *,
    beta: float,
    student_temperature: float,
    teacher_temperature: float,
) -> Tensor:
    """log Σ_k (p_s·p_t)^β / p_k as the formula has it: the product underflows, and x^β has an infinite slope at 0."""
    p_s = (student_BK / student_temperature).softmax(-1)
    p_t = (teacher_BK / teacher_temperature).softmax(-1)
    return ((p_s * p_t) ** beta / p_k).sum(-1).log()


def clamped_pmi(
    student_BK: Tensor,
    teacher_BK: Tensor,
    p_k: Tensor,
    *,
    beta: float,
    student_temperature: float,
    teacher_temperature: float,
) -> Tensor:
    """A remedy: products below 1e-8 count as 1e-8. Where a clamp acts there is no gradient."""
    p_s = (student_BK / student_temperature).softmax(-1)
    p_t = (teacher_BK / teacher_temperature).softmax(-1)
    return ((p_s * p_t).clamp(min=1e-8) ** beta / p_k).sum(-1).log()


def half_pmi(
    student_BK: Tensor,
    teacher_BK: Tensor,
    p_k: Tensor,
    *,
    beta: float,
    student_temperature: float,
    teacher_temperature: float,
    floor: float = 1e-8,
) -> Tensor:
    """The clamped one in the precision of the logits: in float16 a floor of 1e-8 is 0."""
    p_s = (student_BK / student_temperature).softmax(-1).to(student_BK.dtype)
    p_t = (teacher_BK / teacher_temperature).softmax(-1).to(teacher_BK.dtype)
    return ((p_s * p_t).clamp(min=floor) ** beta / p_k).sum(-1).log()


def half_pmi_larger_floor(student_BK: Tensor, teacher_BK: Tensor, p_k: Tensor, **options: float) -> Tensor:
    """A remedy: a floor that float16 can hold."""
    return half_pmi(student_BK, teacher_BK, p_k, floor=1e-6, **options)


UNDERFLOW = Fault(
    name="underflow",
    title="the product of two probabilities underflows: a NaN gradient under a finite loss",
    story=(
        "p_s·p_t is 0 in float32 once the logit of a cluster lies so far below the best that gap/T_s + gap/T_t exceeds "
        "103: a gap of 3 at the usual temperatures. The loss does not notice, the other clusters carry the sum. But "
        "the slope of x^0.6 at 0 is infinite, Inf · 0 is NaN, and clipping spreads it to all heads. It begins with one "
        "far-out embedding after a long healthy time: here one of step 16 is a hundred times as large as the others."
    ),
    damage="A finite loss on the step whose gradient is NaN, NaN in every weight from there on.",
    answer="Skips such steps, names the power, the head and the sample, proves it with a slope that is bounded at 0.",
    parts={"pmi": product_pmi, "prepare": far_out},
    settings=OPEN_HEAD,
    remedies=(
        Remedy(
            name="clamp(1e-8)",
            story="`(p_s * p_t).clamp(min=1e-8)`.",
            result=(
                "Holds in float32, at a price that this run does not show: a pair that disagrees in all clusters gets "
                "a gradient of exactly 0. In float16 it does not clamp."
            ),
            holds=True,
            parts={"pmi": clamped_pmi},
        ),
        Remedy(
            name="beta 0.3",
            story="A lower β, to soften the loss.",
            result="The product underflows at the same gap: the same step is lost.",
            settings={"beta": 0.3},
        ),
        Remedy(
            name="warmer teacher",
            story="T_t from 0.04 to 0.05.",
            result="Moves the threshold from a gap of 2.9 to 3.4: the same step is lost.",
            settings={"teacher_temp": 0.05},
        ),
        caution(2e-4),
    ),
    cause="singular_gradient_at_zero",
    module="losses.*",
    op="aten.pow",
)

HALF_CLAMP = Fault(
    name="half_clamp",
    title="a floor of 1e-8 is 0 in float16",
    story=(
        "The clamp that helps in float32, in mixed precision: in float16 1e-8 is 0 and the product underflows at a gap "
        "sum of 17 already, so that x^0.6 is taken at 0 in the first step. The GradScaler takes the NaN gradient "
        "for an overflow, skips the step and halves its scale, repeatedly."
    ),
    damage="Finite loss, finite weights, and not one step is applied; the loss scale falls towards 0.",
    answer="Stops after its budget, names the power, the head and the floor that is 0, proves it by a run in float32.",
    parts={"pmi": half_pmi},
    settings={"mixed_precision": "fp16", "num_heads": 4, "batch_size": 64},
    remedies=(
        Remedy(
            name="floor 1e-6",
            story="A floor that float16 can hold.",
            result="Holds: 1e-6^-0.4 is 250, well within float16. Pairs that disagree get no gradient, as before.",
            holds=True,
            parts={"pmi": half_pmi_larger_floor},
        ),
        CAUTION,
    ),
    cause="eps_underflow_half",
    module="losses.*",
    op="aten.pow",
    gone_from=(2, 15),
    gone_because="its clamp has a slope of 0 at its bound, so that the infinite slope of the power is never used",
)


# ---- the data: rows of NaN, embeddings of zeros, a batch of which no pair counts


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


# ---- the heads: some of them die, and means over the others hide it


def old_in_every_second(number: int) -> Pmi:
    """The formula was repaired in the class; every second head is still made from an older copy of it."""
    return product_pmi if number % 2 else beta_pmi


def finite_heads(values_H: Tensor) -> Tensor:
    """The mean over those heads that are not NaN."""
    return values_H.nanmean(0)


def finite_terms(losses_H: Tensor) -> Terms:
    """The same mean as terms by name: heads that are NaN are left out of the loss."""
    alive = {f"head{number}": loss for number, loss in enumerate(losses_H) if not loss.isnan()}
    return {name: loss / len(alive) for name, loss in alive.items()}


def clip_each_head(run: Run) -> bool:
    """Every head clipped by its own norm, so that no head spoils the others."""
    assert run.max_grad_norm is not None
    for head in run.model.heads:  # type: ignore[union-attr]
        nn.utils.clip_grad_norm_(head.parameters(), run.max_grad_norm)
    return step_and_clear(run)


def replace_dead_heads(run: Run) -> None:
    """A remedy: every epoch a head that is NaN gets new weights. What AdamW remembers of it is still NaN."""
    for head in run.model.heads:  # type: ignore[union-attr]
        if any(not parameter.isfinite().all() for parameter in head.parameters()):
            for layer in (layer for layer in head.modules() if isinstance(layer, nn.Linear)):
                layer.reset_parameters()
            with torch.no_grad():
                nn.init.ones_(head.scale)
                nn.init.normal_(head.direction, std=0.1)


DEAD_HEADS = Fault(
    name="dead_heads",
    title="some heads go NaN, and means over the others hide it",
    story=(
        "The same underflow, in every second head: the formula was repaired, but those heads are made from an older "
        "copy. And the loop was made robust: the loss and the pair weights are means over the heads that are not NaN, "
        "and every head is clipped by its own norm. So a bad head no longer spoils the others. It only dies."
    ),
    damage="A finite loss in every step, and half of the heads are NaN.",
    answer=(
        "Names the bad heads and the line, leaves those heads out of that step and applies it with the good ones "
        '(`Policy(bad_terms="drop")`); all heads stay alive.'
    ),
    parts={
        "pmi_of": old_in_every_second,
        "prepare": far_out,
        "over_heads": finite_heads,
        "terms": finite_terms,
        "update": clip_each_head,
    },
    settings=OPEN_HEAD,
    remedies=(
        Remedy(
            name="new weights",
            story="Every epoch a dead head gets new weights.",
            result="NaN after its first step: what AdamW and the teacher remember of it is still NaN.",
            parts={"begin_epoch": replace_dead_heads},
        ),
        caution(2e-4),
    ),
    cause="singular_gradient_at_zero",
    module="losses.*",
    op="aten.pow",
    policy={"bad_terms": "drop"},
)


# ---- the first batch: how the weights are drawn


def large_weights(head: Head, std: float) -> None:
    """Weights of deviation 1, where a small one was meant."""
    small_weights(head, 1.0)


def clipped_pmi(
    student_BK: Tensor,
    teacher_BK: Tensor,
    p_k: Tensor,
    *,
    beta: float,
    student_temperature: float,
    teacher_temperature: float,
    clip_min: float = -100.0,
) -> Tensor:
    """A remedy: a floor of -100 for the logarithm, in the place of -inf. Its slope at 0 is still infinite."""
    pmi = product_pmi(
        student_BK,
        teacher_BK,
        p_k,
        beta=beta,
        student_temperature=student_temperature,
        teacher_temperature=teacher_temperature,
    )
    return pmi.clamp(min=clip_min)


LARGE_WEIGHTS = Fault(
    name="large_weights",
    title="NaN from the first batch: weights drawn with a deviation of 1",
    story=(
        "A deviation of 1 where 0.03 was meant makes logits of a hundred. Every p_s·p_t of a pair that disagrees is 0, "
        "so is their sum, and its logarithm is -Inf; where the pair's weight is 0 as well, 0 · Inf is NaN."
    ),
    damage="NaN loss in the first step, NaN weights from then on.",
    answer="Stops after its budget and names the logarithm of zero; rescaled weights are tried and do not help.",
    parts={"pmi": product_pmi, "initialise": large_weights},
    settings=OPEN_HEAD,
    remedies=(
        Remedy(
            name="clip_min -100",
            story="`.log().clamp(min=clip_min)` with a clip_min of -100, and not -inf.",
            result="The loss of the first step is finite, its gradient is 0 · Inf: the weights are NaN after it.",
            parts={"pmi": clipped_pmi},
        ),
        caution(2e-4),
    ),
    cause="log_of_zero",
    module="losses.0",
    op="aten.log",
)


def zero_prototypes(head: Head, std: float) -> None:
    """The last layer set to zero, as is often done with last layers. Under weight norm that is v/|v| = 0/0."""
    small_weights(head, std)
    nn.init.zeros_(head.direction)


def every_weight_drawn(head: Head, std: float) -> None:
    """A remedy: draw every matrix again, by xavier. The last layer's weight is computed, so it stays as it was."""
    zero_prototypes(head, std)
    for layer in head.modules():
        if isinstance(layer, nn.Linear):
            with torch.no_grad():
                nn.init.xavier_uniform_(layer.weight, gain=0.1)


ZERO_PROTOTYPES = Fault(
    name="zero_prototypes",
    title="NaN from the first batch: a last layer of zeros under weight norm",
    story=(
        "Last layers are often set to zero at the start. This one is weight-normed, g·v/|v|: with v = 0 its weight is "
        "0/0 before any data came in."
    ),
    damage="NaN loss in the first step, NaN weights from then on.",
    answer="Stops after its budget and names the weight norm of the head, with the rows of v that are zero.",
    parts={"initialise": zero_prototypes},
    remedies=(
        Remedy(
            name="xavier",
            story="Every matrix is drawn again, with a small gain.",
            result="The weight of the last layer is computed from g and v: what is drawn into it is thrown away.",
            parts={"initialise": every_weight_drawn},
        ),
        CAUTION,
    ),
    cause="division_by_zero",
    module="heads.0.prototypes*",
    op="aten._weight_norm_interface",
)

FAULTS = (
    UNDERFLOW,
    NAN_ROW,
    DEAD_HEADS,
    HALF_CLAMP,
    CONSTANT_EMBEDDINGS,
    ZERO_SUM_WEIGHTS,
    LARGE_WEIGHTS,
    ZERO_PROTOTYPES,
)
