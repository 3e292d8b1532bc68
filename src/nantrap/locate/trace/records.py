"""What a trace records: operations, the operands of the guilty ones, and tensors that were bad before the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from nantrap.incident import Phase
from nantrap.locate.source import Place
from nantrap.locate.trace.storage import map_leaves, tensors_in

CLONE_LIMIT = 1 << 22
"""Tensors of more values than this are not copied."""

Made = Literal["nan", "inf", "uninitialised"] | None
"""What an operation made of inputs that were finite."""


class Op(NamedTuple):
    """One operation of the traced step.

    `sources` are the operations that last wrote its input tensors, in order (-1: none of this step), through views;
    `scalars` its plain numbers; `inside`: whether any module was running; `bad` of `values` are not finite.
    """

    index: int  # type: ignore[assignment]  # tuples have a method of that name
    name: str
    phase: Phase
    module: str
    call: int
    node: str | None
    sequence: int
    place: Place | None
    inside: bool = False
    sources: tuple[int, ...] = ()
    scalars: tuple[float, ...] = ()
    made: Made = None
    nan: bool = False
    inf: bool = False
    absmax: float | None = None
    dtype: str = ""
    bad: int = 0
    values: int = 0


@dataclass(frozen=True, slots=True)
class Capture:
    """An origin with what it was given and what it gave: the material of the rules.

    `assumed` names operands that were not recorded and are assumed to be finite.
    """

    op: Op
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Tensor, ...]
    assumed: tuple[str, ...] = ()

    def inputs(self) -> list[Tensor]:
        """The input tensors, in order."""
        return list(tensors_in((self.args, self.kwargs)))


@dataclass(frozen=True, slots=True)
class External:
    """A tensor that was bad before the step began. `first_reader` is the first operation that computed with it.

    `during` marks one that was finite when the step began and was written since, by no operation that the trace saw.
    """

    kind: Literal["parameter", "buffer", "batch", "optimizer_state", "constant", "overwritten"]
    name: str
    tensor: Tensor
    mask: bool = False
    first_reader: int | None = None
    during: bool = False


@dataclass(frozen=True, slots=True)
class Registered:
    """The tensors known by name when the step begins."""

    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    batch: Mapping[str, Tensor] = field(default_factory=dict)
    optimizer_state: Mapping[str, Tensor] = field(default_factory=dict)


def frozen(outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Copies: a parameter written by an update is put back after the replay, an activation may be written again."""
    return tuple(t.detach().clone() if t.numel() <= CLONE_LIMIT else t.detach() for t in outputs)


def frozen_arguments(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with copies of their tensors: recorded operands keep their values, whatever is written later."""
    return tuple(map_leaves(list(args), _copied))


def before_writing(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of an in-place operation as they were before it: only afterwards it is known to be guilty."""
    return tuple(
        [_copied(item) for item in arg] if isinstance(arg, (list, tuple)) else _copied(arg) for arg in args[:1]
    ) + tuple(args[1:])


def _copied(value: Any) -> Any:
    """A copy of a tensor that is not too large; anything else as it is."""
    small = isinstance(value, Tensor) and value.layout == torch.strided and value.numel() <= CLONE_LIMIT
    return value.detach().clone() if small else value
