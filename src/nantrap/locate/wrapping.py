"""The wrappers around the module that the user wrote."""

from __future__ import annotations

from torch import nn


def unwrap(model: nn.Module) -> nn.Module:
    """The module the user wrote, inside `DistributedDataParallel`, `DataParallel` or `torch.compile`."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def is_compiled(model: nn.Module) -> bool:
    """Whether a model, or any module in it, was given to `torch.compile`."""
    return any(is_entry(module) for module in model.modules())


def is_entry(module: nn.Module) -> bool:
    """Whether calling this module enters compiled code: `torch.compile(module)` or `module.compile()`."""
    return "_orig_mod" in module.__dict__["_modules"] or getattr(module, "_compiled_call_impl", None) is not None
