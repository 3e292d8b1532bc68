"""The gradient norm: bit for bit that of `clip_grad_norm_`; exact where that one overflows."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from nantrap import finite


def parameters(shapes: list[tuple[int, ...]], dtype: torch.dtype, scale: float, seed: int) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    made = []
    for shape in shapes:
        parameter = nn.Parameter(torch.zeros(shape, dtype=dtype))
        parameter.grad = (torch.randn(shape, generator=generator) * scale).to(dtype)
        made.append(parameter)
    return made


SHAPES = [(3,), (4, 5), (1,), (7, 2, 3), (300, 40)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@given(st.integers(0, 1000), st.sampled_from([1e-6, 1e-2, 1.0, 30.0]), st.sampled_from([1e-3, 1.0, 5.0, 1e4]))
def test_bit_equal_to_clip_grad_norm(dtype: torch.dtype, seed: int, scale: float, limit: float) -> None:
    ours, theirs = (parameters(SHAPES, dtype, scale, seed) for _ in range(2))
    norm = finite.gradient_norm([p.grad for p in ours if p.grad is not None])
    expected = nn.utils.clip_grad_norm_(theirs, limit)
    assert torch.equal(norm, expected)
    assert norm.dtype == expected.dtype
    finite.clip_with_norm(ours, max_norm=limit, total=norm, known=float(norm))
    for a, b in zip(ours, theirs, strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert torch.equal(a.grad, b.grad)


@given(st.floats(0.5, 2.0))
def test_near_the_limit_the_shortcut_gives_the_same_bits(limit: float) -> None:
    for factor in (1 - 1e-3, 1 - 1e-5, 1 - 1e-6, 1 - 1e-7, 1.0, 1 + 1e-7, 1 + 1e-6):
        ours, theirs = (nn.Parameter(torch.zeros(2)) for _ in range(2))
        gradient = torch.tensor([limit * factor, 0.0])
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        norm = finite.gradient_norm([ours.grad])
        finite.clip_with_norm([ours], max_norm=limit, total=norm, known=float(norm))
        nn.utils.clip_grad_norm_([theirs], limit)
        assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.parametrize("shapes", [SHAPES, [(5,)], [(300, 400)], [(300, 400), (2, 2), (200, 200)]], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_flag_is_the_norm_up_to_rounding(dtype: torch.dtype, shapes: list[tuple[int, ...]]) -> None:
    gradients = [p.grad for p in parameters(shapes, dtype, 1.0, seed=4) if p.grad is not None]
    flag, norm = finite.flag_norm(gradients), finite.gradient_norm(gradients)
    assert (flag.dtype, flag.shape) == (norm.dtype, norm.shape)
    assert float(flag) == pytest.approx(float(norm), rel=0.02 if dtype.itemsize == 2 else 1e-4)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", range(len(SHAPES)))
def test_the_flag_finds_a_bad_value_in_any_gradient(value: float, where: int) -> None:
    gradients = [p.grad for p in parameters(SHAPES, torch.float32, 1.0, seed=4) if p.grad is not None]
    gradients[where].view(-1)[-1] = value
    assert not math.isfinite(float(finite.flag_norm(gradients)))


def test_the_flag_of_gradients_that_are_not_alike() -> None:
    sparse = torch.sparse_coo_tensor(torch.tensor([[1]]), [[3.0]], (4, 1))
    assert float(finite.flag_norm([torch.tensor([4.0]), sparse])) == 5.0
    assert float(finite.flag_norm([torch.tensor([4.0]), torch.tensor([3.0], dtype=torch.float64)])) == 5.0
    assert float(finite.flag_norm([])) == 0.0


def test_no_norm_carries_a_graph() -> None:
    weight = torch.ones(3, requires_grad=True)
    (gradient,) = torch.autograd.grad(weight.pow(3).sum(), weight, create_graph=True)
    assert gradient.requires_grad
    assert not finite.gradient_norm([gradient]).requires_grad
    assert not finite.flag_norm([gradient]).requires_grad


def test_no_gradients_at_all() -> None:
    assert float(finite.gradient_norm([])) == 0.0
    finite.clip_with_norm([], max_norm=1.0, total=torch.tensor(0.0))


def test_sparse_gradients_are_clipped_too() -> None:
    dense, sparse = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(4, 2))
    dense.grad = torch.tensor([3.0, 0.0, 0.0])
    sparse.grad = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), [[1.0, 0.0], [3.0, 0.0]], (4, 2))  # one row twice: 4
    norm = finite.gradient_norm([dense.grad, sparse.grad])
    assert float(norm) == 5.0
    finite.clip_with_norm([dense, sparse], max_norm=1.0, total=norm, known=5.0)
    assert float(finite.gradient_norm([dense.grad, sparse.grad])) == pytest.approx(1.0, rel=1e-5)


def reference(tensors: list[Tensor]) -> float:
    """The norm in exact rational arithmetic, rounded once."""
    square = sum((Fraction(value) ** 2 for t in tensors for value in t.double().flatten().tolist()), Fraction(0))
    if square == 0:
        return 0.0
    shift = max(0, square.numerator.bit_length() - square.denominator.bit_length()) // 2 * 2
    shift = shift if shift else -((square.denominator.bit_length() - square.numerator.bit_length()) // 2 * 2)
    scaled = square / Fraction(2) ** shift
    return math.ldexp(math.sqrt(scaled), shift // 2)


@given(
    st.lists(
        st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=6),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_exact_norm_against_rational_arithmetic(values: list[list[float]], dtype: torch.dtype) -> None:
    tensors = [torch.tensor(row, dtype=dtype) for row in values]
    assert finite.exact_norm(tensors) == pytest.approx(reference(tensors), rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1.0, 1e160, 1e300])
def test_exact_norm_of_extreme_doubles(scale: float) -> None:
    tensors = [torch.tensor([3.0, 0.0], dtype=torch.float64) * scale, torch.tensor([4.0], dtype=torch.float64) * scale]
    assert finite.exact_norm(tensors) == pytest.approx(5.0 * scale, rel=1e-12)


def test_exact_norm_settles_the_doubt() -> None:
    huge = [torch.full((4,), 3e38)]
    assert math.isinf(float(finite.gradient_norm(huge)))
    assert finite.exact_norm(huge) == pytest.approx(6e38, rel=1e-6)
    half = [torch.full((1000,), 60000.0, dtype=torch.float16)]
    assert finite.exact_norm(half) == pytest.approx(60000.0 * math.sqrt(1000), rel=1e-6)
    assert finite.exact_norm([]) == 0.0
    assert finite.exact_norm([torch.zeros(3)]) == 0.0
    assert math.isnan(finite.exact_norm([torch.tensor([1.0, math.inf])]))
    assert math.isnan(finite.exact_norm([torch.tensor([1.0, math.nan])]))
