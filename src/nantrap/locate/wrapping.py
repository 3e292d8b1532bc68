"""What is around the module and the optimizer that the user wrote, and what is inside them.

*   Wrappers around a module, and the parts that may be called instead of it.
*   Optimizers that keep another optimizer: the state of both belongs to the step. `ZeroRedundancyOptimizer` holds no
    state itself: the optimizer inside it has that of the parameters which this rank updates. Lookahead, SAM and the
    like keep the optimizer that they are built around.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

_HELD_AS = {"DistributedDataParallel": "module", "DataParallel": "module", "_FabricModule": "_forward_module"}
"""Wrappers by the name of their class, and what the module inside is called there."""


def unwrap(model: nn.Module) -> nn.Module:
    """The module the user wrote, inside DistributedDataParallel, DataParallel, Fabric's wrapper or `torch.compile`."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and (held := _HELD_AS.get(type(model).__name__)) is not None:
            inner = getattr(model, held)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def forward_code(module: nn.Module) -> CodeType | None:
    """The code of a module's `forward`; `None` where it has none in Python, such as a TorchScript module."""
    return getattr(getattr(type(module), "forward", None), "__code__", None)


def arguments_by_name(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What a module is called with, by the names in its `forward`."""
    code = forward_code(unwrap(module))
    names = () if code is None else code.co_varnames[1 : code.co_argcount]
    named = {names[i] if i < len(names) else f"args[{i}]": value for i, value in enumerate(args)}
    return {**named, **kwargs}


def is_compiled(model: nn.Module) -> bool:
    """Whether a model, or any module in it, was given to `torch.compile`."""
    return any(is_entry(module) for module in model.modules())


def is_entry(module: nn.Module) -> bool:
    """Whether calling this module enters compiled code: `torch.compile(module)` or `module.compile()`."""
    own = module.__dict__.get("_modules", ())  # a scripted module keeps its parts elsewhere
    return "_orig_mod" in own or getattr(module, "_compiled_call_impl", None) is not None


def is_container(module: nn.Module) -> bool:
    """Whether a module only holds others: it has no `forward`, so it is never called itself."""
    return getattr(type(module), "forward", None) is nn.Module.forward  # a TorchScript module has none there


def callable_parts(root: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules below the root that can be called: containers are searched inside."""
    for child in root.children():
        if is_container(child):
            yield from callable_parts(child)
        else:
            yield child


def layers_of(optimizer: Optimizer) -> list[Optimizer]:
    """An optimizer, then those that it keeps in attributes and that update parameters of it. Each state once."""
    layers = [optimizer]
    for layer in layers:  # grows while it is read
        for value in vars(layer).values():
            for inner in value if isinstance(value, (list, tuple)) else (value,):
                if not isinstance(inner, Optimizer) or any(inner.state is known.state for known in layers):
                    continue
                if parameters_of(inner) & parameters_of(layer):
                    layers.append(inner)
    return layers


def parameters_of(optimizer: Optimizer) -> set[int]:
    """The parameters that an optimizer owns, by id."""
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def updated_elsewhere(optimizer: Optimizer) -> set[int]:
    """The parameters of an optimizer that another process updates and sends, by id: with ZeRO each rank has its own."""
    _, *inner = layers_of(optimizer)
    return parameters_of(optimizer).difference(*map(parameters_of, inner)) if inner else set()


def states_of(optimizer: Optimizer) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Every parameter that an optimizer remembers something of, with what it remembers."""
    for layer in layers_of(optimizer):
        yield from ((parameter, state) for parameter, state in layer.state.items() if isinstance(state, dict))


def state_tensors(optimizer: Optimizer) -> list[Tensor]:
    """The tensors of an optimizer's state."""
    return [value for _, state in states_of(optimizer) for value in state.values() if isinstance(value, Tensor)]
