"""Attach to PyTorch: from here on every optimizer that is made is guarded, until `detach`. Optimizers and imports that
exist already, in a notebook or under a framework, are reached by `enter_living`."""

from __future__ import annotations

import contextlib
import multiprocessing.util
import os
import sys
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch.optim import Optimizer

from nantrap.checkpoints.torch_private import mark_stepped
from nantrap.faults import Injected, Injector, parse_faults
from nantrap.launch import calls, checkpointing, companions, deepspeed_engine, frameworks, loaders, processes, replicas
from nantrap.launch.patches import Patches
from nantrap.launch.registry import OptimizerRegistry
from nantrap.launch.settings import RunSettings
from nantrap.launch.torch_private import is_scheduled, mark_scheduled
from nantrap.locate.twoline.caller import forget_entry

_living: list[Attachment] = []


def current() -> Attachment | None:
    """The attachment of this process, if there is one: `nantrap run`, a notebook or an adapter."""
    return _living[-1] if _living else None


class Attachment:
    """Narrow, reversible wrappers around PyTorch. Holds what they replaced, and the guards."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        batches = loaders.Batches()
        self.registry = OptimizerRegistry(settings, batches)
        self._patches = Patches()
        self._reached = Reached()
        scaled = companions.Scaled()
        calls.install(self._patches, self.registry, scaled)
        companions.install(self._patches, self.registry, scaled)
        checkpointing.install(self._patches, self.registry)
        loaders.install(self._patches, batches)
        processes.install(self._patches, self.registry)
        replicas.install(self._patches, self.registry.replicas, self.registry.reduces, self.registry.group_ends)
        frameworks.install(self._patches, self.registry)
        self.engines = deepspeed_engine.Engines(self._patches, self.registry, scaled)
        self._faults = Injector(parse_faults(settings.inject)) if settings.inject else None
        if self._faults is not None:
            self._faults.attach()
        self._owner = os.getpid()
        _living.append(self)
        multiprocessing.util.register_after_fork(self, _end_with_process)

    def enter_living(self) -> None:
        """Guard also what exists already: optimizers that were made before, functions that were imported before."""
        self._reached.reach(self.registry)

    def begin_in_child(self, settings: RunSettings | None = None) -> None:
        """This process was forked from one that is attached: it is attached as well, and records separately.

        Args:
            settings: those of this process; `None` keeps those of the parent.
        """
        self.registry.begin_in_child()
        if settings is not None:
            self.settings = self.registry.settings = settings

    @property
    def is_forked(self) -> bool:
        """Whether this process is a copy of the one that attached."""
        return self._owner != os.getpid()

    def end_in_child(self) -> None:
        """A process that the script started ends without the end of `nantrap run`: its journal is written, its summary
        printed, and the process that started it learns how it ended."""
        from nantrap.launch.started import tell_end
        from nantrap.launch.summary import RunSummary, print_summary

        if self not in _living or not any(True for _ in self.registry):
            return
        self.registry.record_abandoned()
        summary = RunSummary.of(self)
        self.detach()
        if self.registry.reports_to:
            tell_end(self.registry.reports_to, summary)
        print_summary(summary, 3 if summary.stopped else 0, self.registry.settings)

    def detach(self) -> None:
        """PyTorch as it was; every guard is closed. May be called again."""
        if self in _living:
            _living.remove(self)
        if self._faults is not None:
            self._faults.close()
        self.registry.close()
        self._reached.undo()
        self._patches.undo()
        self.engines.end()
        forget_entry()

    @property
    def injected(self) -> list[Injected]:
        """The injected faults that happened so far."""
        return list(self._faults.injected) if self._faults is not None else []

    def bad_state(self) -> list[str]:
        """The names of the guarded parameters and buffers that are not finite now."""
        return [name for loop in self.registry for name in loop.bad_state()] + self.registry.loose_values.bad_leaves()


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
def attached(settings: RunSettings | None = None) -> Iterator[Attachment]:
    """Attach for a while."""
    attachment = Attachment(settings or RunSettings())
    try:
        yield attachment
    finally:
        attachment.detach()


class Reached:
    """What was changed to reach existing optimizers and modules. Holds what was there before; `undo` restores it."""

    def __init__(self) -> None:
        self._own_steps: list[tuple[weakref.ref[Optimizer], Any]] = []
        self._imported: list[tuple[ModuleType, str, Any]] = []

    def reach(self, registry: OptimizerRegistry) -> None:
        """Guard every optimizer that was made before, and the functions that were imported before."""
        registry.enter_living()
        for entry in registry.entries():
            self.reach_through_schedule(entry.optimizer)
        import safetensors.torch

        self.replace_imported(safetensors.torch.save_file)
        self.replace_imported(torch.nn.utils.clip_grad_norm_)

    def undo(self) -> None:
        """Everything as before."""
        for reference, own in self._own_steps:
            if (optimizer := reference()) is not None:
                optimizer.step = own  # type: ignore[method-assign]
        for module, name, value in self._imported:
            setattr(module, name, value)
        self._own_steps.clear()
        self._imported.clear()

    def reach_through_schedule(self, reference: weakref.ref[Optimizer]) -> None:
        """A schedule gives its optimizer a `step` that calls the class's as it was: let it call the present one."""
        optimizer = reference()
        own = None if optimizer is None else vars(optimizer).get("step")
        if optimizer is None or not is_scheduled(own):
            return

        def step(*args: Any, **kwargs: Any) -> Any:
            living = reference()
            assert living is not None
            mark_stepped(living)
            return type(living).step(living, *args, **kwargs)

        mark_scheduled(step)
        self._own_steps.append((reference, own))
        optimizer.step = step  # type: ignore[method-assign]

    def replace_imported(self, wrapped: Any) -> None:
        """Modules that imported a function by its name before it was wrapped get the wrapper."""
        original = getattr(wrapped, "__wrapped__", None)
        if original is None:
            return
        for module in list(sys.modules.values()):
            if not isinstance(module, ModuleType) or module.__name__.startswith(("torch.", "safetensors.", "nantrap.")):
                continue
            for name, value in list(vars(module).items()):
                if value is original:
                    self._imported.append((module, name, value))
                    setattr(module, name, wrapped)
