"""What a guard protects: the model's parameters and buffers, and the optimizer's, by name.

*   Averaged weights are updated after applied steps only, so that nothing bad ever enters them (`ema_update`).
*   Which parameters the code of a model may write past autograd (`reached_through_data`): a write through
    `self.codes.data[...] = ...` is not counted by the version of the parameter, so it cannot be noticed when it
    happens. The byte code of the module's own methods shows the name before `.data`. Methods that run before training
    (`__init__`, initialisation) do not count, and neither does code of PyTorch.
*   The learning rates in force, and how to lower them so that a scheduler does not restore them.
"""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from nantrap.checkpoints.store.resume import scale_group
from nantrap.errors import UsageError
from nantrap.guard.torch_private import inner_schedulers
from nantrap.locate import states_of, unwrap


class Shards(Protocol):
    """What an optimizer holds on this rank in place of the model's parameters (DeepSpeed's ZeRO)."""

    def tensors(self) -> dict[str, Any]:
        """What the optimizer moves on this rank, by name."""

    def gradients(self) -> dict[str, Tensor]:
        """The averaged gradients of this rank's shards, by the name of the parameter, still times the loss scale."""


class Members:
    """The guarded tensors, in the order in which `clip_grad_norm_(model.parameters())` would see them.

    Parameters outside the model follow after the model's: those of further modules (a learnable loss), then those that
    only the optimizer knows, named after their group. State held: references and names only; `refresh` follows an
    optimizer that gets other parameters.

    Args:
        model: the model.
        optimizer: the optimizer.
        also: further modules that take part in the step.
        owned_only: only what the optimizer owns is guarded; other parameters of the model are another optimizer's.
        shards: where the optimizer moves shards, and the model's parameters are made from them.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        also: Sequence[nn.Module] = (),
        owned_only: bool = False,
        shards: Shards | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise UsageError(f"Guard(model=...): expected a torch.nn.Module, got {type(model).__name__}")
        if not isinstance(optimizer, Optimizer):
            raise UsageError(
                f"Guard(optimizer=...): expected a torch.optim.Optimizer, got {type(optimizer).__name__}. "
                "A wrapped optimizer (Accelerate, DeepSpeed) is reached as its .optimizer"
            )
        self.root = unwrap(model)
        if not any(True for _ in self.root.parameters()):
            raise UsageError(
                f"Guard(model={type(self.root).__name__}): the model has no parameters, so there is nothing to guard"
            )
        self.also = named_modules_beside(also)
        """The further modules by name."""
        self._optimizer = optimizer
        self._owned_only = owned_only
        self._shards = shards
        self.parameters: list[nn.Parameter] = []
        self._known: list[nn.Parameter] = []
        self._names: dict[int, str] = {}
        self.owned: list[Tensor] = []
        """What the optimizer owned when it was last read, group by group."""
        self.refresh()
        owned = set(map(id, self.owned))
        if not any(id(p) in owned for p in self.root.parameters()):
            raise UsageError(
                "Guard(model, optimizer): the optimizer owns none of the model's parameters. It was probably made "
                "before the model was replaced, moved or wrapped; make it from model.parameters() again"
            )

    def refresh(self) -> None:
        """Look again at what the optimizer owns: layers may have been unfrozen or replaced since."""
        groups = self._optimizer.param_groups
        self.owned = [parameter for group in groups for parameter in group["params"]]
        named = dict(self.root.named_parameters())
        if self._shards is not None:
            shards = self._shards.tensors()
            self.owned = [p for p in named.values() if p.requires_grad] + list(shards.values())
            named |= shards
        owned = set(map(id, self.owned))
        for prefix, module in self.also:  # what the optimizer does not move cannot be harmed by the step
            named |= {f"{prefix}.{name}": p for name, p in module.named_parameters() if id(p) in owned}
        for name, tensor in (*named.items(), *self.root.named_buffers()):
            if is_lazy(tensor):
                kind = "parameter" if name in named else "buffer"
                raise UsageError(
                    f"Guard(model=...): {kind} {name!r} is still lazy; run one forward pass before making the guard"
                )
        names = {id(parameter): name for name, parameter in named.items()}
        parameters = list(named.values())
        for group_index, group in enumerate(groups):
            for index, parameter in enumerate(group["params"]):
                if id(parameter) not in names:
                    names[id(parameter)] = f"optimizer.group{group_index}[{index}]"
                    parameters.append(parameter)
        self._names = names
        self._known = parameters
        guarded = [p for p in parameters if id(p) in owned] if self._owned_only else parameters
        self.parameters[:] = guarded  # in place: others hold this list

    def name_of(self, parameter: Tensor) -> str:
        """The qualified name of a guarded parameter."""
        return self._names.get(id(parameter), "a parameter the guard does not know")

    def named(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Name and parameter, in order."""
        return ((self._names[id(parameter)], parameter) for parameter in self.parameters)

    def known(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Name and parameter of everything the step may touch, also what another optimizer owns."""
        return ((self._names[id(parameter)], parameter) for parameter in self._known)

    def gradients(self) -> list[Tensor]:
        """The gradients that exist now, in order."""
        if self._shards is not None:
            return list(self._shards.gradients().values())
        found = []
        for parameter in self.parameters:
            gradient = parameter.grad
            if gradient is not None:
                found.append(gradient)
        return found

    def named_gradients(self) -> dict[str, Tensor]:
        """The gradients that exist now by the name of what they belong to, also where another optimizer owns it."""
        if self._shards is not None:
            return self._shards.gradients()
        return {name: p.grad for name, p in self.known() if p.grad is not None}

    def clear_gradients(self) -> None:
        """Every gradient to `None`: the only value with which no optimizer moves anything."""
        for parameter in self.parameters:
            parameter.grad = None

    def zero_gradients(self) -> None:
        """Every gradient to 0, in place: for a loop that may still read them and clears them itself."""
        with torch.no_grad():
            for gradient in self.gradients():
                gradient.zero_()


def named_modules_beside(modules: Sequence[nn.Module]) -> list[tuple[str, nn.Module]]:
    """Modules outside the model with a name each: that of their class, with a number where it is taken."""
    named: dict[str, nn.Module] = {}
    for module in modules:
        named[name_beside(module, named)] = module
    return list(named.items())


def name_beside(module: nn.Module, taken: Container[str]) -> str:
    """The name of a module outside the model: that of its class, with a number where it is taken."""
    base = name = type(module).__name__.lower()
    number = 1
    while name in taken:
        number += 1
        name = f"{base}{number}"
    return name


def optimizer_tensors(optimizer: Optimizer, names: Members) -> Iterator[tuple[str, str, Tensor]]:
    """Parameter name, state key and tensor of everything an optimizer remembers, lists of tensors (LBFGS) included."""
    for parameter, state in states_of(optimizer):
        name = names.name_of(parameter) if isinstance(parameter, Tensor) else str(parameter)
        for key, value in state.items():
            if isinstance(value, Tensor):
                yield name, str(key), value
            elif isinstance(value, (list, tuple)):
                yield from ((name, f"{key}[{i}]", item) for i, item in enumerate(value) if isinstance(item, Tensor))


def ema_update(ema: Any, model: nn.Module) -> Callable[[], Any] | None:
    """How this average is updated: `update_parameters(model)`, `update(model)`, `update()`, or a plain function."""
    if ema is None:
        return None
    if hasattr(ema, "update_parameters"):  # torch.optim.swa_utils.AveragedModel
        return lambda: ema.update_parameters(model)
    method = getattr(ema, "update", None)
    if callable(method) and not isinstance(ema, (dict, set)):  # a state dict has an `update` of another kind
        required = [
            parameter
            for parameter in inspect.signature(method).parameters.values()
            if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        ]
        return (lambda: method(model)) if required else method
    if callable(ema) and not isinstance(ema, nn.Module):
        return ema  # type: ignore[no-any-return]
    raise UsageError(
        f"Guard(ema={type(ema).__name__}): expected an AveragedModel, an object with update() or update(model), or a "
        "function; a plain copy of the model does not say how it is updated"
    )


def ema_modules(ema: Any) -> list[nn.Module]:
    """The modules that hold the averaged weights, to be watched and rolled back."""
    if isinstance(ema, nn.Module):
        return [ema]
    return [
        value
        for name in ("module", "ema_model", "model", "averaged_model")
        if isinstance(value := getattr(ema, name, None), nn.Module)
    ][:1]


_BEFORE_TRAINING = ("__init__", "reset_parameters", "init_weights", "_init_weights", "_reset_parameters", "extra_repr")


def reached_through_data(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """The parameters whose name is before `.data` in a method of the module that holds them, directly or below."""
    found: dict[int, nn.Parameter] = {}
    known: dict[type, frozenset[str]] = {}
    for root in modules:
        for module in root.modules():
            kind: type = type(module)
            if kind not in known:
                known[kind] = _names_before_data(kind)
            if names := known[kind]:
                found |= {id(p): p for name, p in module.named_parameters() if name.rpartition(".")[2] in names}
    return list(found.values())


def _names_before_data(kind: type) -> frozenset[str]:
    """The attribute names that stand before `.data` in the methods of a class, without those of PyTorch's classes."""
    names: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] == "torch" or base is object:
            continue
        for name, function in vars(base).items():
            if isinstance(function, types.FunctionType) and name not in _BEFORE_TRAINING:
                for code in _codes(function.__code__):
                    names.update(_before_data(code))
    return frozenset(names)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code and that of the functions inside it, where `data` is among the names."""
    if "data" in code.co_names:
        yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _before_data(code: types.CodeType) -> Iterator[str]:
    """`codes` for `self.codes.data`."""
    before = ""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            if instruction.argval == "data" and before:
                yield before
            before = str(instruction.argval)
        else:
            before = ""


def current_rates(optimizer: Optimizer) -> tuple[float, ...]:
    """The learning rate of each parameter group that has one."""
    return tuple(float(group["lr"]) for group in optimizer.param_groups if "lr" in group)


def scale_rates(optimizer: Optimizer, scheduler: Any, factor: float) -> None:
    """Multiply every learning rate, also those from which the scheduler computes the next ones."""
    for group in optimizer.param_groups:
        scale_group(group, factor)
    scale_bases(scheduler, factor)


def scale_bases(scheduler: Any, factor: float) -> None:
    """Multiply the learning rates from which a scheduler, or one inside it, computes the next ones."""
    for inner in _schedulers(scheduler):
        if hasattr(inner, "base_lrs"):
            inner.base_lrs = [rate * factor for rate in inner.base_lrs]


def _schedulers(scheduler: Any) -> list[Any]:
    if scheduler is None:
        return []
    nested = inner_schedulers(scheduler)
    return [scheduler, *(s for inner in nested for s in _schedulers(inner))]
