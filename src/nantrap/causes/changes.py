"""What a trial changes while the step runs, and the same change as plain data.

`SinglePrecision` computes every operation in float32, `LogSpace` computes log(softmax(x)), log(sigmoid(x)) and
log(1 + exp(x)) in log space, and `Replacement` replaces one call at its line. Other ranks make the same change in their
parts of the step: they get its description.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from nantrap.causes.replacement import Replacement, is_direct
from nantrap.incident import Source
from nantrap.locate.source import user_place
from nantrap.locate.torch_private import DispatchMode, ThroughoutMode, is_in_backward, schema_of, to_copy
from nantrap.locate.trace import recomputing
from nantrap.locate.trace.storage import map_leaves

HALF_DTYPES = (torch.float16, torch.bfloat16)


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
        return leaf.float() if leaf.dtype in HALF_DTYPES else leaf
    return torch.float32 if isinstance(leaf, torch.dtype) and leaf in HALF_DTYPES else leaf


WIDE = {
    False: ".float() on what its functions read, modules as they are",
    True: "torch.autocast(..., enabled=False) around it, .float() on every tensor it reads",
}
"""What `WideLines` does, without and with the modules that are called in the lines."""


class WideLines(ThroughoutMode):
    """The calls at some lines in float32: autocast is off there, and every tensor is given as `.float()`."""

    def __init__(self, lines: Iterable[tuple[str, int]], *, modules: bool) -> None:
        super().__init__()
        self.lines = tuple(lines)
        self.modules = modules
        self.hits = 0

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call in float32, if it is at one of the lines."""
        frame = sys._getframe(2)
        place = user_place(frame)
        if place is None or (place.code.co_filename, place.line) not in self.lines:
            return func(*args, **kwargs)
        if not self.modules and not is_direct(frame, place):
            return func(*args, **kwargs)
        self.hits += 1
        device = next((one.device.type for one in args if isinstance(one, Tensor)), "cpu")
        with torch.autocast(device, enabled=False):
            return func(*map_leaves(args, _float), **map_leaves(kwargs, _float))


def _float(leaf: Any) -> Any:
    """A tensor of half precision in float32; a weight as it is, whose dtype is the model's."""
    half = isinstance(leaf, Tensor) and leaf.dtype in HALF_DTYPES and not isinstance(leaf, torch.nn.Parameter)
    return leaf.float() if half else leaf


_SELECTING = frozenset(
    {"gather", "__getitem__", "index_select", "view", "reshape", "flatten", "squeeze", "unsqueeze", "transpose", "t",
     "permute", "take_along_dim", "masked_select", "contiguous", "clone", "diagonal", "select", "narrow", "unbind"}
)  # fmt: skip


class _Kept(NamedTuple):
    """A result with its logarithm, and the argument where it is elementwise."""

    result: Tensor  # held, so that its id stays its own
    logarithm: Tensor
    argument: Tensor | None
    origin: str


LOG_SPACE = {
    "softmax": "log_softmax(x) instead of log(softmax(x))",
    "sigmoid": "logsigmoid(x) instead of log(sigmoid(x))",
    "1 - sigmoid": "logsigmoid(-x) instead of log(1 - sigmoid(x))",
    "exp": "x instead of log(exp(x))",
    "1 + exp": "softplus(x) instead of log(1 + exp(x))",
}
"""What is computed instead of the logarithm of a function."""


class LogSpace(ThroughoutMode):
    """Computes logarithms of softmax, sigmoid and exp in log space. `lines`: of which functions, in which lines."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[int, _Kept] = {}
        self.lines: dict[tuple[str, int], None] = {}

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a logarithm from what is kept beside its argument; keep the logarithm of what else is computed."""
        name = getattr(func, "__name__", "")
        kept = self._kept.get(id(args[0])) if args and isinstance(args[0], Tensor) else None
        if kept is not None and name in ("log", "log_"):
            return self._hit(kept.logarithm, kept.origin)
        if kept is not None and name == "log1p" and kept.origin == "exp" and kept.argument is not None:
            return self._hit(F.softplus(kept.argument), "1 + exp")
        result = func(*args, **kwargs)
        if isinstance(result, Tensor):
            beside = self._beside(name, args, kwargs, kept)
            if beside is not None and beside[0].shape == result.shape:
                self._kept[id(result)] = _Kept(result, *beside)
        return result

    def _hit(self, logarithm: Tensor, origin: str) -> Tensor:
        place = user_place(sys._getframe(3))
        self.lines[origin, 0 if place is None else place.line] = None
        return logarithm

    def _beside(
        self, name: str, args: tuple[Any, ...], given: dict[str, Any], kept: _Kept | None
    ) -> tuple[Tensor, Tensor | None, str] | None:
        """The logarithm of a result, where it can be had without the result."""
        x = args[0] if args else None
        if name == "softmax" and isinstance(x, Tensor):
            known = {key: given[key] for key in ("dim", "dtype") if key in given}
            return F.log_softmax(x, *args[1:2], **known), None, "softmax"
        if name in ("sigmoid", "sigmoid_") and isinstance(x, Tensor):
            return F.logsigmoid(x), x, "sigmoid"
        if name in ("exp", "exp_") and isinstance(x, Tensor):
            return x, x, "exp"
        if kept is None:
            return None
        if name in _SELECTING:
            again = getattr(Tensor, name)
            argument = None if kept.argument is None else again(kept.argument, *args[1:], **given)
            return again(kept.logarithm, *args[1:], **given), argument, kept.origin
        plus_one = len(args) > 1 and isinstance(args[1], (int, float)) and args[1] == 1
        if plus_one and kept.argument is not None:
            if name in ("__add__", "__radd__", "add") and kept.origin == "exp":
                return F.softplus(kept.argument), None, "1 + exp"
            if name in ("__rsub__", "rsub") and kept.origin == "sigmoid":
                return F.logsigmoid(-kept.argument), None, "1 - sigmoid"
        return None


Description = tuple[Any, ...]
NOTHING: Description = ("nothing",)


def described(around: contextlib.AbstractContextManager[Any] | None) -> Description | None:
    """The description of a change; `None` for one that other ranks cannot make."""
    if around is None:
        return NOTHING
    if isinstance(around, (SinglePrecision, LogSpace)):
        return (type(around).__name__,)
    if isinstance(around, WideLines):
        return ("WideLines", around.lines, around.modules)
    if isinstance(around, Replacement):
        return ("Replacement", tuple((one.file, one.line) for one in around.sources), around.family)
    return None


def change_of(description: Description) -> contextlib.AbstractContextManager[Any]:
    """The change that was described."""
    kind, *given = description
    if kind == "WideLines":
        return WideLines(given[0], modules=given[1])
    if kind == "Replacement":
        return Replacement([Source(file=file, line=line) for file, line in given[0]], given[1])
    if kind == "SinglePrecision":
        return SinglePrecision()
    return LogSpace() if kind == "LogSpace" else contextlib.nullcontext()
