"""Nested values as JSON plus a flat table of tensors, and back: nothing is ever pickled."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nantrap.errors import FormatError


def flatten(value: Any, tensors: dict[str, Tensor], prefix: str) -> Any:
    """JSON that describes `value`; its tensors go into `tensors` under `prefix`. What has no JSON form is opaque."""
    if isinstance(value, Tensor):
        tensors[prefix] = value.detach()
        return {"tensor": prefix}
    if value is None or isinstance(value, (bool, int, str)):
        return {"value": value}
    if isinstance(value, float):
        return {"float": value.hex()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {spec.name: getattr(value, spec.name) for spec in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {"dict": {str(key): flatten(item, tensors, f"{prefix}.{key}") for key, item in value.items()}}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [flatten(item, tensors, f"{prefix}.{i}") for i, item in enumerate(value)]}
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return {"torch": str(value)}
    return {"opaque": f"{type(value).__module__}.{type(value).__qualname__}"}


def unflatten(described: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value that `flatten` described. Raises `FormatError` where it holds something opaque or unknown."""
    if not isinstance(described, dict) or len(described) != 1:
        raise FormatError(f"not a described value: {described!r}")
    ((kind, content),) = described.items()
    if kind == "tensor":
        if content not in tensors:
            raise FormatError(f"tensor {content!r} is missing from the bundle")
        return tensors[content]
    if kind == "value":
        return content
    if kind == "float":
        return float.fromhex(content)
    if kind == "dict":
        return {key: unflatten(item, tensors) for key, item in content.items()}
    if kind in ("list", "tuple"):
        items = [unflatten(item, tensors) for item in content]
        return tuple(items) if kind == "tuple" else items
    if kind == "torch":
        return _torch_constant(content)
    if kind == "opaque":
        raise FormatError(f"the bundle names a {content} object, which has no safe form on disk")
    raise FormatError(f"unknown kind of value {kind!r}; the bundle was written by a newer nantrap")


def _torch_constant(name: str) -> Any:
    if name.startswith("torch."):
        constant = getattr(torch, name.removeprefix("torch."), None)
        if isinstance(constant, (torch.dtype, torch.layout, torch.memory_format)):
            return constant
        raise FormatError(f"unknown constant {name!r}")
    return torch.device(name)
