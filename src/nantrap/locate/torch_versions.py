"""What differs between the supported versions of torch: the tensors that an autograd node saved.

Seen in: `SavedTensor.data` exists in torch 2.13 and not in 2.6.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import checkpoint


def _by_data(node: Any, raw_name: str) -> Any:
    """The saved tensor as it was packed: no hook runs."""
    raw = getattr(node, raw_name)
    if raw.__class__ is tuple:
        return tuple([_tensor(None if item is None else item.data) for item in raw])
    return _tensor(None if raw is None else raw.data)


def _by_unpacking(node: Any, raw_name: str) -> Any:
    """The saved tensor through its unpack hook, except where that hook would run a checkpointed forward again."""
    with _without_recomputation():
        value = getattr(node, raw_name.removeprefix("_raw"))
    if value.__class__ is tuple:
        return tuple([_tensor(item) for item in value])
    return _tensor(value)


def _tensor(value: Any) -> Tensor | None:
    return value if isinstance(value, Tensor) else None


@contextlib.contextmanager
def _without_recomputation() -> Iterator[None]:
    """Activation checkpointing raises instead of running the forward again; the caller takes it as "not saved"."""

    def refuse(*_: Any) -> Any:
        raise RuntimeError("saved by activation checkpointing: not available without running the forward again")

    module: Any = checkpoint
    kept = module._recomputation_hook
    module._recomputation_hook = refuse
    try:
        yield
    finally:
        module._recomputation_hook = kept


raw_tensor = _by_data if hasattr(torch._C._autograd.SavedTensor, "data") else _by_unpacking
"""What a node saved (`raw_tensor(node, "_raw_saved_self")`), or None, without side effects.

Raises RuntimeError where the graph was freed or the tensor was changed in place.
"""
