"""Every operation of a step in float32, for one run: whether precision is what made it fail."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from nantrap.locate.torch_private import DispatchMode, is_in_backward, schema_of, to_copy
from nantrap.locate.trace import recomputing
from nantrap.locate.trace.storage import map_leaves

_HALF = (torch.float16, torch.bfloat16)


class SinglePrecision(DispatchMode):
    """Every operation in float32: half inputs are widened, half results are not made. Autocast has no effect in it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if schema_of(func).is_mutable:  # the memory that is written keeps its dtype
            return func(*args, **(kwargs or {}))
        if is_in_backward() and func is to_copy and not recomputing(sys._getframe(1)):
            return func(*args, **(kwargs or {}))  # autograd gives a half-precision leaf a gradient in its own dtype
        return func(*map_leaves(args, _widened), **map_leaves(kwargs or {}, _widened))


def _widened(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.float() if leaf.dtype in _HALF else leaf
    return torch.float32 if isinstance(leaf, torch.dtype) and leaf in _HALF else leaf
