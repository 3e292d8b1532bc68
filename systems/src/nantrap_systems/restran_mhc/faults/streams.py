"""Faults of the hyper-connections that make no NaN by themselves: no mixing, and a gain that grows with depth."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nantrap_systems.restran_mhc.faults.caution import CAUTION, HALF
from nantrap_systems.restran_mhc.model import branch
from nantrap_systems.system import Fault


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
