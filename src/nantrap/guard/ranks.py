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
    """What the ranks found together.

    Attributes:
        bad: whether any rank found anything.
        first_rank: the rank where it began; of several the first.
        bad_ranks: all of them.
        harmful: whether gradients or buffers are bad anywhere, and not only a loss.
        careful: whether any rank must be able to undo its update; then all must.
    """

    bad: bool
    first_rank: int
    bad_ranks: tuple[int, ...]
    harmful: bool = False
    careful: bool = False


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

    def decide(self, *, origin: bool, symptom: bool = False, harmful: bool = False, careful: bool = False) -> Verdict:
        """The common verdict.

        Averaged gradients are bad everywhere, so the ranks with a bad loss of their own are named first.

        Args:
            origin: this rank's own loss, batch, buffers or update are bad.
            symptom: only its gradients are.
            harmful: see `Verdict`.
            careful: see `Verdict`.
        """
        if self.world_size == 1:
            bad = origin or symptom
            return Verdict(bad, self.rank, (self.rank,) if bad else (), harmful, careful)
        flags = torch.zeros(4, self.world_size, device=self._device)
        flags[:, self.rank] = torch.tensor([origin, symptom, harmful, careful], dtype=flags.dtype)
        dist.all_reduce(flags)
        origins, symptoms, harms, cares = ([i for i, flag in enumerate(row) if flag] for row in flags.tolist())
        guilty = tuple(origins or symptoms)
        return Verdict(bool(guilty), guilty[0] if guilty else 0, guilty, bool(harms), bool(cares))

    def reduce_flag(self, flag: Tensor) -> Tensor:
        """The maximum of a device flag over all ranks, without reading it."""
        if self.world_size == 1:
            return flag
        moved = flag.to(self._device)
        dist.all_reduce(moved, op=dist.ReduceOp.MAX)
        return moved.to(flag.device)
