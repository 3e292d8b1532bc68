"""Before the first exchange: does every rank of a process group have a guard?

A collective that one rank does not join blocks all the others, so the ranks use the group's key-value store instead.
A healthy run does not wait:

1.  Each rank adds itself to a count in the forward pass of its first common step.
2.  The model then communicates with all ranks: it averages gradients, or gathers sharded weights. A rank that has
    completed this knows that every rank has begun the step, so the count includes every guard.
3.  If the count is smaller than the group, a rank has no guard. The answer "no" is stored, and no rank waits.
4.  If the count is complete, each rank adds itself to a second count, and the last one stores "yes".

The first answer that is stored is valid for all ranks. A rank waits without success only if guards were created in
different steps on different ranks, and then for `SECONDS` at most.

The same store serves steps that bypass `DistributedDataParallel` (`Bypass`): `model.module(batch)` in place of
`model(batch)` averages no gradients, and each rank trains its own model. No rank knows whether the others make the same
step, so none may wait for them. Each writes the checksum of its parameters into the store, and the last one finds them
all there.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter, deque
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from nantrap.guard.torch_private import default_store

SECONDS = 20.0
"""How long a rank waits for the other guards to answer, once it knows that they exist."""
_MOST_WAITING = 8
"""Of how many steps a rank keeps in mind that the others have not come to them yet."""

_begun: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()
"""How many handshakes this process began, by process group and by what they are for."""


def common_prefix(group: Any, members: tuple[int, ...], model: nn.Module, *, purpose: str = "") -> str:
    """What the keys of these ranks begin with in the store, the same on each of them, and new with each call."""
    shapes = [tuple(parameter.shape) for parameter in model.parameters()]
    name = f"{zlib.crc32(repr((members, shapes)).encode()):08x}{purpose}"
    begun = _begun.setdefault(group, Counter())
    begun[name] += 1
    # a launcher that starts the ranks again may keep the store, with what the dead ranks wrote into it
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"nantrap/{attempt}/{name}/{begun[name]}"


class Handshake:
    """One question to the ranks of a group. Made in the first common forward pass, answered after the backward pass.

    Args:
        group: the process group.
        members: its ranks.
        model: what they train together; guards of other models are counted separately.
    """

    def __init__(self, group: Any, members: tuple[int, ...], *, model: nn.Module) -> None:
        self._store = default_store()
        self._size = len(members)
        self.prefix = ""
        """What the keys of these ranks begin with in the store."""
        if self._store is None:
            return
        self.prefix = common_prefix(group, members, model)
        self._store.add(f"{self.prefix}/guards", 1)

    def succeeds(self, *, counted: bool) -> bool:
        """Whether every rank has a guard. All ranks get the same answer.

        Args:
            counted: the ranks have exchanged something since the forward pass, so every guard has been counted by
                now. Otherwise this waits for them, `SECONDS` at most.
        """
        store = self._store
        if store is None:
            return True
        answer = f"{self.prefix}/answer"
        if counted and store.add(f"{self.prefix}/guards", 0) < self._size:
            return bytes(store.compare_set(answer, "", "no")) == b"yes"
        if store.add(f"{self.prefix}/ready", 1) == self._size:
            return bytes(store.compare_set(answer, "", "yes")) == b"yes"
        try:
            store.wait([answer], timedelta(seconds=SECONDS))
        except (RuntimeError, ValueError):
            return bytes(store.compare_set(answer, "", "no")) == b"yes"
        return bytes(store.get(answer)) == b"yes"


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
        self._waiting: deque[int] = deque(maxlen=_MOST_WAITING)

    def exchange(self, step: int, rank: int, own: float) -> tuple[float, ...]:
        """Leave this rank's number for a step: those of all ranks for the first step to which all of them have come
        and that was not compared yet, or nothing. A rank may be ahead of the others."""
        try:
            if self._store is None:
                return ()
            self._store.set(self._key(step, rank), own.hex())
            self._waiting.append(step)
            for each in tuple(self._waiting):
                keys = [self._key(each, member) for member in self._members]
                if self._store.check(keys):
                    self._waiting.remove(each)
                    return tuple(float.fromhex(bytes(self._store.get(key)).decode()) for key in keys)
        except RuntimeError:  # the process that holds the store has ended
            pass
        return ()

    def _key(self, step: int, member: int) -> str:
        return f"{self._prefix}/{step}/{member}"
