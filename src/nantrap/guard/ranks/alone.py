"""A part of a step run again by one rank, without the others.

DistributedDataParallel must not average gradients or broadcast buffers then, and any other collective (a loss that
gathers the features of all ranks, synchronised statistics) would wait for ranks that do not take part. So the
synchronisation of DDP is switched off, and every other collective raises `NeedsOthersError` instead of waiting.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from nantrap.errors import NantrapError
from nantrap.guard.ranks.ranks import is_sharded, replicas_in
from nantrap.locate.replay.together import holds_parts, is_collective


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
