"""Attach to PyTorch: from here on every optimizer that is made is guarded, until `detach`."""

from __future__ import annotations

import contextlib
import multiprocessing.util
import os
from collections.abc import Iterator

from nantrap.faults import Injected, Injector, parse_faults
from nantrap.launch import (
    calls,
    children,
    frameworks,
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
from nantrap.launch.living import Reached
from nantrap.launch.loops import Loops
from nantrap.launch.patches import Patches
from nantrap.launch.settings import Settings
from nantrap.locate.entry import forget_entry

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
        self._reached = Reached()
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
        frameworks.install(self._patches, self.loops)
        self._faults = Injector(parse_faults(settings.inject)) if settings.inject else None
        if self._faults is not None:
            self._faults.attach()
        self._owner = os.getpid()
        _living.append(self)
        multiprocessing.util.register_after_fork(self, _end_with_process)

    def enter_living(self) -> None:
        """Guard also what exists already: optimizers that were made before, functions that were imported before."""
        self._reached.reach(self.loops)

    def begin_in_child(self, settings: Settings | None = None) -> None:
        """This process was forked from one that is attached: it is attached as well, and records separately.

        Args:
            settings: those of this process; `None` keeps those of the parent.
        """
        self.loops.begin_in_child()
        if settings is not None:
            self.settings = self.loops.settings = settings

    @property
    def is_forked(self) -> bool:
        """Whether this process is a copy of the one that attached."""
        return self._owner != os.getpid()

    def end_in_child(self) -> None:
        """A forked process ends without the end of `nantrap run`: its journal is written, and its summary printed."""
        from nantrap.launch.summary import Summary, print_summary

        if self not in _living or not any(True for _ in self.loops):
            return
        self.loops.record_abandoned()
        summary = Summary.of(self)
        self.detach()
        print_summary(summary, 3 if summary.stopped else 0, self.loops.settings)

    def detach(self) -> None:
        """PyTorch as it was; every guard is closed. May be called again."""
        if self in _living:
            _living.remove(self)
        if self._faults is not None:
            self._faults.close()
        self.loops.close()
        self._reached.undo()
        self._patches.undo()
        forget_entry()

    @property
    def injected(self) -> list[Injected]:
        """The injected faults that happened so far."""
        return list(self._faults.injected) if self._faults is not None else []

    def bad_state(self) -> list[str]:
        """The names of the guarded parameters and buffers that are not finite now."""
        return [name for loop in self.loops for name in loop.bad_state()] + self.loops.bad_loose()


def _after_fork() -> None:
    """In a child: workers of a data loader, processes that train. Never raises; most children train nothing."""
    for attachment in _living:
        with contextlib.suppress(Exception):
            attachment.begin_in_child()


def _end_with_process(attachment: Attachment) -> None:
    """In a child that `multiprocessing` forked: it ends without the exit handlers of Python, but with these."""
    multiprocessing.util.Finalize(None, attachment.end_in_child, exitpriority=1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def attached(settings: Settings | None = None) -> Iterator[Attachment]:
    """Attach for a while."""
    attachment = Attachment(settings or Settings())
    try:
        yield attachment
    finally:
        attachment.detach()
