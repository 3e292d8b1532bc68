"""Attaching late, to optimizers and imports that exist already: in a notebook, or by an adapter of a framework."""

from __future__ import annotations

import sys
import weakref
from types import ModuleType
from typing import Any

import torch
from torch.optim import Optimizer

from nantrap.launch.loops import Loops
from nantrap.launch.torch_private import is_scheduled, mark_scheduled, mark_stepped


class Reached:
    """What was changed to reach existing optimizers and modules. Holds what was there before; `undo` restores it."""

    def __init__(self) -> None:
        self._own_steps: list[tuple[weakref.ref[Optimizer], Any]] = []
        self._imported: list[tuple[ModuleType, str, Any]] = []

    def reach(self, loops: Loops) -> None:
        """Guard every optimizer that was made before, and the functions that were imported before."""
        loops.enter_living()
        for entry in loops.entries():
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
