"""One decision for all ranks that train the same model.

A rank that skips alone pairs its next all-reduce with the others' previous one: no error at first, then a hang. So
every rank contributes its flags and all act on the union. That runs over the model's own process group
(DistributedDataParallel's, or the mesh of sharded parameters). A model that is neither replicated nor sharded belongs
to its rank alone, and nothing is exchanged.

A healthy run must never hang because of the guard. Four rules ensure it:

* DistributedDataParallel averages gradients only after a call of its wrapper. A step in which only its inner module
  was called (a probe of `model.module` on one rank), or under `no_sync`, belongs to its rank alone: nothing is
  exchanged. Where no call was seen at all (a whole step inside `torch.compile`), nothing is exchanged either, and the
  averaged gradients decide.
* Before the first exchange each rank looks in the group's store whether every other rank has a guard (`handshake.py`).
  If one has none, no rank exchanges anything. No rank waits for it.
* Under `Join` the ranks that ran out of data answer only the model's own collectives, so nothing is exchanged.
* Names of folders and the like go through the store, never through a collective.

Where ranks train one model and exchange nothing, each decides by its averaged gradients alone, which are the same on
all ranks. A replay on one rank runs inside `Alone`, where a collective raises instead of waiting.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from nantrap.errors import NantrapError, RankLostError
from nantrap.guard.judge import Flags, Verdict, combine
from nantrap.guard.ranks.averaged_flags import AveragedFlags
from nantrap.guard.ranks.handshake import Bypass, Handshake
from nantrap.guard.torch_private import default_store, is_joining
from nantrap.locate.replay.together import holds_parts, is_collective

_FIELDS = ("origin", "symptom", "harmful", "careful", "probing", "spike", "stop", "signalled")


class Ranks:
    """The ranks that decide together. Holds their process group; with one process there is none.

    Args:
        model: the model as it is called, in its wrapper.
        process_group: the group of the ranks that train this model, where the model does not show it (gradients that
            the script averages itself); `None` to ask the model.
    """

    def __init__(self, model: nn.Module, *, process_group: Any = None) -> None:
        started = dist.is_available() and dist.is_initialized()
        self.rank: int = dist.get_rank() if started else 0
        """This process among all, also where it decides alone: files are named by it."""
        self.processes: int = dist.get_world_size() if started else 1
        """How many there are, whether or not they train this model."""
        self.stands_down = ""
        """Why the ranks exchange nothing although they train one model; empty while they do."""
        self.say: Callable[[str], None] | None = None
        """Prints a line for people."""
        self.run_dir: str | None = None
        """Where the ranks write their journals."""
        self._wrappers = replicas_in(model)
        inside = {id(parameter) for wrapper in self._wrappers for parameter in wrapper.parameters()}
        self.replicated = bool(inside) and all(id(parameter) in inside for parameter in model.parameters())
        """Whether every rank holds the same parameters."""
        self.differ = False
        """Whether the ranks were found to hold different parameters although they should not."""
        self.careful = False
        """Whether any rank had to check its update in the last step of all of them."""
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
        self._common_gradients = self._group is not None and (self.replicated or is_sharded(model))
        self.averaged = AveragedFlags(
            self._wrappers, possible=self.together and self.replicated and process_group is None
        )
        """How they agree while they exchange nothing."""
        self._handshake: Handshake | None = None
        self._greeted = False
        # the script averages gradients itself: it is not known when the ranks communicate, but every one has a guard
        self._vouched = process_group is not None
        self._always_averages = self._vouched or not self.replicated
        # whether this step averages gradients; None: no call of the model was seen, so it is not known
        self._averages: bool | None = True if self._always_averages else None
        self._wrapper_called = False
        self._bypass: Bypass | None = None

    @property
    def size(self) -> int:
        """How many ranks decide together."""
        return len(self.members)

    @property
    def own_fault(self) -> Verdict:
        """The verdict on something bad that this rank alone knows of."""
        return Verdict(bad=True, harmful=True, bad_ranks=(self.rank,))

    @property
    def prints(self) -> bool:
        """Whether this rank prints what all of them know: the first one does."""
        return self.rank == self.members[0]

    @property
    def talking(self) -> bool:
        """Whether the ranks exchange anything now."""
        return self._may_talk and self._greeted and not self.stands_down

    @property
    def silent(self) -> bool:
        """Whether the ranks agree in this step without messages, by what their averaged gradients show."""
        return self.averaged.on and self.talking

    @property
    def acquainted(self) -> bool:
        """Whether every other rank is known to have a guard; then all of them may exchange data."""
        return self.together and self._greeted and not self.stands_down

    @property
    def _may_talk(self) -> bool:
        return self.together and bool(self._averages) and not any(map(is_joining, self._wrappers))

    @property
    def kept_apart(self) -> bool:
        """Whether gradients are averaged, but the ranks exchange nothing else: what is bad may be another rank's."""
        return self.together and self._averages is not False and not self.talking

    def note_forward(self, model: nn.Module) -> None:
        """The model, its wrapper or a part of it is called: whether what follows averages gradients over the ranks."""
        if not torch.is_grad_enabled():
            return
        if not self._always_averages:
            wraps = model is self._model or any(model is wrapper for wrapper in self._wrappers)
            self._wrapper_called |= wraps
            if not wraps or not getattr(model, "require_backward_grad_sync", True):
                self._averages = bool(self._averages)  # an inner module, or under `no_sync`
                return
            self._averages = True
        if self._handshake is None and self.together:
            self._handshake = Handshake(self._group, self.members, model=self._model)

    def expect_all(self) -> None:
        """Every rank is about to make this step: they may agree before the model is called."""
        self._averages = True

    def end_step(self) -> None:
        """The step is over."""
        self.averaged.end_step()
        if not self._always_averages:
            self._averages = None
        self._wrapper_called = False

    def wait_for_all(self) -> None:
        """Something is bad in a step without messages: wait for all ranks, or end with an error that says why."""
        assert self._handshake is not None
        if not self.averaged.wait_for_all(default_store(), self._handshake.prefix, self.size):
            raise RankLostError(
                f"the averaged gradients, or the update made from them, are bad on rank {self.rank} alone: the other "
                "ranks hold the same gradients and found nothing. A memory or communication fault of this rank does "
                "that, and so does code that changes gradients on one rank only"
            )

    def agree(self, flags: Flags) -> Verdict:
        """The common verdict on a step, the same on every rank. Each rank calls it once in each step."""
        if not self.together or self._averages is False:
            return combine({self.rank: flags})
        self._greet_once()
        if not self.talking:
            # what only this rank knows must not decide: the averaged gradients are the same everywhere
            common = Flags(symptom=flags.symptom, harmful=flags.symptom, careful=flags.careful, probing=flags.probing)
            return combine({self.rank: common})
        own = torch.tensor([float(getattr(flags, name)) for name in _FIELDS], device=self._device)
        union = own.clone()
        try:
            # the same few bytes for any number of ranks
            dist.all_reduce(union, op=dist.ReduceOp.MAX, group=self._group)
        except RuntimeError as error:
            raise self._lost(error) from error
        found = Flags(*map(bool, union.tolist()))
        if not (found.origin or found.symptom or found.spike or found.probing):
            return combine({self.rank: found})
        rows = self._gathered(own).tolist()  # something is wrong: which rank found what
        return combine({rank: Flags(*map(bool, row)) for rank, row in zip(self.members, rows, strict=True)})

    def why_not_late(self) -> str:
        """Why the ranks cannot join their flags on the device, in words; empty if they can."""
        if self._vouched or not self.replicated:
            return "several ranks agree on each step before its update, and the model is in no DistributedDataParallel"
        return ""

    def join(self, flags: Tensor) -> Tensor:
        """The largest of each flag on all ranks, in place. Each rank calls it. On an accelerator the host does not
        wait: the collective is queued on the device, as those that average gradients are."""
        try:
            dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._group)
        except RuntimeError as error:
            raise self._lost(error) from error
        return flags

    def all(self, ok: bool) -> bool:
        """Whether something went well on every rank. Each rank calls it."""
        if not self.talking:
            return ok
        flag = torch.tensor([float(ok)], device=self._device)
        try:
            dist.all_reduce(flag, op=dist.ReduceOp.MIN, group=self._group)
        except RuntimeError as error:
            raise self._lost(error) from error
        return bool(flag.item())

    def same(self, number: int) -> bool:
        """Whether all ranks give the same number. Each rank calls it; used after a failure."""
        both = torch.tensor([number, -number], dtype=torch.int64, device=self._device)
        try:
            dist.all_reduce(both, op=dist.ReduceOp.MAX, group=self._group)
        except RuntimeError as error:
            raise self._lost(error) from error
        largest, smallest = both.tolist()
        return bool(largest == -smallest)

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Average tensors over the ranks in place, as DistributedDataParallel averages gradients."""
        for tensor in tensors:
            tensor.div_(self.size)
            dist.all_reduce(tensor, group=self._group)

    def any_of_all(self, found: bool) -> bool:
        """Whether any rank found something, in a branch that depends on nothing but common gradients.

        Where gradients are neither averaged nor sharded by the model, each rank has its own, and only its own answer.
        """
        self._greet_once()
        if not self._common_gradients or not self.talking:
            return found
        return not self.all(not found)

    def share(self, own: Any) -> dict[int, Any]:
        """The value of every rank, by rank. Each rank calls it; used after a failure."""
        if not self.talking:
            return {self.rank: own}
        gathered: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(gathered, own, group=self._group)
        except RuntimeError as error:
            raise self._lost(error) from error
        return dict(zip(self.members, gathered, strict=True))

    def first_of(self, own: Any) -> Any:
        """The value of the first rank, on every rank."""
        return self.share(own)[self.members[0]]

    def checksums(self, parameters: Sequence[Tensor], step: int) -> tuple[float, ...]:
        """One number for the parameters of each rank: equal parameters give equal numbers, bit for bit.

        Nothing, if the ranks do not compare them in this step. One that averages nothing because the wrapper was not
        called is compared without waiting; one under `no_sync` or `join` is not.
        """
        bypassed = self.together and not self._averages and not self._wrapper_called
        bypassed = bypassed and all(getattr(each, "require_backward_grad_sync", False) for each in self._wrappers)
        if not self.replicated or not (self.talking or bypassed) or any(map(is_joining, self._wrappers)):
            return ()
        own = [p.detach().double().sum() + 3 * p.detach().double().abs().sum() for p in parameters]
        total = torch.stack([value.to(self._device) for value in own]).sum().reshape(1)
        if self.talking:
            return tuple(self._gathered(total).flatten().tolist())
        if self._bypass is None:
            self._bypass = Bypass(self._group, self.members, self._model)
        return self._bypass.exchange(step, self.rank, total.item())

    def _greet_once(self) -> None:
        """Before the first exchange: does every rank have a guard? All ranks get the same answer."""
        if self._greeted or self.stands_down or not self._may_talk:
            return
        counted = self._handshake is not None and not self._vouched
        if self._handshake is None:  # before any forward pass
            self._handshake = Handshake(self._group, self.members, model=self._model)
        self._greeted = self._handshake.succeeds(counted=counted)
        if not self._greeted:
            missing = "a rank of the model's process group has no guard"
            self.stands_down = f"{missing}; each rank decides by the averaged gradients alone"
            if self.say is not None:
                self.say(self.stands_down)

    def _gathered(self, own: Tensor) -> Tensor:
        """The rows of all ranks, by one all-reduce of a table in which each rank fills its own row."""
        table = torch.zeros(self.size, own.numel(), dtype=own.dtype, device=self._device)
        table[self.members.index(self.rank)] = own
        try:
            dist.all_reduce(table, group=self._group)
        except RuntimeError as error:
            raise self._lost(error) from error
        return table

    def _lost(self, error: RuntimeError) -> RankLostError:
        """What is known when a rank does not answer any more."""
        others = [str(rank) for rank in self.members if rank != self.rank]
        who = f"rank {others[0]}" if len(others) == 1 else f"one of the ranks {', '.join(others[:8])}"
        who += ", ..." if len(others) > 8 else ""
        where = "" if self.run_dir is None else f". The last lines of {self.run_dir}/journal-r*.jsonl say what it did"
        first = (str(error).splitlines() or [""])[0]
        return RankLostError(
            f"{who} did not answer rank {self.rank}: it has died, or took longer than the process group's timeout"
            f"{where} ({first[:200]})"
        )


def replicas_in(model: nn.Module) -> list[nn.Module]:
    """Every `DistributedDataParallel` wrapper in a model: around it, inside `torch.compile`, or around its parts."""
    return [module for module in model.modules() if type(module).__name__ == "DistributedDataParallel"]


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


def is_sharded(model: nn.Module) -> bool:
    """Whether ranks hold parts of the parameters and gather them in the forward pass."""
    if any("FullyShardedDataParallel" in type(m).__name__ or "FSDP" in type(m).__name__ for m in model.modules()):
        return True
    # DTensor, ZeRO 3
    return any(hasattr(parameter, "to_local") or hasattr(parameter, "ds_tensor") for parameter in model.parameters())


def _group_of_mesh(mesh: Any) -> Any:
    """The group of all ranks of a device mesh."""
    if mesh.ndim == 1:
        return mesh.get_group()
    ranks = sorted(mesh.mesh.flatten().tolist())
    if len(ranks) == dist.get_world_size():
        return dist.group.WORLD
    return dist.new_group(ranks, use_local_synchronization=True)


def common_choice(name: str, own: str) -> str:
    """One text for all ranks: that of the first rank that comes here. No rank waits."""
    store = default_store() if dist.is_available() and dist.is_initialized() else None
    if store is None:
        return own
    return bytes(store.compare_set(f"nantrap/{name}", "", own)).decode()


class NeedsOthersError(NantrapError):
    """The code that is run again communicates with other ranks, which do not take part."""


class Alone:
    """Lets one rank run parts of a model again. Holds whether a collective was called.

    Args:
        model: the model as it is called, in its wrapper.
        together: whether other ranks train it too.
    """

    def __init__(self, model: nn.Module, *, together: bool) -> None:
        self._model = model
        self._together = together
        self.met_collective = False
        """A collective was refused: what was run can only be run by all ranks together."""
        self.others_take_part = False
        """All ranks run something together at this moment."""

    @property
    def possible(self) -> bool:
        """Whether a forward pass on this rank alone can work: no synchronised statistics, no sharded weights."""
        return not (self._together and _talks_in_forward(self._model))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The model runs without the other ranks."""
        if not self._together:
            yield
            return
        with self.unaveraged(), self.reading():
            yield

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """This rank looks at what it holds: whatever would wait for the others is refused."""
        if not self._together:
            yield
            return
        with _Refuse(self):
            yield

    @contextlib.contextmanager
    def with_others(self) -> Iterator[None]:
        """Inside `reading`: all ranks run something together now, so that nothing is refused."""
        before, self.others_take_part = self.others_take_part, True
        try:
            yield
        finally:
            self.others_take_part = before

    @contextlib.contextmanager
    def unaveraged(self) -> Iterator[None]:
        """All ranks run the model, but each keeps its own gradients and buffers."""
        with contextlib.ExitStack() as stack:
            for wrapper in replicas_in(self._model):
                stack.enter_context(_quiet(wrapper))
            yield


def _talks_in_forward(model: nn.Module) -> bool:
    if any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
        return True
    return is_sharded(model)


@contextlib.contextmanager
def _quiet(wrapper: Any) -> Iterator[None]:
    """DDP neither averages gradients nor broadcasts buffers."""
    forward_sync = wrapper.require_forward_param_sync
    wrapper.require_forward_param_sync = False
    try:
        with wrapper.no_sync():
            yield
    finally:
        wrapper.require_forward_param_sync = forward_sync


class _Refuse(TorchDispatchMode):
    """Every collective is an error. Holds the object that notes it."""

    def __init__(self, alone: Alone) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._alone = alone

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if holds_parts(types):
            return NotImplemented
        if is_collective(func) and not self._alone.others_take_part:
            self._alone.met_collective = True
            raise NeedsOthersError(f"{func} needs the other ranks, which do not take part in a replay")
        return func(*args, **(kwargs or {}))


_TRANSPORTS = ("gloo", "NCCL", "c10d", "ProcessGroup", "pair closure")
"""One of these is in the text of an error by which a collective ends when another rank does not take part."""


def lost_rank_in_words(error: BaseException | None, run_dir: str | Path | None) -> str:
    """Says what it means that a collective of the script ended with this error; empty if none did.

    The error of the transport names an address and a port. A rank that is gone has said why in its own output.
    """
    if not isinstance(error, RuntimeError) or isinstance(error, RankLostError) or not several_ranks():
        return ""
    if not isinstance(error, dist.DistError) and not any(name in str(error) for name in _TRANSPORTS):
        return ""
    size, rank = dist.get_world_size(), dist.get_rank()
    who = f"rank {1 - rank}" if size == 2 else "another rank"
    where = "" if run_dir is None else f". The last lines of {run_dir}/journal-r*.jsonl say what each rank did"
    return f"rank {rank} lost {who}, which has ended, has died, or took longer than the process group's timeout{where}"


def several_ranks() -> bool:
    """Whether this process is one of several that train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
