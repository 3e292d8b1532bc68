"""Elementary functions against mpmath, over the whole domain: every dtype, zeros, subnormals, limits, Inf, NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nantrap import ops

PROPERTY = settings(deadline=None, derandomize=True, max_examples=50)
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))

Real = float
numbers = st.lists(
    st.one_of(st.floats(-2, 2), st.floats(), st.sampled_from([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan])),
    min_size=1,
    max_size=6,
)


def with_limits(values: list[float], dtype: torch.dtype) -> Tensor:
    """The drawn numbers in this dtype, with its own landmarks among them."""
    info = torch.finfo(dtype)
    landmarks = [info.tiny, info.tiny * info.eps, info.max, info.min, 1 - info.eps / 2, 1 + info.eps, info.tiny * 2]
    return torch.tensor(values + landmarks, dtype=torch.float64).to(dtype)


def exact(function: Callable[[Real], mpmath.mpf | float], x: Tensor) -> Tensor:
    """The function at each number to 40 digits, rounded to float64. NaN stays NaN."""
    with mpmath.workdps(40):
        values = [math.nan if math.isnan(v) else float(function(v)) for v in x.double().tolist()]
        return torch.tensor(values, dtype=torch.float64)


def derivative(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(function(leaf).sum(), leaf)[0]


def check(
    ulps,
    function: Callable[[Tensor], Tensor],
    value: Callable[[Real], mpmath.mpf | float],
    slope: Callable[[Real], mpmath.mpf | float],
    x: Tensor,
    *,
    scale: float = 0.0,
    within: float = 2.0,
) -> None:
    assert ulps(function(x), exact(value, x)) <= within
    finite = x[x.isfinite()]
    gradient = derivative(function, finite)
    assert gradient.isfinite().all(), (finite, gradient)
    assert ulps(gradient, exact(slope, finite), scale=scale) <= 2 * within


@every_dtype
@PROPERTY
@given(values=numbers)
def test_safe_log(values: list[float], dtype: torch.dtype, ulps) -> None:
    x = with_limits(values, dtype)
    tiny = torch.finfo(dtype).tiny
    check(ulps, ops.safe_log, lambda v: mpmath.log(max(v, tiny)), lambda v: 1 / mpmath.mpf(v) if v > tiny else 0.0, x)


@every_dtype
@PROPERTY
@given(values=numbers)
def test_safe_sqrt(values: list[float], dtype: torch.dtype, ulps) -> None:
    x = with_limits(values, dtype)
    check(
        ulps,
        ops.safe_sqrt,
        lambda v: mpmath.sqrt(max(v, 0)),
        lambda v: 1 / (2 * mpmath.sqrt(v)) if v > 0 else 0.0,
        x,
    )


@every_dtype
@PROPERTY
@given(values=numbers, exponent=st.sampled_from([0.5, 0.6, 1 / 3, 1.5, 2.5]))
def test_safe_pow(values: list[float], exponent: float, dtype: torch.dtype, ulps) -> None:
    info = torch.finfo(dtype)
    x = with_limits(values, dtype)
    p = exponent
    value = exact(lambda v: mpmath.mpf(v) ** p if v > info.tiny else 0.0, x)
    assert ulps(ops.safe_pow(x, p), value) <= 4
    finite = x[x.isfinite()]
    slope = exact(lambda v: p * mpmath.mpf(v) ** (p - 1) if v > info.tiny else 0.0, finite)
    assert ulps(derivative(lambda t: ops.safe_pow(t, p), finite), slope, scale=info.tiny / info.eps) <= 8


@every_dtype
def test_safe_pow_is_zero_where_a_negative_power_has_no_value(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, -3.0, -math.inf], dtype=dtype)
    for exponent in (-1, -0.5, -2.0):
        assert torch.equal(ops.safe_pow(x, exponent), torch.zeros_like(x))
        assert torch.equal(derivative(lambda t: ops.safe_pow(t, exponent), x).abs(), torch.zeros_like(x))


def test_safe_pow_leaves_natural_exponents_to_torch() -> None:
    x = torch.tensor([-2.0, 0.0, 3.0])
    for exponent in (0, 1, 2, 3.0):
        assert torch.equal(ops.safe_pow(x, exponent), x**exponent)


def test_safe_pow_with_a_learned_exponent() -> None:
    x = torch.tensor([0.0, 2.0, -1.0], requires_grad=True)
    p = torch.tensor(0.5, requires_grad=True)
    out = ops.safe_pow(x, p)
    torch.testing.assert_close(out, torch.tensor([0.0, 2**0.5, 0.0]))
    slope_x, slope_p = torch.autograd.grad(out.sum(), [x, p])
    torch.testing.assert_close(slope_x, torch.tensor([0.0, 0.5 / 2**0.5, 0.0]))
    torch.testing.assert_close(slope_p, torch.tensor(2**0.5 * math.log(2)))
    assert ops.safe_pow(torch.zeros(1), torch.zeros(1)).item() == 1.0


@every_dtype
@PROPERTY
@given(values=numbers)
def test_safe_acos_and_asin(values: list[float], dtype: torch.dtype, ulps) -> None:
    x = with_limits(values, dtype)

    def inverse_root(v: Real) -> mpmath.mpf | float:
        return 1 / mpmath.sqrt((1 - mpmath.mpf(v)) * (1 + mpmath.mpf(v))) if abs(v) < 1 else 0.0

    check(ulps, ops.safe_acos, lambda v: mpmath.acos(min(max(v, -1), 1)), lambda v: -inverse_root(v), x)
    check(ulps, ops.safe_asin, lambda v: mpmath.asin(min(max(v, -1), 1)), inverse_root, x)


@every_dtype
@PROPERTY
@given(values=numbers)
def test_xlogx(values: list[float], dtype: torch.dtype, ulps) -> None:
    x = with_limits([v for v in values if v != -math.inf] or [0.0], dtype)
    x = x[~(x < 0)]  # a probability
    tiny = torch.finfo(dtype).tiny
    check(
        ulps,
        ops.xlogx,
        lambda v: v * mpmath.log(max(v, tiny)),
        lambda v: mpmath.log(v) + 1 if v > tiny else mpmath.log(tiny),
        x,
        scale=1.0,
    )


@pytest.mark.parametrize(
    ("function", "like"),
    [(ops.safe_log, torch.log), (ops.safe_sqrt, torch.sqrt), (partial(ops.safe_pow, exponent=-0.5), torch.rsqrt),
     (partial(ops.safe_divide, 1.0), torch.reciprocal), (lambda x: ops.safe_divide(x, x), torch.ones_like)],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool], ids=str)
def test_counts_are_taken_as_torch_takes_them(
    function: Callable[[Tensor], Tensor], like: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    counts = torch.tensor([1, 3]).to(dtype)
    torch.testing.assert_close(function(counts), like(counts).float())
    assert function(torch.zeros(1, dtype=dtype)).isfinite().all()


def test_safe_divide_by_a_count() -> None:
    assert ops.safe_divide(torch.tensor([1.0, 3.0]), torch.tensor([0, 2])).tolist() == [0.0, 1.5]
    assert ops.safe_divide(1.0, torch.tensor([0, 4])).tolist() == [0.0, 0.25]


@every_dtype
@PROPERTY
@given(numerators=numbers, denominators=numbers)
def test_safe_divide(numerators: list[float], denominators: list[float], dtype: torch.dtype, ulps) -> None:
    info = torch.finfo(dtype)
    a, b = with_limits(numerators, dtype)[:, None], with_limits(denominators, dtype)
    a, b = (t.flatten() for t in torch.broadcast_tensors(a, b))
    hole = b.abs() <= info.tiny
    reference = torch.where(hole, a.double() / math.inf, a.double() / b.double())
    assert ulps(ops.safe_divide(a, b), reference) <= 1

    fits = a.isfinite() & b.isfinite() & (reference.abs() < info.max) & ((reference / b.double()).abs() < info.max)
    a, b, hole = a[fits | hole & a.isfinite()], b[fits | hole & a.isfinite()], hole[fits | hole & a.isfinite()]
    x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
    to_a, to_b = torch.autograd.grad(ops.safe_divide(x, y).sum(), [x, y])
    zero = torch.zeros_like(a, dtype=torch.float64)
    smallest = info.tiny / info.eps  # below it the factors of the slope are subnormal
    if dtype != torch.float64:  # a/b² leaves the range of float64 itself
        assert ulps(to_b, torch.where(hole, zero, -a.double() / b.double() ** 2), scale=smallest) <= 4
    assert ulps(to_a, torch.where(hole, zero, 1 / b.double())) <= 1


def test_safe_divide_broadcasts_and_takes_numbers() -> None:
    a = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    b = torch.tensor([[1.0], [0.0], [-2.0]], dtype=torch.float64, requires_grad=True)
    ours = torch.autograd.grad(ops.safe_divide(a, b).sum(), [a, b])
    torch.testing.assert_close(ours[0], torch.tensor([1.0, 0.0, -0.5]).double()[:, None].expand(3, 4))
    torch.testing.assert_close(ours[1][1], torch.zeros(1).double())
    torch.testing.assert_close(ours[1][2], -a.detach()[2:].sum(-1) / 4)
    assert ops.safe_divide(1, torch.tensor(4.0)).item() == 0.25


def test_a_floor_the_dtype_cannot_hold_is_raised() -> None:
    zero = torch.zeros(1, dtype=torch.float16, requires_grad=True)
    assert ops.safe_log(zero, floor=1e-8).isfinite().all()
    assert ops.safe_log(torch.zeros(1), floor=1e-3).item() == pytest.approx(math.log(1e-3))
    assert ops.safe_divide(1.0, torch.tensor([1e-3, 1.0]), floor=1e-2).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    "function",
    [
        ops.safe_log,
        ops.safe_sqrt,
        ops.xlogx,
        ops.safe_acos,
        lambda x: ops.safe_pow(x, 0.5),
        lambda x: ops.safe_divide(x, x),
    ],
)
def test_second_derivatives_are_finite_where_the_first_is_a_convention(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.tensor([0.0, 1.0, -1.0, 0.5], dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert first.isfinite().all()
    assert second.isfinite().all()
