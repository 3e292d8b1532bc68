"""What a guard protects: the model's parameters and buffers, and the optimizer's, by name."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from nantrap.errors import UsageError
from nantrap.locate import states_of, unwrap


class Members:
    """The guarded tensors, in the order in which `clip_grad_norm_(model.parameters())` would see them.

    Parameters outside the model follow after the model's: those of further modules (a learnable loss), then those that
    only the optimizer knows, named after their group. State held: references and names only; `refresh` follows an
    optimizer that grows.

    Args:
        model: the model.
        optimizer: the optimizer.
        also: further modules that take part in the step.
        owned_only: only what the optimizer owns is guarded; other parameters of the model are another optimizer's.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, *, also: Sequence[nn.Module] = (), owned_only: bool = False
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
        self.parameters: list[nn.Parameter] = []
        self._known: list[nn.Parameter] = []
        self._names: dict[int, str] = {}
        self.sizes: list[int] = []
        """How many parameters each group of the optimizer had when it was last read."""
        self.refresh()
        owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not any(id(p) in owned for p in self.root.parameters()):
            raise UsageError(
                "Guard(model, optimizer): the optimizer owns none of the model's parameters. It was probably made "
                "before the model was replaced, moved or wrapped; make it from model.parameters() again"
            )

    def refresh(self) -> None:
        """Look again at what the optimizer owns: it may have more parameters now (layers that are unfrozen later)."""
        groups = self._optimizer.param_groups
        self.sizes = [len(group["params"]) for group in groups]
        named = dict(self.root.named_parameters())
        owned = {id(parameter) for group in groups for parameter in group["params"]}
        for prefix, module in self.also:  # what the optimizer does not move cannot be harmed by the step
            named |= {f"{prefix}.{name}": p for name, p in module.named_parameters() if id(p) in owned}
        for name, parameter in named.items():
            if isinstance(parameter, UninitializedParameter):
                raise UsageError(
                    f"Guard(model=...): parameter {name!r} is still lazy; run one forward pass before making the guard"
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
        found = []
        for parameter in self.parameters:
            gradient = parameter.grad
            if gradient is not None:
                found.append(gradient)
        return found

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
