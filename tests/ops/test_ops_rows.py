"""Operations over rows: norms, spreads, softmaxes, weights, Sinkhorn, to the limits of every dtype."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nantrap import ops

PROPERTY = settings(deadline=None, derandomize=True, max_examples=40)
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))

fractions = st.lists(st.one_of(st.floats(-1, 1), st.sampled_from([0.0, 1.0, -1.0])), min_size=1, max_size=6)
# how far towards the limits of the dtype a row is scaled: subnormal, tiny, ordinary, near the largest number
heights = st.sampled_from(["subnormal", "tiny", "one", "hundred", "largest"])


def row(values: list[float], height: str, dtype: torch.dtype) -> Tensor:
    info = torch.finfo(dtype)
    scale = {
        "subnormal": info.tiny * info.eps * 4,
        "tiny": info.tiny * 8,
        "one": 1.0,
        "hundred": 100.0,
        "largest": info.max / 8,
    }[height]
    return (torch.tensor(values, dtype=torch.float64) * scale).to(dtype)


def gradient(out: Tensor, x: Tensor, weights: Tensor | None = None) -> Tensor:
    total = out.double().sum() if weights is None else (out.double() * weights).sum()
    return torch.autograd.grad(total, x)[0]


def as_float64(values: list[mpmath.mpf]) -> Tensor:
    return torch.tensor([float(v) for v in values], dtype=torch.float64)


@every_dtype
@PROPERTY
@given(values=fractions, height=heights)
def test_safe_norm(values: list[float], height: str, dtype: torch.dtype, ulps) -> None:
    x = row(values, height, dtype).requires_grad_()
    with mpmath.workdps(40):
        numbers = [mpmath.mpf(v) for v in x.tolist()]
        norm = mpmath.sqrt(sum(v * v for v in numbers))
        slope = as_float64([v / norm if norm else mpmath.mpf(0) for v in numbers])
    ours = ops.safe_norm(x)
    assert ulps(ours[None], as_float64([norm])) <= 4
    # a norm of a few subnormal steps is known to half a step, and the slope to the same share
    loose = height == "subnormal"
    assert ulps(gradient(ours, x), slope, scale=1.0) <= (2 / torch.finfo(dtype).eps if loose else 8)
    assert gradient(ops.safe_norm(x), x).abs().max() <= 1.01 + loose


@every_dtype
@PROPERTY
@given(values=fractions, height=heights)
def test_rms_norm(values: list[float], height: str, dtype: torch.dtype, ulps) -> None:
    x = row(values, height, dtype).requires_grad_()
    with mpmath.workdps(40):
        numbers = [mpmath.mpf(v) for v in x.tolist()]
        root = mpmath.sqrt(sum(v * v for v in numbers) / len(numbers) + mpmath.mpf(1e-6))
        reference = as_float64([v / root for v in numbers])
    ours = ops.rms_norm(x)
    assert ulps(ours, reference, scale=1.0) <= 8
    assert gradient(ours, x, torch.linspace(0.5, 1, len(values)).double()).isfinite().all()


@pytest.mark.parametrize("eps", [1e-20, 1e-40, 0.0])
@every_dtype
def test_rms_norm_of_a_zero_row_has_a_finite_slope_whatever_the_epsilon(eps: float, dtype: torch.dtype) -> None:
    x = torch.zeros(2, 4, dtype=dtype, requires_grad=True)
    ours = ops.rms_norm(x, eps=eps)
    assert (ours == 0).all()
    assert gradient(ours, x).isfinite().all()


@every_dtype
@PROPERTY
@given(values=fractions, height=st.sampled_from(["tiny", "one", "hundred"]), correction=st.sampled_from([0, 1, 2]))
def test_safe_std_and_var(values: list[float], height: str, correction: int, dtype: torch.dtype, ulps) -> None:
    x = row(values, height, dtype).requires_grad_()
    with mpmath.workdps(40):
        numbers = [mpmath.mpf(v) for v in x.tolist()]
        mean = sum(numbers) / len(numbers)
        squares = sum((v - mean) ** 2 for v in numbers)
        var = squares / max(len(numbers) - correction, 1)
    largest = float(x.detach().double().abs().max())
    std = ops.safe_std(x, correction=correction)
    assert ulps(std[None], as_float64([mpmath.sqrt(var)]), scale=largest) <= 8
    assert gradient(std, x).isfinite().all()
    squared = ops.safe_var(x, correction=correction)
    if height != "tiny":  # the squares underflow
        assert ulps(squared[None], as_float64([var]), scale=largest**2) <= 16
    assert gradient(squared, x).isfinite().all()


@every_dtype
@PROPERTY
@given(value=st.floats(-100, 100), count=st.integers(1, 9))
def test_a_constant_group_has_no_spread_and_no_slope(value: float, count: int, dtype: torch.dtype) -> None:
    x = torch.full((count,), value, dtype=dtype, requires_grad=True)
    for spread in (ops.safe_std(x), ops.safe_var(x)):
        assert spread.item() == 0.0
        assert torch.equal(gradient(spread, x), torch.zeros_like(x))


def test_spread_agrees_with_torch() -> None:
    x = torch.randn(5, 6, 7, dtype=torch.float64)
    for dim in (None, 0, -1, (0, 2)):
        for keepdim in (False, True):
            for correction in (0, 1):
                ours = ops.safe_std(x, dim, correction=correction, keepdim=keepdim)
                torch.testing.assert_close(ours, x.std(dim, correction=correction, keepdim=keepdim))
                ours = ops.safe_var(x, dim, correction=correction, keepdim=keepdim)
                torch.testing.assert_close(ours, x.var(dim, correction=correction, keepdim=keepdim))
        torch.testing.assert_close(ops.safe_norm(x, dim), torch.linalg.vector_norm(x, dim=dim))


@every_dtype
def test_rows_of_the_largest_number(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    x = torch.full((4,), largest, dtype=dtype, requires_grad=True)
    torch.testing.assert_close(ops.rms_norm(x), torch.ones_like(x), rtol=1e-5, atol=0)
    assert gradient(ops.rms_norm(x), x).isfinite().all()
    assert ops.normalize_weights(x).tolist() == [0.25] * 4
    y = torch.tensor([0.0, 0.0, 0.0, largest], dtype=dtype, requires_grad=True)
    spread = ops.safe_std(y, correction=1)
    assert spread.item() == pytest.approx(largest / 2, rel=0.01)
    assert gradient(spread, y).isfinite().all()


def test_a_scalar_is_a_group_of_one() -> None:
    x = torch.tensor(3.0, requires_grad=True)
    assert ops.safe_norm(x).item() == 3.0
    assert ops.safe_std(x).item() == ops.safe_var(x).item() == 0.0
    assert gradient(ops.safe_std(x) + ops.safe_var(x), x).item() == 0.0


def test_infinity_in_a_row_is_not_hidden() -> None:
    x = torch.tensor([math.inf, 1.0])
    assert ops.safe_norm(x).item() == math.inf
    assert ops.safe_std(x).isnan()
    assert ops.rms_norm(x)[0].isnan()
    assert ops.normalize_weights(x).isnan().any()


@st.composite
def masked_rows(draw: st.DrawFn) -> tuple[list[float], list[bool]]:
    size = draw(st.integers(1, 6))
    scores = draw(
        st.lists(st.one_of(st.floats(-30, 30), st.sampled_from([-1e30, 1e30, 0.0])), min_size=size, max_size=size)
    )
    kept = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    return scores, kept


@every_dtype
@PROPERTY
@given(drawn=masked_rows())
def test_masked_softmax(drawn: tuple[list[float], list[bool]], dtype: torch.dtype, ulps) -> None:
    scores, kept = drawn
    info = torch.finfo(dtype)
    x = torch.tensor(scores, dtype=torch.float64).clamp(info.min, info.max).to(dtype)
    mask = torch.tensor(kept)
    with mpmath.workdps(60):
        numbers = [mpmath.mpf(v) for v in x.tolist()]
        top = max((v for v, k in zip(numbers, kept, strict=True) if k), default=mpmath.mpf(0))
        terms = [mpmath.exp(v - top) if k else mpmath.mpf(0) for v, k in zip(numbers, kept, strict=True)]
        total = sum(terms) or mpmath.mpf(1)
        p = as_float64([t / total for t in terms])
        log_p = as_float64(
            [v - top - mpmath.log(total) if k else mpmath.mpf(0) for v, k in zip(numbers, kept, strict=True)]
        )
    for poison in (0.0, math.nan, math.inf, -math.inf):
        dirty = torch.where(mask, x, poison).requires_grad_()
        ours = ops.masked_softmax(dirty, mask)
        assert ulps(ours, p, scale=1.0) <= 4
        assert (ours[~mask] == 0).all()
        weights = torch.linspace(-1, 1, len(kept)).double()
        slope = p * (weights - (p * weights).sum())
        assert ulps(gradient(ours, dirty, weights), slope, scale=1.0) <= 8

        ours = ops.masked_log_softmax(dirty, mask)
        assert ulps(torch.where(mask, ours, 0.0), log_p, scale=1.0) <= 4
        assert (ours[~mask] == info.min).all()
        slope = torch.where(mask, weights - p * weights[mask].sum(), 0.0)
        assert ulps(gradient(torch.where(mask, ours, 0.0), dirty, weights), slope, scale=4.0) <= 8


def test_masked_softmax_takes_scores_that_are_masked_already() -> None:
    scores = torch.tensor([[0.0, -math.inf], [-math.inf, -math.inf]], requires_grad=True)
    ours = ops.masked_softmax(scores)
    assert ours.tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert gradient(ours, scores, torch.tensor([[1.0, 2.0], [3.0, 4.0]])).isfinite().all()


def test_masks_broadcast_and_may_be_integers_but_not_floats() -> None:
    scores = torch.randn(2, 3, 4)
    mask = torch.tensor([True, False, True, True])
    whole = mask.expand(2, 3, 4)
    assert torch.equal(ops.masked_softmax(scores, mask), ops.masked_softmax(scores, whole))
    assert torch.equal(ops.masked_softmax(scores, mask.long()), ops.masked_softmax(scores, whole))
    torch.testing.assert_close(ops.masked_softmax(scores, whole, dim=1).sum(1), mask.float().expand(2, 4))
    with pytest.raises(ValueError, match="a mask must be boolean, True where a value is kept"):
        ops.masked_softmax(scores, mask.float())


@every_dtype
@PROPERTY
@given(drawn=masked_rows(), temperature=st.one_of(st.sampled_from([0.0, 1e-30, math.inf, 1e30]), st.floats(0.01, 100)))
def test_temperature_softmax(
    drawn: tuple[list[float], list[bool]], temperature: float, dtype: torch.dtype, ulps
) -> None:
    info = torch.finfo(dtype)
    x = torch.tensor(drawn[0], dtype=torch.float64).clamp(info.min, info.max).to(dtype).requires_grad_()
    used = min(max(temperature, 1e-4), 1e4)
    with mpmath.workdps(60):
        numbers = [mpmath.mpf(v) / used for v in x.tolist()]
        terms = [mpmath.exp(v - max(numbers)) for v in numbers]
        p = as_float64([t / sum(terms) for t in terms])
    ours = ops.temperature_softmax(x, temperature)
    assert ulps(ours, p, scale=1.0) <= 8
    assert gradient(ours, x, torch.linspace(-1, 1, len(numbers)).double()).isfinite().all()

    learned = torch.tensor(temperature, dtype=torch.float32).to(x.dtype).requires_grad_()
    slope = gradient(ops.temperature_softmax(x, learned), learned, torch.linspace(-1, 1, len(numbers)).double())
    assert slope.isfinite()
    assert not ops.temperature_log_softmax(x, temperature).isnan().any()


def test_temperature_limits_are_checked() -> None:
    with pytest.raises(ValueError, match="0 < low <= high"):
        ops.temperature_softmax(torch.zeros(2), 1.0, limits=(0.0, 1.0))
    assert ops.temperature_softmax(torch.zeros(2), math.nan).isnan().all()


@every_dtype
@PROPERTY
@given(values=st.lists(st.floats(0, 1), min_size=1, max_size=6), height=heights)
def test_normalize_weights(values: list[float], height: str, dtype: torch.dtype, ulps) -> None:
    x = row(values, height, dtype).requires_grad_()
    exact = x.detach().double()
    tiny = torch.finfo(torch.float32 if dtype.itemsize == 2 else dtype).tiny
    even = torch.full_like(exact, 1 / len(values))
    reference = exact / exact.sum() if exact.mean() > tiny * 1.001 else even
    ours = ops.normalize_weights(x)
    if abs(float(exact.mean()) / tiny - 1) > 0.1:  # at the border either is right
        precision = 1.0 if height not in ("tiny", "subnormal") or exact.mean() <= tiny else 8.0
        assert ulps(ours, reference, scale=1.0) <= 4 * precision
    assert float(ours.detach().double().sum()) == pytest.approx(1, abs=8 * torch.finfo(dtype).eps)
    if dtype != torch.float16 or height in ("one", "hundred", "largest"):  # 1/tiny does not fit float16
        assert gradient(ours, x, torch.linspace(-0.1, 0.1, len(values)).double()).isfinite().all()


@every_dtype
@PROPERTY
@given(values=st.lists(st.one_of(st.floats(-5, 5), st.sampled_from([500.0, -500.0])), min_size=9, max_size=9))
def test_sinkhorn(values: list[float], dtype: torch.dtype, ulps) -> None:
    x = torch.tensor(values, dtype=torch.float64).view(3, 3).to(dtype).requires_grad_()
    with mpmath.workdps(60):
        matrix = mpmath.matrix(3, 3)
        for i in range(3):
            for j in range(3):
                matrix[i, j] = mpmath.exp(mpmath.mpf(x[i, j].item()))
        for _ in range(4):
            for i in range(3):
                total = sum(matrix[i, j] for j in range(3))
                for j in range(3):
                    matrix[i, j] /= total
            for j in range(3):
                total = sum(matrix[i, j] for i in range(3))
                for i in range(3):
                    matrix[i, j] /= total
        reference = as_float64([matrix[i, j] for i in range(3) for j in range(3)]).view(3, 3)
    ours = ops.sinkhorn(x, iterations=4)
    # log-space numbers of 500 are known to 500 units of the last place
    assert ulps(ours, reference, scale=1.0) <= 4000
    assert gradient(ours, x, torch.linspace(-1, 1, 9).double().view(3, 3)).isfinite().all()


def test_sinkhorn_of_infinities_is_a_doubly_stochastic_matrix() -> None:
    logits = torch.tensor([[-math.inf, -math.inf], [math.inf, 0.0]], requires_grad=True)
    ours = ops.sinkhorn(logits, iterations=50)
    assert ours.isfinite().all()
    torch.testing.assert_close(ours.sum(-2), torch.ones(2))
    assert gradient(ours, logits, torch.tensor([[1.0, 2.0], [3.0, 4.0]])).isfinite().all()
    assert ops.Sinkhorn(iterations=7).extra_repr() == "iterations=7"
