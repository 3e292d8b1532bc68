"""Small measurements on tensors that several rules share, and their wording. Imports torch only when it is called."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from nantrap.thresholds import is_absurd

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from nantrap.causes.case import Case
    from nantrap.locate.replay.samples import Samples

BESSEL = ("i0", "i1", "special_i0", "special_i1")
"""The modified Bessel functions of the first kind. PyTorch computes them with exp(|x|)."""
EXPONENTIALS = ("exp", "expm1", "exp2", "cosh", "sinh", *BESSEL)
SECOND_MOMENTS = ("exp_avg_sq", "square_avg", "sum", "max_exp_avg_sq")
"""What optimizers of PyTorch call their memory of squared gradients."""
USUAL_EPS = 1e-5
"""What layers that normalise add under their root; a divisor is kept from 0 by its square root."""


def in_words(path: str) -> str:
    """A path in the batch as it is shown: `batch[0]` for the first of a tuple, a key or field by its own name."""
    return f"batch{path}" if path.startswith("[") else path


def ordinary_tensors(batch: Any) -> list[tuple[str, Tensor]]:
    """The tensors of a batch with their paths, without those of layouts and dtypes that rules cannot compute with."""
    from nantrap.finite import is_ordinary
    from nantrap.locate import tensors_of

    return [(path, tensor) for path, tensor in tensors_of(batch) if is_ordinary(tensor)]


def listed(samples: Sequence[int], most: int = 6) -> str:
    """`0, 3, 4`, and for many of them `0, 1, 2, 3, 4, 5 and 9 others`."""
    shown = ", ".join(map(str, samples[:most]))
    rest = len(samples) - most
    return shown if rest <= 0 else f"{shown} and {rest:,} other{'s' * (rest > 1)}"


def among_samples(mask: Tensor, samples: Samples) -> list[int]:
    """Which of the guilty samples a mask marks; empty if it marks others too, or has no dimension of samples."""
    if not samples.guilty or not samples.size or not mask.dim() or not mask.numel() or mask.shape[0] % samples.size:
        return []
    marked = mask.reshape(samples.size, -1).any(1).nonzero().flatten().tolist()
    return marked if set(marked) <= set(samples.guilty) else []


def without(left_out: Sequence[int], named: Sequence[int]) -> str:
    """`without those samples`, where they were named before; else `without samples 1, 4`."""
    plural = "s" * (len(left_out) > 1)
    if set(left_out) == set(named):
        return f"without {'those samples' if plural else 'that sample'}"
    return f"without sample{plural} {listed(left_out)}"


def share(mask: Tensor) -> str:
    """`3 of 128 places`."""
    return f"{int(mask.sum()):,} of {mask.numel():,} places"


def rows_in_words(mask: Tensor, *, whole: bool = True) -> str:
    """`in rows 28 to 31 of 32`; how many places where these are not whole rows, unless parts of rows count as well."""
    if mask.dim() < 2:
        return f"at {share(mask)}"
    by_row = mask.flatten(1)
    if whole and not bool((by_row.all(dim=1) == by_row.any(dim=1)).all()):
        return f"at {share(mask)}"
    rows = by_row.any(dim=1).nonzero().flatten().tolist()
    together = rows[-1] - rows[0] + 1 == len(rows) > 2
    shown = f"{rows[0]} to {rows[-1]}" if together else listed(rows)
    return f"in row{'s' * (len(rows) > 1)} {shown} of {len(mask)}"


def all_finite(tensors: Sequence[Tensor]) -> str:
    """`; every input is finite`, where it is so."""
    return "; every input is finite" if all(bool(t.isfinite().all()) for t in tensors) else ""


def describe(tensor: Tensor) -> str:
    """`holds 3 NaN among 128 values`; of a sparse tensor, those that it stores."""
    from nantrap.finite import readable

    values = readable(tensor)
    if values is None:
        return f"holds no non-finite value among {tensor.numel():,} values"
    tensor = values
    parts = []
    for count, word in (
        (int(tensor.isnan().sum()), "NaN"),
        (int(tensor.isposinf().sum()), "+Inf"),
        (int(tensor.isneginf().sum()), "-Inf"),
    ):
        if count:
            parts.append(f"{count:,} {word}")
    return f"holds {', '.join(parts) or 'no non-finite value'} among {tensor.numel():,} values"


def kinds_of(tensors: Iterable[Tensor]) -> str:
    """`NaN`, `Inf` or `NaN and Inf`: what these tensors hold."""
    from nantrap.finite import readable

    held = [values for tensor in tensors if (values := readable(tensor)) is not None]
    words = [
        word
        for word, found in (("NaN", any(x.isnan().any() for x in held)), ("Inf", any(x.isinf().any() for x in held)))
        if found
    ]
    return " and ".join(words) or "non-finite values"


def masked_rows_of(x: Tensor, dims: Any = ()) -> Tensor | None:
    """Which rows of a reduction's input are -inf everywhere, with the reduced dimensions kept; `None` for a call that
    is no reduction (the larger of two tensors) or has nothing to reduce.

    Args:
        x: what is reduced.
        dims: one dimension or several; without any, all of them.
    """
    from torch import Tensor

    if not isinstance(x, Tensor) or isinstance(dims, Tensor) or x.numel() == 0:
        return None
    masked = x == -math.inf
    for dim in (dims,) if isinstance(dims, int) else tuple(dims or range(x.dim())):
        masked = masked.all(dim, keepdim=True)
    return masked


def integer_valued(tensor: Tensor) -> bool:
    """Whether every value is a whole number: a label or a mask rather than a measurement."""
    if tensor.is_complex() or tensor.numel() == 0:
        return False
    return not tensor.is_floating_point() or bool((tensor == tensor.round()).all())


def absmax(tensor: Tensor) -> float:
    """The largest finite magnitude, 0 if there is none."""
    from nantrap.finite import plain_values

    values = plain_values(tensor)
    if values is None:
        return 0.0
    finite = values[values.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def limit(tensor: Tensor) -> float:
    """The largest finite value of the tensor's dtype."""
    from nantrap.finite import limit_of

    return limit_of(tensor.dtype)


def epsilon(tensor: Tensor) -> float:
    """The distance from 1 to the next number of the tensor's dtype."""
    import torch

    return float(torch.finfo(tensor.dtype).eps)


def rounded(value: float, like: Tensor) -> float:
    """What `value` becomes in the dtype of `like`."""
    return float(like.new_tensor(value))


def was_computed(tensor: Tensor) -> bool:
    """Whether the bad values are results of arithmetic: only Inf, or the NaN of 0/0, whose sign bit is set.

    Memory that was never filled holds the bits of other data, and PyTorch's own fill of it a NaN without a sign.
    """
    from nantrap.finite import has_nan_payload, plain_values

    values = plain_values(tensor)
    if values is None or values.is_complex():
        return False
    nan = values[values.isnan()]
    return not has_nan_payload(nan) and bool(nan.signbit().all())


_FEWEST_BESIDE = 8
"""Of fewer values none stands out: a bias of two may hold one that is large on purpose."""


def lone_giant(tensor: Tensor) -> tuple[float, float] | None:
    """The one value of a tensor that is far beyond all others, and the next one; `None` if there is no such value."""
    from nantrap.finite import is_plain, plain_values

    values = plain_values(tensor) if is_plain(tensor) else None
    if values is None or not values.is_floating_point() or values.numel() < _FEWEST_BESIDE:
        return None
    sizes = values.abs().flatten()
    largest, second = (float(value) for value in sizes.double().topk(2).values)
    alone = math.isfinite(largest) and is_absurd(largest) and (not second or is_absurd(largest / second))
    return (largest, second) if alone else None


def made_so(tensor: Tensor) -> bool:
    """Whether a tensor got its bad values when it was made: they were computed, and no write was counted since."""
    from nantrap.locate.torch_private import version_of

    return not tensor.is_inference() and version_of(tensor) == 0 and was_computed(tensor)


def recomputed(case: Case, dtype: str) -> Tensor | None:
    """The guilty operation's first bad result, computed again on its recorded inputs in `dtype` (`float32`, `float64`):
    the reference against which it is judged; `None` if it cannot be computed."""
    import torch
    from torch import Tensor

    from nantrap.finite import as_dense
    from nantrap.locate.torch_private import schema_of
    from nantrap.locate.trace.storage import map_leaves

    capture = case.capture
    position = case.position
    if capture is None or position is None:
        return None
    wide: torch.dtype = getattr(torch, dtype)
    schema = schema_of(capture.func)
    if schema.is_mutable and schema.name.endswith("_"):
        functional = getattr(torch.ops.aten, schema.name.removeprefix("aten::").rstrip("_"), None)
        func = functional if functional is not None else capture.func
    else:
        func = capture.func
    try:
        with torch.no_grad():
            args, kwargs = map_leaves((capture.args, capture.kwargs), lambda leaf: _cast(leaf, wide))
            result = func(*args, **kwargs)
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    results = result if isinstance(result, (list, tuple)) else [result]
    chosen = results[position] if position < len(results) else None
    return as_dense(chosen) if isinstance(chosen, Tensor) else None


def _cast(leaf: Any, dtype: torch.dtype) -> Any:
    """A tensor or dtype among the arguments of an operation, in another precision; anything else as it is."""
    import torch
    from torch import Tensor

    if isinstance(leaf, Tensor) and leaf.is_complex():
        return leaf.detach().to(torch.complex128 if dtype == torch.float64 else leaf.dtype)
    if isinstance(leaf, Tensor):
        return leaf.detach().to(dtype) if leaf.is_floating_point() else leaf
    return dtype if isinstance(leaf, torch.dtype) and leaf.is_floating_point else leaf
