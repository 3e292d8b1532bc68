"""One operation on its recorded inputs, in a wider precision: the reference against which a result is judged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nantrap.locate.torch_private import schema_of
from nantrap.locate.trace.storage import map_leaves

if TYPE_CHECKING:
    from nantrap.causes.case import Case


def recomputed(case: Case, dtype: str) -> Tensor | None:
    """The guilty operation's first bad result, computed again in `dtype` (`float32`, `float64`); `None` if
    it cannot be."""
    capture = case.capture
    if capture is None or case.output is None:
        return None
    wide: torch.dtype = getattr(torch, dtype)
    schema = schema_of(capture.func)
    if schema.is_mutable and schema.name.endswith("_"):
        functional = getattr(torch.ops.aten, schema.name.removeprefix("aten::").rstrip("_"), None)
        func = functional if functional is not None else capture.func
    else:
        func = capture.func
    position = next(i for i, tensor in enumerate(capture.outputs) if tensor is case.output)
    try:
        with torch.no_grad():
            args, kwargs = map_leaves((capture.args, capture.kwargs), lambda leaf: _cast(leaf, wide))
            result = func(*args, **kwargs)
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    results = result if isinstance(result, (list, tuple)) else [result]
    chosen = results[position] if position < len(results) else None
    return chosen if isinstance(chosen, Tensor) else None


def _cast(leaf: Any, dtype: torch.dtype) -> Any:
    if isinstance(leaf, Tensor) and leaf.is_complex():
        return leaf.detach().to(torch.complex128 if dtype == torch.float64 else leaf.dtype)
    if isinstance(leaf, Tensor):
        return leaf.detach().to(dtype) if leaf.is_floating_point() else leaf
    return dtype if isinstance(leaf, torch.dtype) and leaf.is_floating_point else leaf
