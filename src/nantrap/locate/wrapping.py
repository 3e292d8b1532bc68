"""The wrappers around the module that the user wrote, and the parts that may be called instead of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

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


def arguments_by_name(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What a module is called with, by the names in its `forward`."""
    code = getattr(type(unwrap(module)).forward, "__code__", None)
    names = () if code is None else code.co_varnames[1 : code.co_argcount]
    named = {names[i] if i < len(names) else f"args[{i}]": value for i, value in enumerate(args)}
    return {**named, **kwargs}


def is_compiled(model: nn.Module) -> bool:
    """Whether a model, or any module in it, was given to `torch.compile`."""
    return any(is_entry(module) for module in model.modules())


def is_entry(module: nn.Module) -> bool:
    """Whether calling this module enters compiled code: `torch.compile(module)` or `module.compile()`."""
    return "_orig_mod" in module.__dict__["_modules"] or getattr(module, "_compiled_call_impl", None) is not None


def callable_parts(root: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules below the root that can be called: containers without a forward are searched inside."""
    for child in root.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)) or type(child) is nn.Module:
            yield from callable_parts(child)
        else:
            yield child
