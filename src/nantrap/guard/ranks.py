"""One decision for all ranks that train the same model.

A rank that skips alone pairs its next all-reduce with the others' previous one: no error at first, then a hang. So
every rank contributes its flags and all act on the union. That runs over the model's own process group
(DistributedDataParallel's, or the mesh of sharded parameters). A model that is neither replicated nor sharded belongs
to its rank alone, and nothing is exchanged.

A healthy run must never hang because of the guard. When the guard is made the ranks of the group greet each other
through the group's store; if one of them has no guard, all stand down. Under `Join` the ranks that ran out of data
answer only the model's own collectives, so nothing is exchanged either. In both cases a rank decides by its averaged
gradients alone, which are the same on all ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nantrap.guard.judge import Flags, Verdict, combine
from nantrap.guard.torch_private import default_store, is_joining

HANDSHAKE_SECONDS = 60.0
"""How long a rank waits for the others' guards when it makes its own."""

_FIELDS = ("origin", "symptom", "harmful", "careful", "probing", "spike", "stop")
_greetings: Counter[str] = Counter()


class Ranks:
    """The ranks that decide together. Holds their process group; with one process there is none.

    Args:
        model: the model as it is called, in its wrapper.
        process_group: the group of the ranks that train this model, where the model does not tell (gradients that the
            script averages itself); `None` to ask the model.
    """

    def __init__(self, model: nn.Module, *, process_group: Any = None) -> None:
        started = dist.is_available() and dist.is_initialized()
        self.rank: int = dist.get_rank() if started else 0
        """This process among all, also where it decides alone: files are named by it."""
        self.stands_down = ""
        """Why the ranks do not talk although they train one model; empty while they do."""
        self.replicated = type(model).__name__ == "DistributedDataParallel"
        """Whether every rank holds the same parameters."""
        self.differ = False
        """Whether the ranks were found to hold different parameters although they should not."""
        self._model = model
        self._group = (process_group or group_of(model)) if started else None
        members = [self.rank] if self._group is None else dist.get_process_group_ranks(self._group)
        self.members: tuple[int, ...] = tuple(members)
        self.together = len(self.members) > 1
        """Whether there are other ranks to agree with."""
        if self.together:
            backend = str(dist.get_backend(self._group))
            on_gpu = "nccl" in backend and torch.cuda.is_available()
            self._device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
            if not _greet(self.members, self.rank):
                missing = "a rank of the model's process group has no guard, or did not make it in time"
                self.stands_down = f"{missing}; each rank decides by the averaged gradients alone"

    @property
    def size(self) -> int:
        """How many ranks decide together."""
        return len(self.members)

    @property
    def talking(self) -> bool:
        """Whether the ranks exchange anything now."""
        return self.together and not self.stands_down and not is_joining(self._model)

    def agree(self, flags: Flags) -> Verdict:
        """The common verdict on a step, the same on every rank. Each rank calls it once in each step."""
        if not self.together:
            return combine({self.rank: flags})
        if not self.talking:
            # what only this rank knows must not decide: the averaged gradients are the same everywhere
            common = Flags(symptom=flags.symptom, harmful=flags.symptom, careful=flags.careful, probing=flags.probing)
            return combine({self.rank: common})
        own = [float(getattr(flags, name)) for name in _FIELDS]
        rows = self._gathered(torch.tensor(own, device=self._device)).tolist()
        return combine({rank: Flags(*map(bool, row)) for rank, row in zip(self.members, rows, strict=True)})

    def all(self, ok: bool) -> bool:
        """Whether something went well on every rank. Each rank calls it."""
        if not self.talking:
            return ok
        flag = torch.tensor([float(ok)], device=self._device)
        dist.all_reduce(flag, op=dist.ReduceOp.MIN, group=self._group)
        return bool(flag.item())

    def share(self, own: Any) -> dict[int, Any]:
        """What every rank has to say, by rank. Each rank calls it; for after a failure."""
        if not self.talking:
            return {self.rank: own}
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, own, group=self._group)
        return dict(zip(self.members, gathered, strict=True))

    def first_of(self, own: Any) -> Any:
        """What the first rank has to say, on every rank."""
        return self.share(own)[self.members[0]]

    def checksums(self, parameters: Sequence[Tensor]) -> tuple[float, ...]:
        """One number for the parameters of each rank: equal parameters give equal numbers, bit for bit."""
        own = [p.detach().double().sum() + 3 * p.detach().double().abs().sum() for p in parameters]
        total = torch.stack([value.to(self._device) for value in own]).sum().reshape(1)
        return tuple(self._gathered(total).flatten().tolist())

    def gather_flags(self, origin: Tensor, symptom: Tensor) -> Tensor:
        """Origin and symptom of each rank as a (ranks, 2) tensor on the device, without reading them."""
        own = torch.stack([origin, symptom]).float()
        if not self.talking:
            return own.unsqueeze(0)
        return self._gathered(own.to(self._device)).to(own.device)

    def _gathered(self, own: Tensor) -> Tensor:
        """The rows of all ranks, by one all-reduce of a table in which each rank fills its own row."""
        table = torch.zeros(self.size, own.numel(), dtype=own.dtype, device=self._device)
        table[self.members.index(self.rank)] = own
        dist.all_reduce(table, group=self._group)
        return table


def group_of(model: nn.Module) -> Any:
    """The process group over which a model is replicated or sharded; `None` if it is neither."""
    group = getattr(model, "process_group", None)
    if isinstance(group, dist.ProcessGroup):  # DistributedDataParallel, FullyShardedDataParallel
        return group
    for parameter in model.parameters():
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is not None:
            return _group_of_mesh(mesh)
    for module in model.modules():
        inner = getattr(module, "process_group", None)
        if isinstance(inner, dist.ProcessGroup):
            return inner
        if isinstance(module, nn.SyncBatchNorm) and dist.get_world_size() > 1:
            return dist.group.WORLD
    return None


def _group_of_mesh(mesh: Any) -> Any:
    """The group of all ranks of a device mesh."""
    if mesh.ndim == 1:
        return mesh.get_group()
    ranks = sorted(mesh.mesh.flatten().tolist())
    if len(ranks) == dist.get_world_size():
        return dist.group.WORLD
    return dist.new_group(ranks, use_local_synchronization=True)


def _greet(members: tuple[int, ...], rank: int) -> bool:
    """Whether every rank of the group makes a guard now. All ranks get the same answer.

    Whoever sees all greetings first writes "yes", whoever waits too long writes "no"; the first one to write decides.
    """
    store = default_store()
    if store is None:
        return True
    name = "-".join(map(str, members))
    _greetings[name] += 1
    prefix = f"nantrap/{name}/{_greetings[name]}"
    store.set(f"{prefix}/{rank}", "here")
    answer = "yes"
    try:
        store.wait([f"{prefix}/{each}" for each in members], timedelta(seconds=HANDSHAKE_SECONDS))
    except (RuntimeError, ValueError):
        answer = "no"
    decided = store.compare_set(f"{prefix}/answer", "", answer)
    return bytes(decided) == b"yes"
