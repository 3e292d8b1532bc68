"""Several processes read one checkpoint together: `torchrun -m nantrap audit`.

Each rank reads its share of the files; what they found is gathered over gloo, and all ranks continue with the same
result.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

Result = TypeVar("Result")


class Ranks(NamedTuple):
    """This process among the ranks. Alone: rank 0 of 1, and nothing is sent."""

    rank: int = 0
    size: int = 1

    def share(self, weights: Sequence[int]) -> list[int]:
        """The positions that are this rank's work: the largest first, each to the rank with the least work."""
        loads = [0] * self.size
        mine = []
        for position in sorted(range(len(weights)), key=lambda position: (-weights[position], position)):
            least = loads.index(min(loads))
            loads[least] += weights[position] + 1
            if least == self.rank:
                mine.append(position)
        return sorted(mine)

    def gather(self, mine: dict[int, Result]) -> dict[int, Result]:
        """The results of all ranks, on every rank."""
        if self.size == 1:
            return mine
        import torch.distributed as dist

        gathered: list[dict[int, Result] | None] = [None] * self.size
        dist.all_gather_object(gathered, mine)
        return {position: result for part in gathered if part for position, result in part.items()}

    def agree(self, value: Result) -> Result:
        """Rank 0's value, on every rank."""
        if self.size == 1:
            return value
        import torch.distributed as dist

        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]


@contextmanager
def ranks_of_environment() -> Iterator[Ranks]:
    """The ranks `torchrun` started, joined over gloo for as long as the block lasts; alone if there are none."""
    size = int(os.environ.get("WORLD_SIZE") or 1)
    if size == 1 or "RANK" not in os.environ:
        yield Ranks()
        return
    import torch.distributed as dist

    mine = not dist.is_initialized()
    if mine:
        dist.init_process_group("gloo")
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
        if mine:
            dist.barrier()  # gloo can wait for a rank that has left already
    finally:
        if mine:
            dist.destroy_process_group()
