"""Calls of the user's, replaced by another form at their own source lines, for one run.

A form is code with `x` for the operand, or `a` and `b` for two, and `...` for the other arguments. That code is what
runs in a trial, what the help says, and what a diff shows: there is no second description of it.

A function mode sees the call above autograd, so the replacement brings its own gradient. Only calls made from the
guilty lines are replaced; the same function elsewhere runs unchanged. In a step that is run from a tape, the operations
that were recorded at those lines are replaced.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import sys
import types
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from nantrap import ops
from nantrap.causes.facts import USUAL_EPS
from nantrap.causes.patch import calls
from nantrap.incident import Source
from nantrap.locate.source import Place, user_place
from nantrap.locate.torch_private import ThroughoutMode
from nantrap.locate.trace import Op
from nantrap.locate.trace.tape import substituting


class Replaced(NamedTuple):
    """A call that was replaced: its place, the function, and the form that ran instead, with its numbers; `direct` if
    it is written at that place, and not in a module that is called there."""

    place: Place
    function: str
    form: str
    direct: bool = True

    @property
    def words(self) -> str:
        """The form as it is shown."""
        return self.form.replace(", ...", "")


class Replacement(ThroughoutMode):
    """Replaces calls of one family at the given lines, wherever they run. `hits` has each of them once."""

    def __init__(self, sources: Iterable[Source], family: str) -> None:
        super().__init__()
        self.sources = tuple(sources)
        self.family = family
        self._lines = {(source.file, source.line) for source in self.sources}
        self.hits: dict[Replaced, None] = {}

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute the other form instead, if the call is at one of the lines."""
        name = getattr(func, "__name__", "")
        plain = _plain(name)
        if plain in FAMILIES[self.family]:
            frame = sys._getframe(2)
            place = user_place(frame)
            result = self._instead(place, plain, args, kwargs, direct=is_direct(frame, place))
            if result is not NotImplemented:
                return args[0].copy_(result) if plain != name else result  # in place: what is read later is this
        return func(*args, **kwargs)

    def __enter__(self) -> Replacement:
        self._recorded = substituting(self._for_recorded)
        self._recorded.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._recorded.__exit__(*exception)

    def _for_recorded(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The other form of an operation that was recorded at one of the lines."""
        name = op.name.removeprefix("aten.")
        given = args[:2] if name in _RECORDED else args
        name = _RECORDED.get(name, name)
        if op.place is None or name not in FAMILIES[self.family]:
            return NotImplemented
        return self._instead(op.place, name, given, kwargs, direct=calls(op.place.source(), name))

    def _instead(
        self, place: Place | None, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, direct: bool = True
    ) -> Any:
        """What the form gives; `NotImplemented` for a call that is elsewhere, or that no form of the family fits."""
        if place is None or (place.code.co_filename, place.line) not in self._lines or not args:
            return NotImplemented
        if name in _NORMALISING and self.family == "floor":
            self.hits[Replaced(place, name, f"eps={USUAL_EPS:g}")] = None
            return _with_larger_eps(name)(*args, **kwargs)
        operands = tuple(reversed(args[:2])) + args[2:] if name in _REVERSED else args
        given = {key: value for key, value in kwargs.items() if value is not None and key != "_stacklevel"}
        for key, default in (("unbiased", True), ("zero_infinity", False)):
            if given.get(key) is default:
                del given[key]  # what the safe forms do anyway
        for form in FAMILIES[self.family].get(name, ()):
            if (call := _fitting(form, operands, given)) is not None:
                self.hits[Replaced(place, name, _filled(form, operands), direct)] = None
                return call()
        return NotImplemented


_FUNCTIONS = ("functional.py", "_tensor.py", "overrides.py", os.path.join("twoline", "guarded.py"))
"""Where torch has functions that are Python code themselves, and where calls of the two-line form are checked."""


def is_direct(frame: FrameType | None, place: Place | None) -> bool:
    """Whether a call is written at its place: between the two is no module and no library, only the function itself."""
    while frame is not None and place is not None and frame.f_code is not place.code:
        if not frame.f_code.co_filename.endswith(_FUNCTIONS):
            return False
        frame = frame.f_back
    return place is not None


def words_of(family: str, name: str, operands: Iterable[Any]) -> str:
    """What would be written instead of a call, as it is shown; the first of the family for one that is not in it."""
    forms = FAMILIES[family]
    form = (forms.get(name) or forms.get(_CALLED.get(name, name)) or next(iter(forms.values())))[0]
    return _filled(form, tuple(operands)).replace(", ...", "")


def _plain(name: str) -> str:
    """`div` for `div_`, `__truediv__` for `__itruediv__`."""
    if name.startswith("__i") and name.endswith("__"):
        return f"__{name[3:]}"
    return name.removesuffix("_") if not name.endswith("__") else name


def _fitting(form: str, operands: tuple[Any, ...], given: dict[str, Any]) -> Callable[[], Any] | None:
    """The form on these operands, if it has a place for all of them."""
    names = _names(form)
    needed = [name for name in names if name in ("x", "a", "b")]
    if len(operands) < len(needed):
        return None
    values: dict[str, Any] = dict(zip(needed, operands, strict=False))
    rest, given = operands[len(needed) :], dict(given)
    if "dim" in names:
        if not rest and "dim" not in given:
            return None
        values["dim"] = given.pop("dim") if "dim" in given else rest[0]
        rest = rest[1:] if rest and values["dim"] is rest[0] else rest
    if (rest or given) and "..." not in form:
        return None
    changed = "b" if form.startswith(_OF_THE_SECOND) else needed[0]
    if not isinstance(values[changed], Tensor):
        return None  # a plain number needs no other form
    code = _filled(form, operands).replace("...", "*rest, **given")
    function = _compiled(code, tuple(values))
    return functools.partial(function, *values.values(), rest, given)


@functools.cache
def _names(form: str) -> tuple[str, ...]:
    """The operands that a form has, in order."""
    names = _compiled(form.format_map(_Any()).replace("...", "*rest, **given"), ()).__code__.co_names
    return tuple(name for name in ("x", "a", "b", "dim") if name in names)


class _Any(dict[str, str]):
    """Any number: for reading a form whose numbers are not known yet."""

    def __missing__(self, key: str) -> str:
        return {"kept_x": "x", "kept_b": "b", "bounded": "x"}.get(key, "1")


@functools.cache
def _compiled(code: str, names: tuple[str, ...]) -> Any:
    """The code as a function of these operands, the other arguments, and the keywords."""
    known = {"torch": torch, "math": math, "nantrap": types.SimpleNamespace(ops=ops)}
    return eval(f"lambda {', '.join((*names, 'rest=(), given={}'))}: {code}", known)


def _filled(form: str, operands: tuple[Any, ...]) -> str:
    """The form with its numbers: they depend on the dtype, and on the signs of a divisor."""
    if "{" not in form:
        return form
    tensors = [one for one in operands[:2] if isinstance(one, Tensor) and one.is_floating_point()]
    like = tensors[-1] if tensors else torch.zeros(1)
    half, dtype = like.dtype in (torch.float16, torch.bfloat16), like.dtype
    end = math.log(torch.finfo(dtype).max)
    floor = 1e-4 if dtype == torch.float16 else USUAL_EPS
    numbers = {
        "tiny": 1e-4 if dtype == torch.float16 else 1e-12,
        "eps": floor,
        "held": 1e-4 if dtype == torch.float16 else 1e-6,
        "near": {torch.float16: 1e-3, torch.bfloat16: 1e-2}.get(dtype, 1e-6),
        "edge": {torch.float16: 1e-3, torch.bfloat16: 1e-2}.get(dtype, USUAL_EPS),
        "most": math.floor(_ROOM * end),
        "most2": math.floor(_ROOM * end / math.log(2)),
        "power": _highest_power(operands, end) if "{power}" in form else 0.0,
    }
    shown = {key: f"{value:g}" for key, value in numbers.items()}
    bounded = f"x.clamp(-{shown['most']}, {shown['most']})"
    masked = "{bounded}" in form and bool((like == -math.inf).any())  # -Inf is a mask, which stays
    shown["bounded"] = f"torch.where(x == -math.inf, x, {bounded})" if masked else bounded
    root = 0.01 if half else 0.003
    for name in ("x", "b"):
        negative = f"{{kept_{name}}}" in form and bool((like < 0).any())
        away = f"torch.where({name} < 0, {name}.clamp(max=-{root}), {name}.clamp(min={root}))"
        shown[f"kept_{name}"] = away if negative else f"{name}.clamp(min={root})"
    return form.format_map(shown)


def _highest_power(operands: tuple[Any, ...], end: float) -> float:
    """The largest exponent that leaves room for what is done with the power, to three digits."""
    base = torch.as_tensor(operands[0] if operands else 2.0).detach().abs().double()
    size = float(base.max()) if base.numel() else 2.0
    return float(f"{_ROOM * end / math.log(max(size, 1.001)):.3g}")


_ROOM = 0.25
"""An exponential is kept below the fourth root of the largest number, so that its square and a sum of them fit."""
_RECORDED = {"_softmax": "softmax", "_log_softmax": "log_softmax"}
"""Operations that people call by another name, and of which only the first two arguments matter."""
_CALLED = {**_RECORDED, "nll_loss_forward": "cross_entropy", "nll_loss2d_forward": "cross_entropy"}
_OF_THE_SECOND = ("a /", "a * ", "nantrap.ops.safe_divide(a", "torch.pow(a, b.", "torch.xlogy", "torch.special.xlog1py")
_REVERSED = ("__rtruediv__", "__rdiv__", "__rpow__")
_NORMALISING = ("layer_norm", "group_norm", "batch_norm", "instance_norm", "rms_norm", "normalize")


def is_of_family(op: Op, family: str) -> bool:
    """Whether an operation belongs to a call of the family."""
    name = op.name.removeprefix("aten.")
    return _CALLED.get(name, name) in FAMILIES[family]


def _with_larger_eps(name: str) -> Callable[..., Tensor]:
    """A normalisation of `torch.nn.functional`, with the usual eps."""
    function = getattr(F, name)
    position = list(inspect.signature(function).parameters).index("eps")

    def stable(*args: Any, **kwargs: Any) -> Tensor:
        kept = [USUAL_EPS if index == position else value for index, value in enumerate(args)]
        result: Tensor = function(*kept, **{**kwargs, **({} if len(args) > position else {"eps": USUAL_EPS})})
        return result

    return stable


def _each(names: Iterable[str], *forms: str) -> dict[str, tuple[str, ...]]:
    """Gives the same forms to several functions; `NAME` in them is the function."""
    return {name: tuple(form.replace("NAME", name) for form in forms) for name in names}


_DIVISIONS = ("div", "true_divide", "__truediv__", "divide", "__rtruediv__", "__rdiv__")
_POWERS = ("pow", "__pow__", "float_power", "__rpow__")
_REGULAR = " + 0.001 * torch.eye(x.shape[-1]).to(x)"
_MASKED_ROWS = "x.masked_fill((x == -math.inf).all(dim, keepdim=True), 0.0)"
_ENDS = "torch.NAME(x.clamp(-1 + {near}, 1 - {near}))"
_OF_X = {"logit": ("torch.logit(x.clamp({near}, 1 - {near}))",), **_each(("atanh", "erfinv"), _ENDS)}

FAMILIES: dict[str, dict[str, tuple[str, ...]]] = {
    "sqrt": {
        "sqrt": ("nantrap.ops.safe_sqrt(x)",),
        "rsqrt": ("nantrap.ops.safe_divide(1, nantrap.ops.safe_sqrt(x))",),
        "hypot": ("nantrap.ops.safe_sqrt(a * a + b * b)",),
    },
    "log": {
        "log": ("nantrap.ops.safe_log(x)",),
        "log1p": ("nantrap.ops.safe_log(1 + x)",),
        "log2": ("nantrap.ops.safe_log(x) / math.log(2)",),
        "log10": ("nantrap.ops.safe_log(x) / math.log(10)",),
        **_each(("xlogy", "special_xlogy"), "a * nantrap.ops.safe_log(b)"),
        "special_xlog1py": ("a * nantrap.ops.safe_log(1 + b)",),
        "special_entr": ("-nantrap.ops.xlogx(x)",),
    },
    "div": {**_each(_DIVISIONS, "nantrap.ops.safe_divide(a, b)"), "reciprocal": ("nantrap.ops.safe_divide(1, x)",)},
    "count": _each(_DIVISIONS, "a / b.clamp(min=1)"),
    "pow": _each(_POWERS[:3], "nantrap.ops.safe_pow(a, b)"),
    "acos": {
        **_each(("acos", "arccos"), "nantrap.ops.safe_acos(x)"),
        **_each(("asin", "arcsin"), "nantrap.ops.safe_asin(x)"),
    },
    "softmax": _each(("softmax", "log_softmax"), "nantrap.ops.masked_NAME(x, dim=dim)"),
    "masked_reduction": _each(
        ("amax", "max", "logsumexp"),
        f"torch.NAME({_MASKED_ROWS}, dim, ...)",
        "torch.NAME(x.masked_fill((x == -math.inf).all(), 0.0))",
    ),
    "exp": {
        **_each(("exp", "expm1"), "torch.NAME(x.clamp(max={most}))"),
        "exp2": ("torch.exp2(x.clamp(max={most2}))",),
        **_each(("cosh", "sinh"), "torch.NAME(x.clamp(-{most}, {most}))"),
    },
    "exp_both": {"exp": ("torch.exp({bounded})",)},
    "power": _each(_POWERS, "torch.pow(a, b.clamp(max={power}))"),
    "logdet": {
        **_each(("slogdet", "linalg_slogdet"), f"torch.linalg.slogdet(x{_REGULAR})"),
        "logdet": (f"torch.logdet(x{_REGULAR})",),
    },
    "inverse": {
        **{
            f"linalg_{name}": (f"torch.linalg.{name}(x{_REGULAR}, ...)",)
            for name in ("inv_ex", "inv", "solve", "solve_ex", "solve_triangular")
        },
        "cholesky_solve": (f"torch.cholesky_solve(a, b{_REGULAR.replace('x', 'b')}, ...)",),
        "cholesky_inverse": (f"torch.cholesky_inverse(x{_REGULAR}, ...)",),
    },
    "std": _each(("std", "var"), "nantrap.ops.safe_NAME(x, ...)"),
    "std_above_zero": _each(("std", "var"), f"nantrap.ops.safe_NAME(x, ...) + {USUAL_EPS:g}"),
    "domain": {
        **_each(("sqrt", "rsqrt", "log", "log2", "log10"), "torch.NAME(x.clamp(min={tiny}))"),
        "log1p": ("torch.log1p(x.clamp(min=-1 + {near}))",),
        **_each(("acos", "arccos", "asin", "arcsin"), _ENDS),
        **_OF_X,
        **_each(("acosh", "arccosh"), "torch.NAME(x.clamp(min=1 + {near}))"),
        **_each(("xlogy", "special_xlogy"), "torch.xlogy(a, b.clamp(min={tiny}))"),
        "special_xlog1py": ("torch.special.xlog1py(a, b.clamp(min=-1 + {near}))",),
        **_each(_POWERS[:3], "torch.pow(a.clamp(min={tiny}), b)"),
    },
    "selected": {
        **_each(("sqrt", "rsqrt", "log", "log2", "log10"), "torch.NAME(x.masked_fill(x <= 0, 1.0))"),
        "log1p": ("torch.log1p(x.masked_fill(x <= -1, 0.0))",),
        **_each(_POWERS[:3], "torch.pow(a.masked_fill(a <= 0, 1.0), b)"),
        "reciprocal": ("1 / x.masked_fill(x == 0, 1.0)",),
        **_each(_DIVISIONS, "a / b.masked_fill(b == 0, 1.0)"),
    },
    "cross_entropy": {"cross_entropy": ("nantrap.ops.cross_entropy(a, b, ...)",)},
    "ctc": {"ctc_loss": ("nantrap.ops.ctc_loss(x, ...)",)},
    "floor": {
        **_each(("sqrt", "rsqrt", "log", "log2", "log10"), "torch.NAME(x.clamp(min={eps}))"),
        "log1p": ("torch.log1p(x.clamp(min=-1 + {edge}))",),
        **_each(_POWERS[:3], "torch.pow(a.clamp(min={eps}), b)"),
        "reciprocal": ("1 / {kept_x}",),
        **_each(_DIVISIONS, "a / {kept_b}"),
        **_each(_NORMALISING, f"eps={USUAL_EPS:g}"),
    },
    "held": {
        **_each(("sqrt", "rsqrt", "log", "log2", "log10"), "torch.NAME(x + {held})"),
        "log1p": ("torch.log(1 + x + {held})",),
        **_OF_X,
        **_each(_POWERS[:3], "torch.pow(a + {held}, b)"),
        "reciprocal": ("1 / (x + {held})",),
        **_each(_DIVISIONS, "a / (b + {held})"),
    },
}
"""Family to function to what is written instead, the first form that fits the arguments."""
