"""One call of the user's, replaced by a stable one at its own source line, for one run.

A function mode sees the call above autograd, so the replacement brings its own gradient. Only calls made from the
guilty line are replaced; the same function elsewhere runs unchanged. In a step that is run from a tape, the
operations that were recorded at that line are replaced.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from nantrap import ops
from nantrap.causes.facts import USUAL_EPS, masked_rows_of
from nantrap.incident import Source
from nantrap.locate.source import user_place
from nantrap.locate.torch_private import ThroughoutMode
from nantrap.locate.trace import Op
from nantrap.locate.trace.tape import substituting


class Replacement(ThroughoutMode):
    """Replaces calls of one family at the given lines, wherever they run. `hits` counts them."""

    def __init__(self, sources: Iterable[Source], family: str) -> None:
        super().__init__()
        self.sources = tuple(sources)
        self.family = family
        self._lines = {(source.file, source.line) for source in self.sources}
        self._functions = FAMILIES[family]
        self.hits = 0

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the stable form instead, if the call is at one of the lines."""
        stable = self._functions.get(getattr(func, "__name__", ""))
        if stable is not None:
            place = user_place(sys._getframe(2))
            if place is not None and (place.code.co_filename, place.line) in self._lines:
                self.hits += 1
                return stable(*args, **kwargs)
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
        """The stable form of an operation that was recorded at one of the lines."""
        if op.place is None or (op.place.code.co_filename, op.place.line) not in self._lines:
            return NotImplemented
        name = op.name.removeprefix("aten.")
        stable = self._functions.get(_RECORDED.get(name, name))
        if stable is None:
            return NotImplemented
        self.hits += 1
        return stable(*(args[:2] if name in _RECORDED else args), **kwargs)


_JUST_INSIDE = 1e-6
"""How far inside its domain an argument is kept: float32 has an eps of 1.2e-7 next to 1."""
_ABOVE_ZERO = 1e-12
"""How far above 0: the reciprocal of its root is 1e6, and that of itself 1e12, which float32 holds."""
_ON_THE_DIAGONAL = 1e-3
"""What keeps a matrix from being singular: its inverse is below 1,000."""
_ROOM = 0.25
"""An exponential is kept below the fourth root of the largest number, so that its square and a sum of them fit."""
_RECORDED = {"_softmax": "softmax", "_log_softmax": "log_softmax"}
"""Operations that people call by another name, and of which only the first two arguments matter."""
_CALLED = {**_RECORDED, "nll_loss_forward": "cross_entropy", "nll_loss2d_forward": "cross_entropy"}


def is_of_family(op: Op, family: str) -> bool:
    """Whether an operation belongs to a call of the family."""
    name = op.name.removeprefix("aten.")
    return _CALLED.get(name, name) in FAMILIES[family]


def _sqrt(x: Tensor) -> Tensor:
    return ops.safe_sqrt(x)


def _rsqrt(x: Tensor) -> Tensor:
    return ops.safe_divide(1.0, ops.safe_sqrt(x))


def _hypot(a: Tensor, b: Tensor) -> Tensor:
    return ops.safe_sqrt(a * a + b * b)


def _pow(x: Any, exponent: Any) -> Tensor:
    return ops.safe_pow(x, exponent) if isinstance(x, Tensor) else torch.pow(x, exponent)


def _divide(x: Any, other: Any, **kwargs: Any) -> Any:
    if kwargs.get("rounding_mode") or not isinstance(other, Tensor):
        return torch.div(x, other, **kwargs)
    return ops.safe_divide(x, other)


def _divided_by(x: Tensor, other: Any) -> Any:
    return ops.safe_divide(other, x)


def _reciprocal(x: Tensor) -> Tensor:
    return ops.safe_divide(1.0, x)


def _softmax(x: Tensor, dim: int = -1, *args: Any, **kwargs: Any) -> Tensor:
    kept = x != float("-inf")
    result = ops.masked_softmax(x, kept, dim=dim)
    dtype = kwargs.get("dtype")
    return result.to(dtype) if dtype is not None else result


def _log_softmax(x: Tensor, dim: int = -1, *args: Any, **kwargs: Any) -> Tensor:
    return ops.masked_log_softmax(x, x != float("-inf"), dim=dim)


def _unmasked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The reduction with 0 in rows that are -inf everywhere."""

    def stable(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        masked = None if "other" in kwargs else masked_rows_of(x, kwargs.get("dim", args[0] if args else ()))
        return function(x if masked is None else x.masked_fill(masked, 0.0), *args, **kwargs)

    return stable


def _exp(x: Tensor) -> Tensor:
    return torch.exp(x.clamp(max=_ROOM * _log_limit(x)))


def _exp_both(x: Tensor) -> Tensor:
    bound = _ROOM * _log_limit(x)
    return torch.exp(x.clamp(-bound, bound).where(x != float("-inf"), x))  # -Inf is a mask, which stays


def _log_limit(x: Tensor) -> float:
    return float(torch.log(torch.tensor(torch.finfo(x.dtype).max, dtype=torch.float64)))


def _bounded(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def stable(x: Tensor) -> Tensor:
        limit = _ROOM * _log_limit(x)
        return function(x.clamp(-limit, limit))

    return stable


def _bounded_power(base: Any, exponent: Any) -> Tensor:
    """The power, with the exponent bounded so that the result leaves room for what is done with it."""
    if not isinstance(exponent, Tensor):
        return torch.pow(base, exponent)
    size = torch.as_tensor(base, dtype=torch.get_default_dtype()).detach().abs()
    most = _ROOM * _log_limit(size) / size.clamp(min=1 + _JUST_INSIDE).log()
    return torch.pow(base, torch.minimum(exponent, most.to(exponent.dtype)))


def _power_of(exponent: Any, base: Any) -> Tensor:
    return _bounded_power(base, exponent)


def _slogdet(x: Tensor) -> Any:
    return torch.linalg.slogdet(_off_singular(x))


def _logdet(x: Tensor) -> Tensor:
    return torch.logdet(_off_singular(x))


def _on_regular(function: Callable[..., Any], position: int = 0) -> Callable[..., Any]:
    """The call with its matrix kept from being singular."""

    def stable(*args: Any, **kwargs: Any) -> Any:
        given = list(args)
        given[position] = _off_singular(given[position])
        return function(*given, **kwargs)

    return stable


def _off_singular(x: Tensor) -> Tensor:
    return x + _ON_THE_DIAGONAL * torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)


def _std(x: Tensor, dim: Any = None, unbiased: bool = True, keepdim: bool = False, **kwargs: Any) -> Tensor:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    correction = kwargs.get("correction", 1 if unbiased else 0)
    return ops.safe_std(x, dim, correction=correction, keepdim=keepdim)


def _var(x: Tensor, dim: Any = None, unbiased: bool = True, keepdim: bool = False, **kwargs: Any) -> Tensor:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    correction = kwargs.get("correction", 1 if unbiased else 0)
    return ops.safe_var(x, dim, correction=correction, keepdim=keepdim)


def _above_zero(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function plus an eps: what comes next may divide by it."""

    def stable(*args: Any, **kwargs: Any) -> Tensor:
        return function(*args, **kwargs) + USUAL_EPS

    return stable


def _log1p(x: Tensor) -> Tensor:
    return ops.safe_log(1 + x)


def _log2(x: Tensor) -> Tensor:
    return ops.safe_log(x) / math.log(2)


def _log10(x: Tensor) -> Tensor:
    return ops.safe_log(x) / math.log(10)


def _xlogy(x: Tensor | float, y: Tensor) -> Tensor:
    return ops.safe_log(y) * x


def _xlog1py(x: Tensor | float, y: Tensor) -> Tensor:
    return ops.safe_log(1 + y) * x


def _cross_entropy(logits: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    names = ("weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    known = {key: given[key] for key in ("weight", "ignore_index", "reduction", "label_smoothing") if key in given}
    return ops.cross_entropy(logits, target, **known)


def _ctc(log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, **kwargs: Any) -> Tensor:
    return torch.nn.functional.ctc_loss(
        log_probs, targets, input_lengths, target_lengths, **{**kwargs, "zero_infinity": True}
    )


def _inside(function: Callable[..., Tensor], low: float, high: float | None = None) -> Callable[..., Tensor]:
    """The function with its argument brought into its domain."""

    def stable(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return function(x.clamp(low, high), *args, **kwargs)

    return stable


def _between_ends(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function with its argument kept between -1 and 1."""
    return _inside(function, -1 + _JUST_INSIDE, 1 - _JUST_INSIDE)


def _divided_by_floored(x: Any, other: Any, **kwargs: Any) -> Any:
    if kwargs.get("rounding_mode") or not isinstance(other, Tensor):
        return torch.div(x, other, **kwargs)
    away = torch.where(other < 0, -other.abs().clamp(min=USUAL_EPS**0.5), other.abs().clamp(min=USUAL_EPS**0.5))
    return torch.div(x, away)


def _with_larger_eps(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A normalisation of `torch.nn.functional`."""
    position = list(inspect.signature(function).parameters).index("eps")

    def stable(*args: Any, **kwargs: Any) -> Tensor:
        kept = [USUAL_EPS if index == position else value for index, value in enumerate(args)]
        return function(*kept, **kwargs) if len(args) > position else function(*args, **{**kwargs, "eps": USUAL_EPS})

    return stable


_INVERTING = ("linalg_inv_ex", "linalg_inv", "linalg_solve", "linalg_solve_ex", "linalg_solve_triangular")
_NORMALISING = (F.layer_norm, F.group_norm, F.batch_norm, F.instance_norm, F.rms_norm, F.normalize)

FAMILIES: dict[str, dict[str, Callable[..., Any]]] = {
    "sqrt": {"sqrt": _sqrt, "rsqrt": _rsqrt, "sqrt_": _sqrt, "hypot": _hypot},
    "log": {
        "log": ops.safe_log,
        "log_": ops.safe_log,
        "log1p": _log1p,
        "log2": _log2,
        "log10": _log10,
        **dict.fromkeys(("xlogy", "special_xlogy"), _xlogy),
        "special_xlog1py": _xlog1py,
        "special_entr": lambda x: -ops.xlogx(x),
    },
    "div": {
        "div": _divide,
        "true_divide": _divide,
        "__truediv__": _divide,
        "__rtruediv__": _divided_by,
        "__rdiv__": _divided_by,
        "reciprocal": _reciprocal,
        "divide": _divide,
    },
    "pow": {"pow": _pow, "__pow__": _pow, "float_power": _pow},
    "acos": {"acos": ops.safe_acos, "arccos": ops.safe_acos, "asin": ops.safe_asin, "arcsin": ops.safe_asin},
    "softmax": {"softmax": _softmax, "log_softmax": _log_softmax},
    "masked_reduction": {name: _unmasked(getattr(torch, name)) for name in ("amax", "max", "logsumexp")},
    "exp": {"exp": _exp, "exp_": _exp, "expm1": _exp, "cosh": _bounded(torch.cosh), "sinh": _bounded(torch.sinh)},
    "exp_both": {"exp": _exp_both, "exp_": _exp_both},
    "power": {**dict.fromkeys(("pow", "__pow__", "float_power"), _bounded_power), "__rpow__": _power_of},
    "logdet": {"slogdet": _slogdet, "linalg_slogdet": _slogdet, "logdet": _logdet},
    "inverse": {
        **{name: _on_regular(getattr(torch.linalg, name.removeprefix("linalg_"))) for name in _INVERTING},
        "cholesky_solve": _on_regular(torch.cholesky_solve, 1),
        "cholesky_inverse": _on_regular(torch.cholesky_inverse),
    },
    "std": {"std": _std, "var": _var},
    "std_above_zero": {"std": _above_zero(_std), "var": _above_zero(_var)},
    "domain": {
        **{name: _inside(getattr(torch, name), _ABOVE_ZERO) for name in ("sqrt", "rsqrt", "log", "log2", "log10")},
        "log1p": _inside(torch.log1p, -1 + _JUST_INSIDE),
        **{name: _between_ends(getattr(torch, name)) for name in ("acos", "asin", "atanh", "erfinv")},
        "arccos": _between_ends(torch.acos),
        "arcsin": _between_ends(torch.asin),
        **dict.fromkeys(("acosh", "arccosh"), _inside(torch.acosh, 1 + _JUST_INSIDE)),
        "logit": _inside(torch.logit, _JUST_INSIDE, 1 - _JUST_INSIDE),
        "pow": _inside(torch.pow, _ABOVE_ZERO),
        "__pow__": _inside(torch.pow, _ABOVE_ZERO),
    },
    "cross_entropy": {"cross_entropy": _cross_entropy},
    "ctc": {"ctc_loss": _ctc},
    "floor": {
        "sqrt": _inside(torch.sqrt, USUAL_EPS),
        "rsqrt": _inside(torch.rsqrt, USUAL_EPS),
        **{name: _inside(getattr(torch, name), USUAL_EPS) for name in ("log", "log2", "log10")},
        "log1p": _inside(torch.log1p, -1 + USUAL_EPS),
        "pow": _inside(torch.pow, USUAL_EPS),
        "__pow__": _inside(torch.pow, USUAL_EPS),
        "reciprocal": _inside(torch.reciprocal, USUAL_EPS**0.5),
        **dict.fromkeys(("div", "true_divide", "__truediv__", "divide"), _divided_by_floored),
        **dict.fromkeys(("__rtruediv__", "__rdiv__"), lambda x, other: _divided_by_floored(other, x)),
        **{f.__name__: _with_larger_eps(f) for f in _NORMALISING},
    },
}
"""Family to function name to its stable form."""
