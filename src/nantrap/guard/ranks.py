"""One decision for all ranks.

A rank that skips alone pairs its next all-reduce with the others' previous one: no error at first, then a hang. So
every rank contributes its flags and all act on the union, and the union tells on which rank it began.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the ranks found together."""

    bad: bool
    first_rank: int
    bad_ranks: tuple[int, ...]


class Agreement:
    """Knows rank and world size, and reduces flags. With one process it costs a comparison."""

    def __init__(self) -> None:
        self.active = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if self.active else 0
        self.world_size = dist.get_world_size() if self.active else 1
        if self.active:
            backend = dist.get_backend()
            self._device = (
                torch.device("cuda", torch.cuda.current_device()) if "nccl" in backend else torch.device("cpu")
            )

    def decide(self, *, origin: bool, symptom: bool) -> Verdict:
        """The common verdict. `origin`: this rank's own loss, batch or buffers are bad; `symptom`: only its gradients are.

        Averaged gradients are bad everywhere, so the ranks with a bad loss of their own are named first.
        """
        if self.world_size == 1:
            return Verdict(origin or symptom, self.rank, (self.rank,) if origin or symptom else ())
        flags = torch.zeros(2, self.world_size, device=self._device)
        flags[0, self.rank] = float(origin)
        flags[1, self.rank] = float(symptom)
        dist.all_reduce(flags)
        origins, symptoms = flags.tolist()
        with_origin = tuple(rank for rank, flag in enumerate(origins) if flag)
        with_symptom = tuple(rank for rank, flag in enumerate(symptoms) if flag)
        guilty = with_origin or with_symptom
        return Verdict(bool(guilty), guilty[0] if guilty else 0, guilty)

    def reduce_flag(self, flag: Tensor) -> Tensor:
        """The maximum of a device flag over all ranks, without reading it."""
        if self.world_size == 1:
            return flag
        moved = flag.to(self._device)
        dist.all_reduce(moved, op=dist.ReduceOp.MAX)
        return moved.to(flag.device)
