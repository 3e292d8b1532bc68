"""Faults of the model: a query without a key, and weights that are too coarse to move."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from nantrap_systems.latentdlm.faults.caution import caution
from nantrap_systems.latentdlm.model import JointAttention
from nantrap_systems.system import Fault, Remedy


class AdditiveAttention(JointAttention):
    """softmax(q·kᵀ/√d + mask)·v with a mask of 0 and -inf."""

    masked = -math.inf

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        bias = torch.zeros(mask.shape).masked_fill(~mask, self.masked)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias
        return self.weights(scores) @ v

    def weights(self, scores: Tensor) -> Tensor:
        """The attention weights."""
        return scores.softmax(dim=-1)


class FilledAttention(AdditiveAttention):
    """A remedy: NaN weights become 0. The softmax has kept its NaN for the backward pass."""

    def weights(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=-1).nan_to_num(0.0)


class FiniteMaskAttention(AdditiveAttention):
    """A remedy: a large negative number in the place of -inf. A row of nothing else is even."""

    masked = -1e9


def to_bfloat16(model: nn.Module) -> nn.Module:
    """The weights themselves in bfloat16, and with them the state of the optimizer."""
    return model.bfloat16()


ZERO_ATTENTION_MASK = Fault(
    name="zero_attention_mask",
    title="an attention mask of zeros leaves a text nothing to attend to",
    story=(
        "A text whose length is a multiple of 64 leaves an empty piece behind, with an attention mask of zeros. "
        "In the modes with a condition its queries still see the latent. In the unconditional mode they see nothing, "
        "softmax is 0/0, and the loss of the whole batch is NaN."
    ),
    damage="NaN loss at the first empty text, NaN weights from then on.",
    answer="Drops the micro-batch, names the softmax, its rows and the sample, proves it with a masked softmax.",
    parts={"attention": AdditiveAttention},
    settings={"data.drop_empty": False, "training.mode": "unconditional"},
    remedies=(
        Remedy(
            name="nan_to_num",
            story="`nan_to_num` behind the softmax.",
            result="The loss is finite, its gradient is NaN: the weights are lost one step later.",
            parts={"attention": FilledAttention},
        ),
        Remedy(
            name="-1e9 for -inf",
            story="A large negative number in the mask.",
            result="Holds in float32: an empty text attends evenly to its padding, and nothing reads the result.",
            holds=True,
            parts={"attention": FiniteMaskAttention},
        ),
        caution(),
    ),
    cause="softmax_fully_masked_row",
    module="blocks.0.attention",
    op="aten._softmax",
)

PURE_BF16 = Fault(
    name="pure_bf16",
    title="weights in bfloat16, and a learning rate too small for them to move",
    story=(
        "The weights themselves are bfloat16, whose neighbouring numbers are 1/256 to 1/128 apart. Adam moves a weight "
        "by about the learning rate, so one that is 256 times as large is rounded back to where it was. The usual "
        "advice against NaN, a lower learning rate, freezes more of the model."
    ),
    damage="Finite in every step; much of the model never moves, and the loss stays above the clean run's.",
    answer=(
        "No incident: nothing is ever non-finite. `nantrap doctor` sees weights in bfloat16 that Adam trains. The "
        "repair is float32 weights under bfloat16 autocast."
    ),
    parts={"weights": to_bfloat16},
    settings={
        "training.dtype": "bf16",
        "model.hidden_size": 32,
        "model.depth": 1,
        "training.train_batch_size": 4,
        "optimizer.lr": 1e-4,
        "training.warmup_steps": 1,
    },
    remedies=(replace(caution(1e-5), result="Freezes more of the model, and learns less."),),
    reported_by="doctor",
    code="NT816",
)
