"""Attaching faults to a run, through torch's public hooks only: modules, tensors, optimizers, `torch.save`.

A step here is what leads to one backward pass: all forward passes of the model in training mode up to it. Faults hit
its first one. They do not happen again while a failed step is replayed: like a flipped bit, they happen once. A bad
batch, weight, buffer or optimizer state stays bad.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from nantrap.errors import UsageError
from nantrap.faults.plan import VALUES, Fault, parse_faults
from nantrap.faults.writing import can_hold, flip_bit, spoil, spoiled, tensors_in, with_tensors
from nantrap.locate.failure import is_replaying
from nantrap.locate.wrapping import states_of

_BEFORE = ("param", "buffer", "optimizer", "bitflip", "batch")


@dataclass(frozen=True, slots=True)
class Injected:
    """One fault that happened: in which step, what, where, and which value."""

    step: int
    kind: str
    place: str
    value: str


class Injector:
    """Faults attached to a run.

    Holds the count of steps, the faults that happened (`injected`), those that found nothing to hit (`missed`), and
    the hooks, which `close` removes.
    """

    def __init__(
        self, faults: Iterable[Fault], *, model: nn.Module | None = None, optimizer: Optimizer | None = None
    ) -> None:
        self.faults = tuple(faults)
        self.injected: list[Injected] = []
        self.missed: list[Injected] = []
        self.step = -1
        self._begun = False
        self._saves = -1
        self._model = model
        self._optimizers: list[weakref.ref[Optimizer]] = []
        """In the order in which they were seen: a set would be in the order of memory addresses."""
        if optimizer is not None:
            self._see_optimizer(optimizer)
        self._depth = 0
        self._roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._due: list[tuple[Fault, random.Random]] = []
        self._handles: list[Any] = []
        self._armed: list[Any] = []
        self._restore: list[Callable[[], None]] = []

    def attach(self) -> None:
        """Register the hooks: on the model, or on every module of the process if none was given."""
        if self._model is not None:
            self._handles.append(self._model.register_forward_pre_hook(self._before_root, with_kwargs=True))
            self._handles.append(self._model.register_forward_hook(self._after_root))
        else:
            self._handles.append(register_module_forward_pre_hook(self._enter))
            self._handles.append(register_module_forward_hook(self._leave, always_call=True))
        self._handles.append(register_optimizer_step_pre_hook(self._see_optimizer))
        if any(fault.kind == "checkpoint" for fault in self.faults):
            self._patch_save()

    def close(self) -> None:
        """Remove every hook."""
        for handle in (*self._handles, *self._armed):
            handle.remove()
        for restore in self._restore:
            restore()
        self._handles.clear()
        self._armed.clear()
        self._restore.clear()

    # One step.

    def _before_root(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A training step begins: put in the faults that are due now, and prepare those of its backward pass and its
        loss.
        """
        if not _is_training(module) or self._begun:
            return
        self._begun = True
        self.step += 1
        self._due = []
        for handle in self._armed:  # what the last step did not reach does not happen later
            handle.remove()
        self._armed.clear()
        for fault in self.faults:
            chance = fault.chance(self.step, _rank()) if fault.kind != "checkpoint" else None
            if chance is None:
                continue
            if fault.kind in _BEFORE:
                self._put_before(module, fault, chance, (args, kwargs))
            elif fault.kind == "grad":
                self._arm_gradient(module, fault, chance)
            elif fault.kind == "activation":
                self._arm_activation(module, fault, chance)
            else:
                self._due.append((fault, chance))

    def _after_root(self, module: nn.Module, args: Any, output: Any) -> Any:
        """A bad loss: everything the model gives is multiplied, so the loss and all gradients are bad."""
        if not _is_training(module):
            return None
        for tensor in tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(self._end_step)
        if not self._due:
            return None
        for fault, _ in self._due:
            found = [tensor for tensor in tensors_in(output) if tensor.is_floating_point()]
            if not found:
                self.missed.append(Injected(self.step, fault.kind, "the output holds no floats", fault.value))
                continue
            output = with_tensors(output, functools.partial(_multiplied, factor=VALUES[fault.value]))
            self._note(fault, "output of the model")
        self._due = []
        return output

    def _put_before(self, module: nn.Module, fault: Fault, chance: random.Random, inputs: Any) -> None:
        """Faults that exist before the forward pass: in the batch, the weights, the buffers, the optimizer."""
        candidates = [
            (name, tensor)
            for name, tensor in self._candidates(module, fault, inputs)
            if can_hold(tensor) and fault.matches(name)
        ]
        if not candidates:
            self.missed.append(Injected(self.step, fault.kind, "nothing to hit", fault.value))
            return
        name, tensor = candidates[chance.randrange(len(candidates))]
        place = flip_bit(tensor.data, fault, chance) if fault.kind == "bitflip" else spoil(tensor.data, fault, chance)
        self._note(fault, f"{name}{place}")

    def _candidates(self, module: nn.Module, fault: Fault, inputs: Any) -> Iterator[tuple[str, Tensor]]:
        """The tensors that a fault of this kind may hit, by name."""
        if fault.kind == "batch":
            yield from ((f"input{number}", tensor) for number, tensor in enumerate(tensors_in(inputs)))
        elif fault.kind == "buffer":
            yield from module.named_buffers()
        elif fault.kind == "optimizer":
            names = {id(parameter): name for name, parameter in module.named_parameters()}
            for optimizer in filter(None, (seen() for seen in self._optimizers)):
                for parameter, state in states_of(optimizer):
                    for key, value in state.items():
                        if isinstance(value, Tensor) and value.dim() > 0:
                            yield f"{names.get(id(parameter), 'parameter')}.{key}", value
        else:
            yield from module.named_parameters()

    def _arm_gradient(self, module: nn.Module, fault: Fault, chance: random.Random) -> None:
        """One parameter's gradient is changed when backward reaches it; then the hook is gone."""
        named = [(n, p) for n, p in module.named_parameters() if p.requires_grad and fault.matches(n) and can_hold(p)]
        if not named:
            self.missed.append(Injected(self.step, fault.kind, "no parameter matches", fault.value))
            return
        name, parameter = named[chance.randrange(len(named))]

        def change(gradient: Tensor) -> Tensor:
            handle.remove()
            if is_replaying():
                return gradient
            self._note(fault, name)
            return spoiled(gradient, fault, chance)

        handle = parameter.register_hook(change)
        self._armed.append(handle)

    def _arm_activation(self, module: nn.Module, fault: Fault, chance: random.Random) -> None:
        """One module's output is changed in this pass; then the hook is gone."""
        named = [(n, m) for n, m in module.named_modules() if n and not list(m.children()) and fault.matches(n)]
        if not named:
            self.missed.append(Injected(self.step, fault.kind, "no module matches", fault.value))
            return
        name, chosen = named[chance.randrange(len(named))]

        def change(_module: nn.Module, _args: Any, output: Any) -> Any:
            handle.remove()
            found = [tensor for tensor in tensors_in(output) if can_hold(tensor)]
            if is_replaying() or not found:
                return output
            target = found[chance.randrange(len(found))]
            self._note(fault, name)
            return with_tensors(output, lambda tensor: spoiled(tensor, fault, chance) if tensor is target else tensor)

        handle = chosen.register_forward_hook(change)
        self._armed.append(handle)

    # The whole process, if no model was given.

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """A hook of the process does not see keyword arguments, a hook of the module does, from its next call on."""
        self._depth += 1
        if self._depth == 1 and module not in self._roots and _takes_part(module, self._model):
            self._roots.add(module)
            self._handles.append(module.register_forward_pre_hook(self._enter_root, with_kwargs=True))
            self._before_root(module, args, {})

    def _enter_root(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._depth == 1:
            self._before_root(module, args, kwargs)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> Any:
        self._depth -= 1
        return self._after_root(module, args, output) if self._depth == 0 and output is not None else None

    def _end_step(self, _gradient: Tensor) -> None:
        """The backward pass has reached an output of the model: the next forward pass is one of another step."""
        if not is_replaying():
            self._begun = False

    def _see_optimizer(self, optimizer: Optimizer, *_: Any) -> None:
        self._begun = False
        if not any(seen() is optimizer for seen in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))

    def _patch_save(self) -> None:
        """The two functions that write checkpoints: of torch, and of safetensors, as Hugging Face does."""
        import safetensors.torch

        for owner, name in ((torch, "save"), (safetensors.torch, "save_file")):
            original = getattr(owner, name)
            setattr(owner, name, self._spoiling(original))
            self._restore.append(functools.partial(setattr, owner, name, original))

    def _spoiling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`torch.save`, which spoils a copy of what is saved when a fault is due."""

        @functools.wraps(original)
        def save(obj: Any, *args: Any, **kwargs: Any) -> Any:
            self._saves += 1
            for fault in self.faults:
                chance = fault.chance(self._saves, _rank()) if fault.kind == "checkpoint" else None
                if chance is not None:
                    obj = self._spoil_saved(obj, fault, chance)
            return original(obj, *args, **kwargs)

        return save

    def _spoil_saved(self, obj: Any, fault: Fault, chance: random.Random) -> Any:
        """What is written is bad, what is in memory stays good."""
        found = [tensor for tensor in tensors_in(obj) if can_hold(tensor)]
        if not found:
            self.missed.append(Injected(self._saves, fault.kind, "no tensor in what is saved", fault.value))
            return obj
        target = found[chance.randrange(len(found))]
        self._note(fault, f"save {self._saves}")
        return with_tensors(
            _copied(obj), lambda tensor: spoiled(tensor.detach(), fault, chance) if tensor is target else tensor
        )

    def _note(self, fault: Fault, place: str) -> None:
        step = self._saves if fault.kind == "checkpoint" else self.step
        value = f"bit {place.rpartition(' ')[2]}" if fault.kind == "bitflip" else fault.value
        self.injected.append(Injected(step, fault.kind, place, value))


@contextlib.contextmanager
def inject(
    faults: str | Fault | Iterable[Fault],
    *,
    model: nn.Module | None = None,
    optimizer: Optimizer | None = None,
) -> Iterator[Injector]:
    """Put faults into the training that runs inside the `with` block.

    Args:
        faults: `"grad:0.01,seed=1"`, a `Fault`, or several of them.
        model: the model to hit. By default the outermost module that runs in training mode is hit.
        optimizer: its optimizer, for faults in the optimizer state; found automatically after its first step.

    Yields:
        The injector: `.injected` lists what happened, `.missed` what found nothing to hit.

    Example:
        >>> with nantrap.inject("grad:step=3", model=model) as faults:  # doctest: +SKIP
        ...     train(model)
        >>> faults.injected  # doctest: +SKIP
        [Injected(step=3, kind='grad', place='head.weight', value='nan')]
    """
    if isinstance(faults, str):
        wanted: tuple[Fault, ...] = parse_faults(faults)
    else:
        wanted = tuple(faults) if isinstance(faults, Iterable) else (faults,)
    if not all(isinstance(fault, Fault) for fault in wanted):
        raise UsageError('inject takes text such as "grad:0.01,seed=1", a Fault, or several Faults')
    injector = Injector(wanted, model=model, optimizer=optimizer)
    injector.attach()
    try:
        yield injector
    finally:
        injector.close()


def _is_training(module: nn.Module) -> bool:
    return module.training and torch.is_grad_enabled() and not is_replaying()


def _takes_part(module: nn.Module, model: nn.Module | None) -> bool:
    """A loss module without parameters is not a model."""
    return model is None and next(module.parameters(), None) is not None


def _multiplied(tensor: Tensor, *, factor: float) -> Tensor:
    return tensor * factor if tensor.is_floating_point() else tensor


def _rank() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK", "0") or 0)


def _copied(obj: Any) -> Any:
    """The containers copied, the tensors shared."""
    return with_tensors(obj, lambda tensor: tensor)
