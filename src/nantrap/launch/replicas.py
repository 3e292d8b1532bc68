"""Models that several ranks hold: is the wrapper that averages gradients used, and do the ranks still hold the same?

Two mistakes need no NaN. A script wraps its model in `DistributedDataParallel` and calls the bare model: the gradients
are not averaged. Or it averages by hand, or wraps a part of the model only, and something is left out. In both the
ranks drift apart while every loss looks good.

Nothing here waits for another rank. Numbers are put into the store of the process group, and compared when those of
all ranks are there.
"""

from __future__ import annotations

import contextlib
import json
import time
import weakref
import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.parallel import DistributedDataParallel

from nantrap.guard.state.protected import checksum
from nantrap.guard.torch_private import default_store
from nantrap.incident.wording import counted, some_of
from nantrap.launch.patches import Patches
from nantrap.locate.hooks import Hook

_OFTEN = 3
_SHOWN = 3
_LET_GO = 0.02
"""Seconds before a group of ranks ends. The thread of gloo takes the GIL to let go of the tensors of the last exchange,
which is ours. A group that ends meanwhile keeps the GIL and waits for that thread: a deadlock."""


_PATIENCE = timedelta(seconds=5)
"""How long the first rank waits at its end for the checksums of ranks that are behind."""


class Replicas:
    """The wrappers that average gradients. Holds them weakly, and how often each was passed by.

    Args:
        say: prints a line.
        is_own_call: whether what happens now is the guard's own doing.
    """

    def __init__(self, say: Callable[[str], None], is_own_call: Callable[[], bool]) -> None:
        self._say = say
        self._is_own_call = is_own_call
        self._wrappers: list[_Wrapper] = []
        self.wrapped = False
        """Whether any model was wrapped."""

    def add(self, wrapper: nn.Module) -> None:
        """A model was wrapped."""
        self.wrapped = True
        self._wrappers.append(_Wrapper(wrapper, self._is_own_call))

    def watch(self) -> None:
        """A model is called that is no wrapper: from here on the calls of wrappers and of what is inside are counted.

        Not earlier: a hook on a model that is to be compiled would break its graph.
        """
        for wrapper in self._wrappers:
            wrapper.watch()

    def backward(self) -> None:
        """A backward pass begins: of a wrapped model it needs a call of the wrapper before it."""
        for wrapper in self._wrappers:
            if wrapper.passed_by() == _OFTEN and dist.get_rank() == 0:
                self._say(
                    f"{wrapper.name} is called without its DistributedDataParallel wrapper, so its gradients are not "
                    f"averaged over the {dist.get_world_size()} ranks: call the wrapper, not the model inside it "
                    "(NT867 ddp_bypassed)"
                )

    def hold(self, parameters: Sequence[Tensor]) -> bool:
        """Whether a wrapper holds any of these parameters, so that every rank is meant to have the same values."""
        ids = {id(parameter) for parameter in parameters}
        return any(wrapper.holds(ids) for wrapper in self._wrappers)

    def notes(self) -> list[str]:
        """What the end of the run says."""
        return [
            f"{each.name} was called without its DistributedDataParallel wrapper in {each.count:,} backward passes: "
            "the gradients were not averaged (NT867 ddp_bypassed)"
            for each in self._wrappers
            if each.count >= _OFTEN
        ]


class _Wrapper:
    """Counts the calls of a wrapper and those of the model inside it since the last backward pass."""

    def __init__(self, wrapper: nn.Module, is_own_call: Callable[[], bool]) -> None:
        self.name = type(wrapper.module).__name__
        self.count = 0
        self._module = weakref.ref(wrapper)
        self._is_own_call = is_own_call
        self._inside = False
        self._called = False
        self._bare = False
        self._watched = False

    def watch(self) -> None:
        """Count from here on."""
        wrapper: Any = self._module()
        if wrapper is None or self._watched:
            return
        self._watched = True
        wrapper.register_forward_pre_hook(Hook(self._enter))
        wrapper.register_forward_hook(Hook(self._leave))  # `always_call` would add a break to a compiled graph
        wrapper.module.register_forward_pre_hook(Hook(self._enter_bare))

    def passed_by(self) -> int:
        """A backward pass begins. Returns how many had no call of the wrapper if this is one of them, else 0."""
        bare, called = self._bare, self._called
        self._bare = self._called = self._inside = False  # a call that raised did not come to the hook at its end
        if not bare or called or self._module() is None:
            return 0
        self.count += 1
        return self.count

    def holds(self, ids: set[int]) -> bool:
        module = self._module()
        return module is not None and any(id(parameter) in ids for parameter in module.parameters())

    def _enter(self, module: nn.Module, args: Any) -> None:
        self._inside = self._called = True

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._inside = False

    def _enter_bare(self, module: nn.Module, args: Any) -> None:
        if not (self._inside or is_compiling()) and torch.is_grad_enabled() and not self._is_own_call():
            self._bare = True


class Comparison:
    """Compares the parameters of one optimizer between the ranks, ever more rarely. Holds what it has published.

    Args:
        number: of the optimizer, the same on every rank.
        named: gives name and parameter.
        replicas: says whether the ranks are meant to hold the same.
        say: prints a line.
    """

    def __init__(
        self,
        number: int,
        named: Callable[[], Sequence[tuple[str, Tensor]]],
        *,
        replicas: Replicas,
        say: Callable[[str], None],
    ) -> None:
        self.note = ""
        """What the end of the run says."""
        self.averaged_by_hand = False
        """Whether the script called `all_reduce` between a backward pass and a step."""
        self._number = number
        self._named = named
        self._replicas = replicas
        self._say = say
        self._published: list[int] = []
        self._equal_once = False
        self._next = 1
        self._publish(0)

    def after_step(self, steps: int) -> None:
        """Called after `steps` steps were applied: a rank may have counted a step that the script gave up."""
        if steps < self._next or self.note:
            return
        self._next = steps * 10
        self._publish(steps)
        for steps_made in list(self._published):
            self._compare(steps_made)

    def end(self) -> None:
        """The run or its group of ranks ends: what was published and not compared yet is compared.

        Ranks that do not average gradients do not wait for each other, so the first one may be far ahead here. It is
        the one that speaks, so it waits for the others' numbers, for `_PATIENCE` at most.
        """
        for steps_made in list(self._published):
            if not self._compare(steps_made, patience=_PATIENCE):
                return

    def _publish(self, steps: int) -> None:
        store = default_store()
        if store is None:
            return
        sums = [checksum(parameter.detach()) for _, parameter in self._named()]
        with contextlib.suppress(RuntimeError, ValueError):  # the store ends with the process of the first rank
            store.set(self._key(steps, dist.get_rank()), json.dumps(sums))
            self._published.append(steps)

    def _compare(self, steps: int, *, patience: timedelta | None = None) -> bool:
        """Read the checksums that all ranks published at this step, if all are there; report those that differ.

        Args:
            steps: after how many steps.
            patience: how long the first rank waits for the others' numbers, if they are meant to be the same.

        Returns:
            Whether all of them were there.
        """
        store = default_store() if dist.is_initialized() else None
        if store is None or self.note:
            return False
        keys = [self._key(steps, rank) for rank in range(dist.get_world_size())]
        held = self._replicas.hold([each for _, each in self._named()])
        try:
            if patience is not None and dist.get_rank() == 0 and (held or self.averaged_by_hand):
                store.wait(keys, patience)
            if not store.check(keys):
                return False
            table = [json.loads(bytes(store.get(key))) for key in keys]
        except (RuntimeError, ValueError):
            return False
        self._published.remove(steps)
        names = [name for name, _ in self._named()]
        differing = [name for name, *sums in zip(names, *table, strict=True) if len(set(sums)) > 1]
        if not differing:
            self._equal_once = True
        elif held or (self.averaged_by_hand and self._equal_once):
            since = f"after {counted(steps, 'step')}" if steps else "before the first step"
            self.note = (
                f"the ranks hold different values {since} although they train one model: "
                f"{some_of(differing, _SHOWN)} (NT701 rank_divergence)"
            )
            if dist.get_rank() == 0:
                self._say(
                    f"{self.note}. Their gradients are not averaged, or their first values were not broadcast: wrap "
                    "all of the model in DistributedDataParallel, and call the wrapper"
                )
        return True

    def _key(self, steps: int, rank: int) -> str:
        shapes = zlib.crc32(repr([tuple(parameter.shape) for _, parameter in self._named()]).encode())
        return f"nantrap/weights/{self._number}/{shapes:08x}/{steps}/{rank}"


def install(patches: Patches, replicas: Replicas, reduces: Callable[[], None], ends: Callable[[], None]) -> None:
    """Know every wrapper, and whether the script averages by hand; let a group of ranks end without a deadlock.

    Args:
        patches: where replaced functions are kept.
        replicas: notified of wrappers.
        reduces: called before each `all_reduce`.
        ends: called before a group of ranks ends.
    """

    def made(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if dist.is_initialized() and dist.get_world_size() > 1:
            replicas.add(self)

    def reduced(original: Any, *args: Any, **kwargs: Any) -> Any:
        reduces()
        return original(*args, **kwargs)

    def ended(original: Any, *args: Any, **kwargs: Any) -> Any:
        ends()
        time.sleep(_LET_GO)
        return original(*args, **kwargs)

    patches.wrap(DistributedDataParallel, "__init__", made)
    if dist.is_available():
        patches.wrap(dist, "all_reduce", reduced, compiled="plain")
        patches.wrap(dist, "destroy_process_group", ended)
