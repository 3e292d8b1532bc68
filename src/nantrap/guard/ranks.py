"""One decision for all ranks.

A rank that skips alone pairs its next all-reduce with the others' previous one: no error at first, then a hang. So
every rank contributes its flags and all act on the union, and the union tells on which rank it began.
"""

from __future__ import annotations

from collections.abc import Sequence
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
        contested: only symptoms, and on several ranks: averaging has spread what began on one of them.
    """

    bad: bool
    first_rank: int
    bad_ranks: tuple[int, ...]
    harmful: bool = False
    careful: bool = False
    contested: bool = False


_GOOD = Verdict(bad=False, first_rank=0, bad_ranks=())
_CAREFUL = Verdict(bad=False, first_rank=0, bad_ranks=(), careful=True)


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
            if not (bad or harmful):  # every healthy step comes by here
                return _CAREFUL if careful else _GOOD
            return Verdict(bad, self.rank, (self.rank,) if bad else (), harmful, careful)
        flags = torch.zeros(4, self.world_size, device=self._device)
        flags[:, self.rank] = torch.tensor([origin, symptom, harmful, careful], dtype=flags.dtype)
        dist.all_reduce(flags)
        rows = flags.tolist()
        guilty = guilty_ranks(rows)
        contested = len(guilty) > 1 and not any(rows[0])
        return Verdict(bool(guilty), guilty[0] if guilty else 0, guilty, any(rows[2]), any(rows[3]), contested)

    def checksums(self, parameters: Sequence[Tensor]) -> tuple[float, ...]:
        """One number for the parameters of each rank: equal parameters give equal numbers, bit for bit."""
        sums = torch.zeros(self.world_size, dtype=torch.float64, device=self._device)
        own = [p.detach().double().sum() + 3 * p.detach().double().abs().sum() for p in parameters]
        sums[self.rank] = torch.stack([value.to(self._device) for value in own]).sum()
        dist.all_reduce(sums)
        return tuple(sums.tolist())

    def reduce_flags(self, origin: Tensor, symptom: Tensor) -> Tensor:
        """Origins and symptoms of all ranks as a (2, ranks) tensor on the device, without reading them."""
        own = torch.stack([origin, symptom]).float()
        if self.world_size == 1:
            return own.unsqueeze(1)
        flags = torch.zeros(2, self.world_size, device=self._device)
        flags[:, self.rank] = own.to(self._device)
        dist.all_reduce(flags)
        return flags.to(own.device)


def guilty_ranks(rows: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """The ranks where it began: those with an origin, or, if there is none, those with a symptom."""
    origins, symptoms = ([rank for rank, flag in enumerate(row) if flag] for row in rows[:2])
    return tuple(origins or symptoms)
