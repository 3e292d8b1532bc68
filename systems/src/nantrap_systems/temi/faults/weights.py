"""Faults of the first batch: how the weights are drawn."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nantrap_systems.system import Fault, Remedy
from nantrap_systems.temi.faults.caution import CAUTION, OPEN_HEAD, caution
from nantrap_systems.temi.faults.product import product_pmi
from nantrap_systems.temi.model import Head, small_weights


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
