"""Which module an optimizer's parameters belong to, when the program does not say it.

The module that was just called, if it owns them all: that is what the user calls the model. Otherwise the outermost
modules that hold them, found among everything alive; several of them (a backbone and a head) are put into one group.

Until each optimizer's model is known, the calls of all modules are watched: `nn.Module.__call__` itself is replaced,
and restored when every optimizer has made its first step. From then on a healthy run pays for the hooks of its root
and nothing else.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from nantrap.launch.torch_private import children_of, compiler_listens, has_child, leave_uncompiled, own_parameters
from nantrap.locate import unwrap
from nantrap.locate.replay.replay import compiled_frames
from nantrap.locate.wrapping import is_entry


class ModuleGroup(nn.Module):
    """Several models and tensors trained by one optimizer. Holds them by name and is never called itself.

    A tensor need not be an `nn.Parameter`: an optimizer takes any leaf that requires a gradient.
    """

    def __init__(self, parts: Sequence[nn.Module], loose: Sequence[Tensor] = ()) -> None:
        super().__init__()
        for part in parts:
            self.add_module(self._free_name(type(unwrap(part)).__name__.lower()), part)
        written = names_in_script()
        names = [written.get(id(tensor), f"tensor{index}") for index, tensor in enumerate(loose)]
        self._loose = list(zip(names, loose, strict=True))

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters of the modules, then the loose ones."""
        yield from super().named_parameters(*args, **kwargs)
        yield from self._loose  # type: ignore[misc]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The state of the modules, and the loose tensors by name."""
        found = super().state_dict(*args, **kwargs)
        prefix = kwargs.get("prefix", "")
        found.update({f"{prefix}{name}": tensor.detach() for name, tensor in self._loose})
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Into the modules, and into the loose tensors by name."""
        loose = dict(self._loose)
        with torch.no_grad():
            for name, tensor in loose.items():
                tensor.copy_(state_dict[name])
        return super().load_state_dict({k: v for k, v in state_dict.items() if k not in loose}, *args, **kwargs)

    def _free_name(self, wanted: str) -> str:
        name, number = wanted, 1
        while has_child(self, name) or hasattr(self, name):  # a model may be called Half, like a method of modules
            number += 1
            name = f"{wanted}{number}"
        return name


def names_in_script() -> dict[int, str]:
    """The tensors that the script holds in variables of its own, by id. Of several names of one the first counts:
    a later one is mostly that of a loop, such as `for p in (w, b)`."""
    held = vars(sys.modules["__main__"]).items()
    return {id(value): name for name, value in reversed(held) if isinstance(value, Tensor)}


def innermost(optimizer: Any) -> Any:
    """The optimizer inside the wrappers of a framework (Accelerate puts one around it)."""
    inner = getattr(optimizer, "optimizer", None)
    return innermost(inner) if isinstance(inner, Optimizer) and inner is not optimizer else optimizer


def owns_some(module: nn.Module, parameters: Iterable[Tensor]) -> bool:
    """Whether a module holds any of these parameters."""
    wanted = {id(parameter) for parameter in parameters}
    return any(id(parameter) in wanted for parameter in module.parameters())


def find_root(parameters: Sequence[Tensor], called: nn.Module | None = None) -> nn.Module | None:
    """The model of these parameters, or `None` while some of it has no values yet.

    Args:
        parameters: what an optimizer owns.
        called: the module that is being called, if there is one.
    """
    if any(map(_has_no_values, parameters)):
        return None
    wanted = {id(parameter) for parameter in parameters}
    if called is not None and wanted <= {id(parameter) for parameter in called.parameters()}:
        return None if _is_lazy(called) else _replica_around(called, wanted) or called
    roots = _outermost(wanted)
    chosen: list[nn.Module] = []
    missing = set(wanted)
    for root in sorted(roots, key=lambda module: -len(_held(module, wanted))):
        if held := _held(root, missing):
            chosen.append(root)
            missing -= held
    if any(_is_lazy(root) for root in chosen):
        return None
    loose = [p for p in parameters if id(p) in missing]
    return chosen[0] if len(chosen) == 1 and not loose else ModuleGroup(chosen, loose)


def _replica_around(called: nn.Module, wanted: set[int]) -> nn.Module | None:
    """The `DistributedDataParallel` that averages these gradients: one rank may call its inner module first."""
    if "torch.distributed" not in sys.modules or not torch.distributed.is_available():
        return None
    if not torch.distributed.is_initialized() or any(isinstance(m, DistributedDataParallel) for m in called.modules()):
        return None
    replicas = [thing for thing in gc.get_objects() if issubclass(type(thing), DistributedDataParallel)]
    return next((replica for replica in replicas if len(_held(replica, wanted)) == len(wanted)), None)


def _outermost(wanted: set[int]) -> list[nn.Module]:
    """The modules that hold some of the wanted parameters and are part of no other module, among everything alive."""
    alive = [thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module) and "_modules" in vars(thing)]
    parents: dict[int, list[nn.Module]] = {}
    for module in alive:
        for child in children_of(module):
            parents.setdefault(id(child), []).append(module)
    waiting = [m for m in alive if any(id(p) in wanted for p in own_parameters(m))]
    seen = {id(module) for module in waiting}
    roots: list[nn.Module] = []
    for module in waiting:  # grows while it is walked
        above = [parent for parent in parents.get(id(module), ()) if not isinstance(parent, ModuleGroup)]
        if not above:
            roots.append(module)
        for parent in above:
            if id(parent) not in seen:
                seen.add(id(parent))
                waiting.append(parent)
    return roots


def _held(module: nn.Module, wanted: set[int]) -> set[int]:
    return {id(parameter) for parameter in module.parameters()} & wanted


def _is_lazy(module: nn.Module) -> bool:
    return any(map(_has_no_values, module.parameters())) or any(map(is_lazy, module.buffers()))


def _has_no_values(parameter: Tensor) -> bool:
    """Whether there is nothing to guard in a parameter yet: it is lazy, on the meta device, or a fake tensor."""
    return is_lazy(parameter) or parameter.is_meta or hasattr(parameter, "fake_mode")


class ModuleCalls:
    """Watches every call of a module. Holds the plain `__call__`, and how deep the calls are nested now.

    Args:
        called: what to do before a call with gradients.
        called_from_outside: what to do before a call in training that no other module makes.
        called_apart: what to do before any call that no other module makes.
        is_own_call: whether the guard itself is running now.
    """

    def __init__(
        self,
        *,
        called: Callable[[nn.Module], None],
        called_from_outside: Callable[[nn.Module], None],
        called_apart: Callable[[nn.Module], None],
        is_own_call: Callable[[], bool],
    ) -> None:
        self.watched = False
        """Whether an optimizer waits for its model, so that calls are watched."""
        self._called = called
        self._called_from_outside = called_from_outside
        self._called_apart = called_apart
        self._is_own_call = is_own_call
        self._plain_call: Any = None
        self._depth = 0
        self._compiled_unseen = compiled_frames()
        """Frames that were compiled while no call was watched."""

    def watch(self) -> None:
        """Replace `nn.Module.__call__`, so that the first call of a model shows which optimizer it belongs to."""
        if self.watched:
            return
        self.watched = True
        plain = self._plain_call = nn.Module.__call__

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            """A call of any module, noted before it is made."""
            if is_compiling() or compiler_listens():  # a compiled step: its model is found at its backward pass
                return plain(module, *args, **kwargs)
            if not self._is_own_call():
                if torch.is_grad_enabled():
                    self._called(module)
                if not self._depth:
                    if module.training:
                        self._called_from_outside(module)
                    self._called_apart(module)
            self._depth += 1
            try:
                return (
                    self._compiled_call(call, module, args, kwargs)
                    if is_entry(module)
                    else plain(module, *args, **kwargs)
                )
            finally:
                self._depth -= 1

        leave_uncompiled(call)
        nn.Module.__call__ = call  # type: ignore[method-assign]

    def unwatch(self, *, at_end: bool = False) -> bool:
        """Put the plain `__call__` back. Returns whether calls were watched and are not any more.

        Code that was compiled while they were watched has our `__call__` in it, and keeps it up to the end.

        Args:
            at_end: restore it in any case.
        """
        if not self.watched or (not at_end and compiled_frames() > self._compiled_unseen):
            return False
        nn.Module.__call__ = self._plain_call  # type: ignore[method-assign]
        self._plain_call, self.watched = None, False
        return True

    def _compiled_call(self, watching: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """The compiler sees `__call__` as it is without us: what it compiles now must still hold when we are gone."""
        plain, before = self._plain_call, compiled_frames()
        if plain is None:
            return module(*args, **kwargs)
        nn.Module.__call__ = plain  # type: ignore[method-assign]
        try:
            return plain(module, *args, **kwargs)
        finally:
            self._compiled_unseen += compiled_frames() - before
            if self._plain_call is not None:
                nn.Module.__call__ = watching  # type: ignore[method-assign]
