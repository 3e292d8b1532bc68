"""Faults of arithmetic: a Sinkhorn of exponentials, frames without contrast, a tiny epsilon, CTC without room."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nantrap.ops import RMSNorm
from nantrap_systems.restran_mhc.faults.caution import CAUTION, UNSCALED
from nantrap_systems.restran_mhc.mhc import HyperConnection
from nantrap_systems.system import Fault, Remedy, Run, step_and_clear

# ---- Sinkhorn


class ExpSinkhorn(nn.Module):
    """exp, then rows and columns divided by their sums in turn: Inf above 88.7, 0/0 for a row below -103."""

    def forward(self, logits_BNN: Tensor) -> Tensor:
        matrix = logits_BNN.exp()
        for _ in range(20):
            matrix = matrix / matrix.sum(-1, keepdim=True)
            matrix = matrix / matrix.sum(-2, keepdim=True)
        return matrix


class FilledSinkhorn(ExpSinkhorn):
    """A remedy: NaN becomes 1/n. The divisions have kept theirs for the backward pass."""

    def forward(self, logits_BNN: Tensor) -> Tensor:
        matrix = super().forward(logits_BNN)
        return torch.where(matrix.isnan(), 1 / matrix.shape[-1], matrix)


class ShiftedSinkhorn(ExpSinkhorn):
    """A remedy: the largest logit is taken off first. No Inf then, but a row far below it is 0/0."""

    def forward(self, logits_BNN: Tensor) -> Tensor:
        return super().forward(logits_BNN - logits_BNN.amax((-2, -1), keepdim=True))


class BypassedConnection(HyperConnection):
    """A remedy: if a block gives NaN, its input is given on."""

    def forward(self, streams_BNCHW: Tensor) -> Tensor:
        out = super().forward(streams_BNCHW)
        return streams_BNCHW if out.isnan().any() else out


WARNED_EPOCH, GROWN_EPOCH = 1, 2
GROWN = {WARNED_EPOCH: 2.0, GROWN_EPOCH: 1000.0}
"""Where alpha_res is at the beginning of an epoch."""


def alphas_grown(run: Run) -> None:
    """What weeks of training did, in two epochs: alpha_res is 2 in the second and 1,000 in the third."""
    epoch = run.step // run.epoch_steps
    if epoch in GROWN:
        with torch.no_grad():
            for name, parameter in run.model.named_parameters():
                if name.endswith("alpha_res"):
                    parameter.fill_(GROWN[epoch])


SINKHORN = Fault(
    name="sinkhorn_overflow",
    title="Sinkhorn's exp overflows above 88.7",
    story=(
        "The streams are mixed by a matrix that Sinkhorn makes doubly stochastic: exp of the logits, then rows and "
        "columns are divided by their sums. The logits are alpha_res times the output of a layer, and nothing holds "
        "alpha_res back. Here it is 2 in the second epoch and 1,000 in the third: exp is Inf, and Inf / Inf is NaN."
    ),
    damage="NaN loss at the first step of the third epoch, NaN weights from then on.",
    answer=(
        "Warns an epoch before that alpha_res is above 1. Then skips, names the exp and its input, proves it, and "
        "is rolled back to the state in which alpha_res was 2."
    ),
    parts={"sinkhorn": ExpSinkhorn, "begin_epoch": alphas_grown},
    settings={"mhc_blocks": 1},
    remedies=(
        Remedy(
            name="where(isnan, 1/n)",
            story="`torch.where(M.isnan(), 1 / n, M)` behind Sinkhorn.",
            result="The loss is finite, its gradient is NaN: the weights are lost one step later.",
            parts={"sinkhorn": FilledSinkhorn},
        ),
        Remedy(
            name="subtract the maximum",
            story="The largest logit of the matrix is subtracted before exp.",
            result="No Inf any more; but a row 104 below the largest is 0 / 0, and that is NaN as well.",
            parts={"sinkhorn": ShiftedSinkhorn},
        ),
        Remedy(
            name="return the input",
            story="If the block's output holds a NaN, its input is returned.",
            result="Finite. From there on the block has no effect, nothing in it learns, and there is no message.",
            parts={"connection": BypassedConnection},
        ),
        CAUTION,
    ),
    cause="exp_overflow",
    module="mhc.*.sinkhorn",
    op="aten.exp",
    policy={"anchor_every": 7},
)

# ---- contrast


class PlainContrast(nn.Module):
    """(x - mean) / std of every frame: 0/0 where a frame is all black."""

    def forward(self, frames_BHW: Tensor) -> Tensor:
        mean = frames_BHW.mean((-2, -1), keepdim=True)
        return (frames_BHW - mean) / self.spread(frames_BHW)

    def spread(self, frames_BHW: Tensor) -> Tensor:
        """What is divided by."""
        return frames_BHW.std((-2, -1), keepdim=True)


class EpsilonContrast(PlainContrast):
    """A remedy: an epsilon next to the standard deviation."""

    def spread(self, frames_BHW: Tensor) -> Tensor:
        return super().spread(frames_BHW) + 1e-6


def skip_bad_norm(run: Run) -> bool:
    """A remedy: no step if the norm of the gradients is not finite. The forward pass has been made by then."""
    assert run.max_grad_norm is not None
    norm = nn.utils.clip_grad_norm_(run.model.parameters(), run.max_grad_norm)
    if not norm.isfinite():
        run.optimizer.zero_grad()
        return False
    return step_and_clear(run)


BLACK_FRAMES = Fault(
    name="black_frames",
    title="the contrast of an all-black frame is 0/0",
    story=(
        "Every frame is brought to mean 0 and deviation 1. One frame in 500 is all black, a camera that missed its "
        "moment: its deviation is 0. One such frame makes the statistics of every BatchNorm NaN, and so the batch."
    ),
    damage="NaN loss at the first black frame, NaN weights and NaN running statistics from then on.",
    answer="Skips the batch, puts the running statistics back, names the division and its denominator, proves it.",
    parts={"contrast": PlainContrast},
    settings={"missing_frames": 0.0, "black_frames": 0.002},
    remedies=(
        Remedy(
            name="skip a NaN norm",
            story="No step if the norm of the gradients is not finite; parameters are checked, and they are finite.",
            result="Training looks healthy. BatchNorm's running statistics are NaN, and so is every evaluation.",
            parts={"update": skip_bad_norm},
        ),
        Remedy(
            name="std + 1e-6",
            story="An epsilon next to the deviation.",
            result="Holds: a black frame is 0, and nothing learns through the frames, so no gradient is lost.",
            holds=True,
            parts={"contrast": EpsilonContrast},
        ),
        CAUTION,
    ),
    cause="division_by_zero",
    module="contrast",
    op="aten.div",
)

# ---- RMSNorm


class TinyEpsilonNorm(RMSNorm):
    """x · rsqrt(mean(x²) + 1e-20) in float32: finite at a row of zeros, with a slope of 1e10."""

    def forward(self, x_BD: Tensor) -> Tensor:
        wide = x_BD.float()
        return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-20) * self.weight


class ClampedNorm(TinyEpsilonNorm):
    """A remedy: the result is clamped. It was 0 all the time."""

    def forward(self, x_BD: Tensor) -> Tensor:
        return super().forward(x_BD).clamp(-10, 10)


TINY_EPSILON = Fault(
    name="rmsnorm_epsilon",
    title="RMSNorm with an epsilon of 1e-20, a frame that is missing, float16",
    story=(
        "The pooled streams of a missing frame are zeros. The norm is computed in float32, as it should be, but its "
        "epsilon is 1e-20: the value is 0, the slope 1/√1e-20 = 1e10. Going back, the gradient is cast to the float16 "
        "of the streams: Inf, and times the 0 of the frame's mask NaN."
    ),
    damage="A finite loss on the step whose gradient is NaN, NaN weights from there on.",
    answer="Skips such steps, names the norm and its line.",
    parts={"norm": TinyEpsilonNorm},
    settings={**UNSCALED, "batch_size": 16, "mhc_blocks": 2, "mhc_alpha": 1.0, "missing_frames": 0.004},
    remedies=(
        Remedy(
            name="clamp(-10, 10)",
            story="The result of the norm is clamped.",
            result="It was never large: the value is 0, only the slope is 1e10.",
            parts={"norm": ClampedNorm},
        ),
        CAUTION,
    ),
    cause="singular_gradient_at_zero",
    module="mhc.*.norm",
)

# ---- CTC


def torch_ctc(log_probs_TBK: Tensor, labels: Tensor, columns: Tensor, lengths: Tensor) -> Tensor:
    """torch's CTC: Inf for a plate that does not fit into its columns."""
    return F.ctc_loss(log_probs_TBK, labels, columns, lengths)


def zeroed_ctc(log_probs_TBK: Tensor, labels: Tensor, columns: Tensor, lengths: Tensor) -> Tensor:
    """A remedy: Inf becomes 0, with a gradient of 0; the mean still counts the plate."""
    return F.ctc_loss(log_probs_TBK, labels, columns, lengths, zero_infinity=True)


def clamped_ctc(log_probs_TBK: Tensor, labels: Tensor, columns: Tensor, lengths: Tensor) -> Tensor:
    """A remedy: no plate may cost more than 100."""
    losses = F.ctc_loss(log_probs_TBK, labels, columns, lengths, reduction="none")
    return (losses.clamp(max=100) / lengths).mean()


SHORT_INPUT = Fault(
    name="ctc_short_input",
    title="a plate with repeated characters does not fit into nine columns",
    story=(
        "To save time the frames are reduced by 8 instead of 4: 9 columns for 7 characters. But CTC needs a blank "
        "between two equal neighbours, so a plate with three such pairs needs 10. One plate in 250 is one; its "
        "probability is 0, its loss Inf, and its gradient NaN."
    ),
    damage="Inf loss at the first such plate, NaN weights from then on.",
    answer="Skips the batch, names the loss and the sample, proves it by counting.",
    parts={"ctc": torch_ctc},
    settings={"frame_stride": 8},
    remedies=(
        Remedy(
            name="clamp(loss, 100)",
            story="No plate may cost more than 100.",
            result="The loss is finite, its gradient is NaN: 0 · NaN. The weights are lost one step later.",
            parts={"ctc": clamped_ctc},
        ),
        Remedy(
            name="zero_infinity",
            story="`zero_infinity=True`.",
            result="Holds: value and gradient are 0. There is no message about the plates that are never learned.",
            holds=True,
            parts={"ctc": zeroed_ctc},
        ),
        CAUTION,
    ),
    cause="ctc_infeasible_alignment",
    module="loss",
)
