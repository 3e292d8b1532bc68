"""Attach to PyTorch: from here on every optimizer that is made is guarded, until `detach`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from nantrap.faults import Injected, Injector, parse_faults
from nantrap.launch import (
    calls,
    children,
    handled,
    loaders,
    optimizers,
    processes,
    replicas,
    resuming,
    saving,
    scalers,
    schedules,
    sharded_saving,
)
from nantrap.launch.loops import Loops
from nantrap.launch.patches import Patches
from nantrap.launch.settings import Settings

_living: list[Attachment] = []


def current() -> Attachment | None:
    """The attachment of this process, if there is one: `nantrap run`, a notebook or an adapter."""
    return _living[-1] if _living else None


class Attachment:
    """Narrow, reversible wrappers around PyTorch. Holds what they replaced, and the guards."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        batches = loaders.Batches()
        self.loops = Loops(settings, batches)
        self._patches = Patches()
        scaled = scalers.Scaled()
        optimizers.install(self._patches, self.loops)
        calls.install(self._patches, self.loops, scaled)
        scalers.install(self._patches, self.loops, scaled)
        handled.install(self._patches, self.loops)
        schedules.install(self._patches, self.loops)
        resuming.install(self._patches, self.loops)
        saving.install(self._patches, self.loops)
        sharded_saving.install(self._patches, self.loops)
        loaders.install(self._patches, batches)
        children.install(self._patches, self.loops)
        processes.install(self._patches, self.loops)
        replicas.install(self._patches, self.loops.replicas, self.loops.reduces)
        self._faults = Injector(parse_faults(settings.inject)) if settings.inject else None
        if self._faults is not None:
            self._faults.attach()
        _living.append(self)

    def detach(self) -> None:
        """PyTorch as it was; every guard is closed. May be called again."""
        if self in _living:
            _living.remove(self)
        if self._faults is not None:
            self._faults.close()
        self.loops.close()
        self._patches.undo()

    @property
    def injected(self) -> list[Injected]:
        """The injected faults that happened so far."""
        return list(self._faults.injected) if self._faults is not None else []

    def bad_state(self) -> list[str]:
        """The names of the guarded parameters and buffers that are not finite now."""
        return [name for loop in self.loops for name in loop.bad_state()] + self.loops.bad_loose()


@contextlib.contextmanager
def attached(settings: Settings | None = None) -> Iterator[Attachment]:
    """Attach for a while."""
    attachment = Attachment(settings or Settings())
    try:
        yield attachment
    finally:
        attachment.detach()
