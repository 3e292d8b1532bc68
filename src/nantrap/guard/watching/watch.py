"""Watched values: parameters and buffers followed by name, with limits."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nantrap.errors import UsageError
from nantrap.finite import plain_values
from nantrap.guard.torch_private import buffers_of, parameters_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A bound for a watched value, up to (not including) step `until` if given: `Limit(max=0.1, until=500)`."""

    min: float | None = None
    max: float | None = None
    until: int | None = None

    def exceeded(self, value: float, step: int) -> str | None:
        """What is wrong with `value` at `step`, in words, or `None`."""
        if self.until is not None and step >= self.until:
            return None
        if math.isnan(value):
            return "it is NaN"
        early = f" before step {self.until:,}" if self.until is not None else ""
        if self.max is not None and not value <= self.max:
            return f"{value:.4g} is above {self.max:g}{early}"
        if self.min is not None and not value >= self.min:
            return f"{value:.4g} is below {self.min:g}{early}"
        return None


WatchSpec = Sequence[str] | Mapping[str, "Limit | float | Sequence[Limit] | None"]


class Watch:
    """Follows the parameters and buffers whose names match; a tensor with several values is followed by its absmax."""

    def __init__(self, spec: WatchSpec, root: nn.Module) -> None:
        patterns = spec if isinstance(spec, Mapping) else dict.fromkeys(spec)
        # by place and not by object: a forward pass may replace a buffer
        self._found: list[tuple[str, dict[str, Any], tuple[Limit, ...]]] = []
        self._warned: set[tuple[str, Limit]] = set()
        candidates = [*_places(root, "parameters"), *_places(root, "buffers")]
        for pattern, limits in patterns.items():
            matches = [(name, holder) for name, holder in candidates if fnmatch.fnmatchcase(name, pattern)]
            if not matches:
                raise UsageError(
                    f"watch={pattern!r} matches no parameter or buffer; names look like "
                    f"{', '.join(name for name, _ in candidates[:3])}"
                )
            self._found += [(name, holder, _limits(limits, pattern)) for name, holder in matches]

    def __bool__(self) -> bool:
        return bool(self._found)

    def limits(self) -> dict[str, list[dict[str, float | int | None]]]:
        """The limits of each watched value that has any, as plain values for `run.json`."""
        return {
            name: [{"min": limit.min, "max": limit.max, "until": limit.until} for limit in limits]
            for name, _, limits in self._found
            if limits
        }

    def scalars(self) -> list[Tensor]:
        """The values as device scalars, to be read together with the step's flag."""
        return [_scalar(holder[name.rpartition(".")[2]]) for name, holder, _ in self._found]

    def named(self, values: Iterable[float]) -> dict[str, float]:
        """Values as read, by name."""
        return {name: value for (name, _, _), value in zip(self._found, values, strict=True)}

    def exceeded(self, values: Mapping[str, float], step: int) -> list[str]:
        """Limits crossed now that were not crossed before: `blocks.0.alpha: 1.2 is above 1`."""
        messages = []
        for name, _, limits in self._found:
            for limit in limits:
                message = limit.exceeded(values[name], step)
                if message is None:
                    self._warned.discard((name, limit))
                elif (name, limit) not in self._warned:
                    self._warned.add((name, limit))
                    messages.append(f"{name}: {message}")
        return messages


def _places(root: nn.Module, kind: str) -> list[tuple[str, dict[str, Any]]]:
    """Name and holder of every parameter or buffer that has a value, tied ones once."""
    parameters = kind == "parameters"
    named = root.named_parameters() if parameters else root.named_buffers()
    table = parameters_of if parameters else buffers_of
    return [(name, table(root.get_submodule(name.rpartition(".")[0]))) for name, t in named if t.numel()]


def _scalar(tensor: Tensor) -> Tensor:
    """The value of a tensor, or its largest magnitude; NaN where it holds no values."""
    values = plain_values(tensor)
    if values is None:
        return torch.full((), math.nan)
    if values.is_complex():
        return values.to(torch.complex64).abs().max()
    values = values if values.dtype == torch.float64 else values.float()
    return (values.abs().max() if tensor.numel() != 1 else values.reshape(())).float()


def _limits(given: object, pattern: str) -> tuple[Limit, ...]:
    """The limits of one pattern: a number is the largest value."""
    if given is None:
        return ()
    if isinstance(given, Limit):
        return (given,)
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return (Limit(max=float(given)),)
    if isinstance(given, Sequence) and all(isinstance(item, Limit) for item in given):
        return tuple(given)
    raise UsageError(
        f"watch[{pattern!r}]={given!r}: expected a number (the largest value), a nantrap.Limit or a list of them"
    )
