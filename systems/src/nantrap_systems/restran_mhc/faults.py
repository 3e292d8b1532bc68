"""The faults of restran_mhc, each a few lines that take the place of a repaired part, and what was tried against them.

A part is written as one finds it in projects: the same arguments, the same weights, another line in the middle.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nantrap.ops import RMSNorm
from nantrap_systems.restran_mhc.model import HyperConnection, branch
from nantrap_systems.system import Fault, Remedy, Run, lower_rate_and_clip
from nantrap_systems.updates import skip_bad_norm, step_and_clear

# ---- what the faults share

HALF = {"channels": 16, "batch_size": 8, "mixed_precision": "fp16"}
"""Half precision is slow on a CPU, so the model is smaller."""
UNSCALED = {**HALF, "loss_scaling": False}

CAUTION = lower_rate_and_clip({"learning_rate": 1e-3, "grad_clip": 0.1})


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


# ---- around the weights: what a checkpoint brings back, and a scaler that is taken for an alarm


def save_always(run: Run, folder: Path, step: int) -> None:
    """`torch.save` after every epoch, over the last one."""
    assert run.scheduler is not None
    state = {
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "scheduler": run.scheduler.state_dict(),
    }
    torch.save(state, folder / "last.pt")


def load_everything(run: Run, folder: Path, rate: float) -> None:
    """Model, optimizer and scheduler, as every tutorial has it."""
    assert run.scheduler is not None
    state = torch.load(folder / "last.pt", weights_only=True)
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.scheduler.load_state_dict(state["scheduler"])


def load_filled(run: Run, folder: Path, rate: float) -> None:
    """A remedy: what is NaN in the weights becomes 0."""
    load_everything(run, folder, rate)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.nan_to_num_(0.0, posinf=0.0, neginf=0.0)


def save_if_parameters_finite(run: Run, folder: Path, step: int) -> None:
    """A remedy: the parameters are checked before they are saved. Buffers are not parameters."""
    if all(parameter.isfinite().all() for parameter in run.model.parameters()):
        save_always(run, folder, step)


def load_schedule(run: Run, folder: Path, rate: float) -> None:
    """A remedy: model and scheduler, but not the optimizer."""
    assert run.scheduler is not None
    state = torch.load(folder / "last.pt", weights_only=True)
    run.model.load_state_dict(state["model"])
    run.scheduler.load_state_dict(state["scheduler"])


def halve_rate_on_overflow(run: Run) -> bool:
    """A norm that is not finite is taken for an instability: the whole cycle is halved."""
    assert run.scaler is not None
    assert run.max_grad_norm is not None
    run.scaler.unscale_(run.optimizer)
    norm = nn.utils.clip_grad_norm_(run.model.parameters(), run.max_grad_norm)
    if not math.isfinite(norm):
        for group in run.optimizer.param_groups:
            for key in ("lr", "max_lr", "initial_lr", "min_lr"):
                group[key] /= 2
    return step_and_clear(run)


POISONED_CHECKPOINT = Fault(
    name="poisoned_checkpoint",
    title="a checkpoint saved after NaN had come in",
    story=(
        "A frame of NaN, one update, and every weight is NaN. The checkpoint is written next, over the last good one. "
        "A restart begins there: every batch is NaN, and the data are searched for the reason."
    ),
    damage="NaN from the first step on, whatever the batch.",
    answer="Names the checkpoint at the first step and stops after six. Its store would not have saved it.",
    parts={"save": save_always, "load": load_everything},
    settings={"earlier_steps": 8, "earlier_accident": True},
    remedies=(
        Remedy(
            name="nan_to_num(weights)",
            story="What is NaN in the loaded weights becomes 0.",
            result="Every weight was NaN, so nothing is left of the model; Adam's moments are NaN and spoil it again.",
            parts={"load": load_filled},
        ),
        Remedy(
            name="check parameters",
            story="No step if the norm is not finite, and parameters are checked before they are saved.",
            result="BatchNorm's running statistics are NaN in the checkpoint: training is fine, evaluation is NaN.",
            parts={"save": save_if_parameters_finite, "update": skip_bad_norm},
        ),
        CAUTION,
    ),
    cause="corrupt_checkpoint",
    notice="*NaN*",
)

STALE_RATE = Fault(
    name="stale_rate",
    title="the optimizer's state restores the old learning rate",
    story=(
        "The learning rate was too high, so the config is changed from 4.92e-2 to 1e-2 and the run continues from "
        "its last checkpoint. OneCycleLR keeps its learning rates in the optimizer's parameter groups, and those are "
        "loaded with the optimizer's state: 4.92 times the configured learning rate is used, and there is no message."
    ),
    damage="Finite; the cycle is 4.92 times as high as configured, and the plates are read worse.",
    answer="`check_resume` reports the learning rate and which state holds it; take='configured' corrects it.",
    parts={"save": save_always, "load": load_everything},
    settings={"earlier_steps": 8, "learning_rate": 1e-2, "earlier_rate": 4.92e-2},
    remedies=(
        Remedy(
            name="scheduler state alone",
            story="Model and scheduler are loaded, the optimizer is not.",
            result="Holds for the learning rate: the groups are those of the config. Adam's moments start at zero.",
            holds=True,
            parts={"load": load_schedule},
        ),
        replace(CAUTION, result="The learning rate stays the old one, whatever the config says."),
    ),
    reported_by="resume check",
    notice="the learning rate is *, the configuration says 0.01: the restored optimizer state overrides it*",
)

SCALER_ALARM = Fault(
    name="scaler_alarm",
    title="the search of a GradScaler for its scale is taken for an instability",
    story=(
        "A GradScaler begins at a high scale and halves it until the gradients fit; the first steps overflow, and it "
        "skips them. A loop that looks at the norm sees Inf, treats it as an instability and halves the learning "
        "rate each time."
    ),
    damage="The learning rate is a fraction of the configured one before the first step; almost nothing is learned.",
    answer=(
        "No incident: the summary of `nantrap run` says that these overflows are a scaler that searches its scale, "
        "which is normal. The loop still halves its learning rate."
    ),
    parts={"update": halve_rate_on_overflow},
    settings={**HALF, "loss_scale": 2.0**22},
    remedies=(CAUTION,),
    reported_by="summary",
    loop=True,
    notice="*searched its scale (normal)*",
)


# ---- hyper-connections that make no NaN by themselves: no mixing, and a gain that grows with depth


def diagonal(h_res_BNN: Tensor, streams_BNCHW: Tensor) -> Tensor:
    """`bnn` takes the diagonal: every stream is multiplied by its own 1/n, and none is mixed with another."""
    mixed: Tensor = torch.einsum("bnn,bnchw->bnchw", h_res_BNN, streams_BNCHW)
    return mixed


class WholeBlock(nn.Module):
    """A block of the ResNet as it was before it was wrapped: with its own skip."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch = branch(channels)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        out: Tensor = x_BCHW + self.branch(x_BCHW)
        return out


STREAM_GAIN = Fault(
    name="stream_gain",
    title="the wrapped block keeps its own skip: a gain of 1 + n/2 a block, float16",
    story=(
        "A block of the ResNet was wrapped unchanged, with its own skip. It reads n streams by 1/2, so its skip "
        "brings n/2 of the input back, on top of the streams themselves: 3 times the input for n = 4. Twelve blocks "
        "make 531,441 of 1, and float16 ends at 65,504. The GradScaler treats every step as an overflow."
    ),
    damage="No step is ever taken, the loss scale falls towards 0, and BatchNorm's running statistics are NaN.",
    answer="Stops after its budget of skips and rollbacks, the place and its magnitude named, proven in float32.",
    parts={"sublayer": WholeBlock},
    settings={**HALF, "channels": 8, "batch_size": 4, "mhc_n": 4, "mhc_blocks": 12},
    remedies=(CAUTION,),
    cause="fp16_forward_overflow",
    module="mhc.*",
)

NO_MIXING = Fault(
    name="no_mixing",
    title="einsum('bnn,bnchw->bnchw') takes the diagonal",
    story=(
        "The index of the sum is written n twice: einsum takes the diagonal of H_res. No stream is mixed with "
        "another, and "
        "every stream is multiplied by 1/n in every block: after six blocks of four streams 1/4,096 is left."
    ),
    damage="Finite in every step; the skip of the network is gone, and it learns more slowly.",
    answer="No incident: every number is finite. `nantrap doctor` sees the einsum in the code before training.",
    parts={"mixing": diagonal},
    settings={"channels": 16, "mhc_n": 4, "mhc_blocks": 6},
    remedies=(CAUTION,),
    reported_by="doctor",
    code="NT866",
)

FAULTS = (
    SINKHORN,
    POISONED_CHECKPOINT,
    STALE_RATE,
    BLACK_FRAMES,
    TINY_EPSILON,
    SHORT_INPUT,
    STREAM_GAIN,
    SCALER_ALARM,
    NO_MIXING,
)
