"""Steps that bypass DistributedDataParallel: the ranks' parameters are compared, and no rank waits for another.

`model.module(batch)` in place of `model(batch)` averages no gradients, and each rank trains its own model. No rank
knows whether the others make the same step, so none may wait for them. Each writes the checksum of its parameters into
the key-value store of the process group, and the last one finds them all there.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from nantrap.guard.ranks.handshake import common_prefix
from nantrap.guard.torch_private import default_store


class Bypass:
    """What the ranks of one model left in the store.

    Args:
        group: the process group.
        members: its ranks.
        model: what they train.
    """

    def __init__(self, group: Any, members: tuple[int, ...], model: nn.Module) -> None:
        self._members = members
        self._store = default_store()
        self._prefix = common_prefix(group, members, model, purpose="-bypass")

    def exchange(self, step: int, rank: int, own: float) -> tuple[float, ...]:
        """Leave this rank's number for a step: those of all ranks, or nothing if one of them is not there yet."""
        keys = [f"{self._prefix}/{step}/{member}" for member in self._members]
        try:
            if self._store is None:
                return ()
            self._store.set(keys[self._members.index(rank)], own.hex())
            if not self._store.check(keys):
                return ()
            return tuple(float.fromhex(bytes(self._store.get(key)).decode()) for key in keys)
        except RuntimeError:  # the process that holds the store has ended
            return ()
