"""Faults of the mutual information: the product of two probabilities underflows."""

from __future__ import annotations

from torch import Tensor

from nantrap_systems.system import Fault, Remedy
from nantrap_systems.temi.faults.caution import CAUTION, OPEN_HEAD, caution, far_out


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
