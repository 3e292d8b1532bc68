"""The finite gate: which tensors of a state are not finite. Everything that a run may be resumed from is checked here
first.

Deliberate values pass: a `-inf` attention mask in a buffer (two dimensions, every other value the same), the
`inf` with which a best score begins, and whatever the caller allows by name. A best score is a single number among
words: a callback that keeps the best checkpoints has their paths beside it, the state of a model or an optimizer has
none.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nantrap import finite
from nantrap.errors import NonFiniteError, UsageError
from nantrap.incident import Action, Finding, Incident
from nantrap.incident.wording import escaped

_NUMBERS = ("lr", "initial_lr", "max_lr", "scale")
"""Plain numbers that must be finite too: the learning rates of an optimizer, the scale of a GradScaler."""
_SHOWN = 5
_FLOATS = tuple(map(np.dtype, ("float16", "float32", "float64", "complex64", "complex128")))


def finite_gate(obj: Any, *, allow: Iterable[str] = ()) -> list[str]:
    """The names of all tensors in `obj` that hold NaN or Inf; an empty list means that it may be saved.

    Args:
        obj: a tensor, an array, a module, an optimizer, anything with `state_dict()`, or these in dicts, lists and
            attributes of objects.
        allow: name patterns (`"*.running_min"`) of what may be non-finite.

    Example:
        >>> import torch, nantrap.checkpoints
        >>> state = {"model": {"weight": torch.tensor([1.0, float("inf")])}, "step": 3}
        >>> nantrap.checkpoints.finite_gate(state)
        ['model.weight']
    """
    return [name for name, _ in bad_values(obj, allow=name_patterns(allow))]


def name_patterns(allow: Iterable[str]) -> tuple[str, ...]:
    """Name patterns as they were given; a single one need not be in a list."""
    patterns = (allow,) if isinstance(allow, str) or not isinstance(allow, Iterable) else tuple(allow)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise UsageError(f"allow={allow!r}: expected patterns of names, such as ['model.*.running_min']")
    return patterns


def bad_values(obj: Any, *, allow: Sequence[str] = ()) -> list[tuple[str, Tensor | float]]:
    """Name and value of everything that keeps the state from being saved."""
    named = list(_values(obj, ""))
    tensors = [value for _, value in named if isinstance(value, Tensor)]
    numbers = any(isinstance(value, float) for _, value in named)
    if not numbers and not finite.any_nonfinite(tensors):
        return []
    return [
        (name, value)
        for name, value in named
        if (isinstance(value, float) or (finite.any_nonfinite([value]) and not _is_deliberate(name, value)))
        and not any(fnmatch.fnmatchcase(name, pattern) for pattern in allow)
    ]


def refuse_nonfinite(obj: Any, *, what: str, step: int, allow: Sequence[str] = ()) -> None:
    """Raise `NonFiniteError`, which names the tensors, if `obj` must not be saved as `what`."""
    bad = bad_values(obj, allow=allow)
    if not bad:
        return
    findings = tuple(_finding(name, value) for name, value in bad)
    lines = [f"  {escaped(f.name)}: {f.stats.describe() if f.stats else f.value}" for f in findings[:_SHOWN]]
    if len(findings) > _SHOWN:
        lines.append(f"  and {len(findings) - _SHOWN:,} more")
    count = "1 value is" if len(findings) == 1 else f"{len(findings):,} tensors are"
    message = (
        f"{escaped(what, most=1000)} was not saved: {count} not finite\n" + "\n".join(lines) + "\n"
        "Nothing was written, earlier checkpoints are untouched. Resume from the last good one; "
        "if a value is meant to be non-finite, name it in allow="
    )
    raise refusal(message, findings, step=step)


def refusal(message: str, findings: tuple[Finding, ...], *, step: int) -> NonFiniteError:
    """The error with which a state is not saved; it carries the incident, like the error of a refused step."""
    return NonFiniteError(message, incident=Incident(step, phase="state", findings=findings, action=Action.SKIP))


def _finding(name: str, value: Tensor | float) -> Finding:
    """The finding for a value that is not finite, by the part of the state that it is in."""
    kind = {"optimizer": "optimizer_state", "ema": "ema"}.get(name.partition(".")[0], "parameter")
    if isinstance(value, float):
        return Finding(kind, name, "state", value=value)  # type: ignore[arg-type]
    return Finding(
        kind,  # type: ignore[arg-type]
        name,
        "state",
        stats=finite.tensor_stats(value),
        first_index=finite.first_nonfinite_index(value),
    )


def as_tensor(value: Any) -> Tensor | None:
    """A tensor, or an array of numpy as one: that of real or complex numbers. Anything else gives `None`."""
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, np.ndarray) or value.dtype not in _FLOATS:
        return None
    whole = np.ascontiguousarray(value)
    return torch.from_numpy(whole if whole.flags.writeable else whole.copy())


def _values(value: Any, path: str, seen: set[int] | None = None) -> Iterator[tuple[str, Tensor | float]]:
    """Every tensor by its path, and the bad ones among the numbers that matter. An object that is met again, or that
    holds itself, is read once."""
    if isinstance(value, float):
        if not math.isfinite(value) and path.rpartition(".")[2] in _NUMBERS:
            yield path, value
        return
    if isinstance(value, (str, bytes, int, type, ModuleType)) or value is None:
        return
    if (tensor := as_tensor(value)) is not None:
        yield path or "tensor", tensor
        return
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    for key, item in _items(value):
        yield from _values(item, f"{path}.{key}" if path and key else f"{path}{key}", seen)


def _items(value: Any) -> Iterable[tuple[str, Any]]:
    """The parts of an object with their names."""
    if isinstance(value, Mapping):
        with_words = any(isinstance(item, str) for item in value.values())
        for key, item in value.items():
            best = with_words and isinstance(item, Tensor) and key not in _NUMBERS and _is_best_score(item)
            if not best:
                yield str(key), item
    elif isinstance(value, (list, tuple)):
        yield from ((str(index), item) for index, item in enumerate(value))
    elif dataclasses.is_dataclass(value):
        yield from ((spec.name, getattr(value, spec.name)) for spec in dataclasses.fields(value))
    elif callable(getattr(value, "state_dict", None)):
        yield "", value.state_dict()
    else:
        yield from getattr(value, "__dict__", {}).items()


def _is_best_score(tensor: Tensor) -> bool:
    """Whether a tensor can be the best score before there was any: one number, and infinite."""
    dense = finite.readable(tensor) if not tensor.dim() else None
    return dense is not None and bool(dense.isinf())


def _is_deliberate(name: str, tensor: Tensor) -> bool:
    """Whether non-finite values belong there: a mask of -Inf, a best score that begins at Inf."""
    dense = finite.readable(tensor)
    if dense is None:
        return True
    if name.partition(".")[0] in ("extras", "data_position", "scheduler") and _is_best_score(tensor):
        return True
    if tensor.dim() < 2 or bool((dense.isnan() | dense.isposinf()).any()):
        return False
    rest = dense[dense.isfinite()]
    return bool(rest.numel()) and float(rest.min()) == float(rest.max()) and float(rest.min()) in (0.0, 1.0)
