"""Masked reductions and attention: what is masked reaches nothing, what is not masked is not hidden."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from nantrap import ops

PROPERTY = settings(deadline=None, derandomize=True, max_examples=40)
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
POISONS = (math.nan, math.inf, -math.inf)

values = st.floats(-200, 200)
drawn_rows = st.lists(st.tuples(values, values, st.booleans()), min_size=1, max_size=8)


@every_dtype
@PROPERTY
@given(drawn=drawn_rows, poison=st.sampled_from(POISONS))
def test_masked_mean_and_mse(drawn: list[tuple[float, float, bool]], poison: float, dtype: torch.dtype, ulps) -> None:
    x, y = (torch.tensor([d[i] for d in drawn], dtype=torch.float64).to(dtype) for i in (0, 1))
    mask = torch.tensor([d[2] for d in drawn])
    count = max(int(mask.sum()), 1)
    kept_x, kept_y = x[mask].double(), y[mask].double()
    dirty_x = torch.where(mask, x, poison).requires_grad_()
    dirty_y = torch.where(mask, y, poison).requires_grad_()

    mean = ops.masked_mean(dirty_x, mask)
    assert mean.dtype == dtype
    assert ulps(mean, kept_x.sum() / count, scale=float(kept_x.abs().sum() / count)) <= 4
    (slope,) = torch.autograd.grad(mean, dirty_x)
    assert ulps(slope, mask.double() / count) <= 1

    mse = ops.masked_mse(dirty_x, dirty_y, mask)
    assert mse.dtype == (dtype if dtype.itemsize > 2 else torch.float32)
    difference = kept_x - kept_y
    largest = float(kept_x.abs().max() + kept_y.abs().max()) if mask.any() else 0.0
    assert ulps(mse, difference.square().sum() / count, scale=largest**2) <= 4
    to_x, to_y = torch.autograd.grad(mse, [dirty_x, dirty_y])
    reference = torch.zeros(len(drawn), dtype=torch.float64)
    reference[mask] = 2 * difference / count
    assert ulps(to_x, reference, scale=largest) <= 4
    assert torch.equal(to_x, -to_y)


def test_masked_mean_reduces_and_broadcasts_as_torch_does() -> None:
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    mask = torch.rand(2, 1, 4, 5) > 0.4
    whole = mask.expand_as(x)
    for dim in (None, 0, -1, (1, 2), (0, -1)):
        for keepdim in (False, True):
            dims = tuple(range(4)) if dim is None else dim
            total = torch.where(whole, x, 0.0).sum(dims, keepdim=keepdim)
            count = whole.sum(dims, keepdim=keepdim).clamp(min=1)
            torch.testing.assert_close(ops.masked_mean(x, mask, dim, keepdim=keepdim), total / count)
            squares = torch.where(whole, x.square(), 0.0).sum(dims, keepdim=keepdim)
            ours = ops.masked_mse(x, torch.zeros(()).double(), mask, dim, keepdim=keepdim)
            torch.testing.assert_close(ours, squares / count)


def test_masked_mean_of_a_scalar() -> None:
    x = torch.tensor(3.0)
    assert ops.masked_mean(x, torch.tensor(True)).item() == 3.0
    assert ops.masked_mean(x, torch.tensor(False)).item() == 0.0
    assert ops.masked_mse(x, x + 2, torch.tensor(True)).item() == 4.0


def test_a_mean_of_float16_does_not_overflow_in_its_sum() -> None:
    x = torch.full((4096,), 60_000.0, dtype=torch.float16)
    assert ops.masked_mean(x, torch.ones(4096, dtype=torch.bool)).item() == 60_000.0
    with torch.autocast("cpu", dtype=torch.float16):
        assert ops.masked_mse(x, -x, torch.ones(4096, dtype=torch.bool)).item() == pytest.approx(120_000.0**2)


def attention_reference(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Row by row over the kept keys, in float64."""
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=torch.float64)
    for index in torch.cartesian_prod(*[torch.arange(n) for n in q.shape[:-1]]).tolist():
        kept = mask[tuple(index)]
        if kept.any():
            keys, vals = k[tuple(index[:-1])][kept].double(), v[tuple(index[:-1])][kept].double()
            out[tuple(index)] = (keys @ q[tuple(index)].double() / q.shape[-1] ** 0.5).softmax(-1) @ vals
    return out


@every_dtype
@settings(PROPERTY, max_examples=15)
@given(seed=st.integers(0, 10_000), density=st.sampled_from([0.0, 0.2, 0.6, 1.0]), poison=st.sampled_from(POISONS))
def test_masked_attention(seed: int, density: float, poison: float, dtype: torch.dtype, ulps) -> None:
    torch.manual_seed(seed)
    q, k, v = (torch.randn(2, 2, n, 8, dtype=torch.float64).to(dtype) for n in (3, 5, 5))
    mask = torch.rand(2, 2, 3, 5) < density
    seen, alive = mask.any(-2)[..., None], mask.any(-1)[..., None]
    q = torch.where(alive, q, poison).requires_grad_()
    k, v = (torch.where(seen, t, poison).requires_grad_() for t in (k, v))
    ours = ops.masked_attention(q, k, v, mask)
    assert ours.dtype == dtype
    reference = attention_reference(q.detach(), k.detach(), v.detach(), mask)
    assert ulps(ours, reference, scale=1.0) <= 16
    assert torch.equal(ours == 0, (~alive).expand_as(ours))
    slopes = torch.autograd.grad(ours.double().square().sum(), [q, k, v])
    for slope, live in zip(slopes, (alive, seen, seen), strict=True):
        assert slope.isfinite().all()
        assert (torch.where(live, 0.0, slope) == 0).all()


def test_masked_attention_has_the_gradient_of_the_math_kernel() -> None:
    q, k, v = (torch.randn(2, 4, 6, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = torch.rand(2, 4, 4) > 0.3
    mask[0, 1] = False
    ours = torch.autograd.grad(ops.masked_attention(q, k, v, mask).square().sum(), [q, k, v])
    theirs = torch.autograd.grad((ops.masked_softmax(q @ k.mT / 6**0.5, mask) @ v).square().sum(), [q, k, v])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_masked_attention_does_not_hide_a_nan_in_use() -> None:
    x = torch.randn(1, 3, 4)
    x[0, 1, 0] = math.nan
    mask = torch.tensor([[True, False, True], [True, True, True], [True, False, True]])
    assert ops.masked_attention(x, x, x, mask)[0, 1].isnan().all()


def test_masked_attention_without_a_mask_is_torchs() -> None:
    q, k, v = (torch.randn(2, 3, 4) for _ in range(3))
    assert torch.equal(ops.masked_attention(q, k, v), F.scaled_dot_product_attention(q, k, v))
    with pytest.raises(ValueError, match=r"needs \[..., queries, keys\]"):
        ops.masked_attention(q, k, v, torch.ones(3, dtype=torch.bool))


def test_masked_attention_module_keeps_padding_out_of_its_gradients() -> None:
    module = ops.MaskedAttention(8, heads=2)
    x = torch.randn(2, 3, 8)
    x[0, 2], x[1] = math.nan, math.inf
    padding = torch.tensor([[1, 1, 0], [0, 0, 0]])
    out = module(x, padding)
    assert out.isfinite().all()
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())
    torch.testing.assert_close(out[:1, :2], module(x[:1, :2]))


def test_masked_attention_module_takes_a_mask_of_pairs() -> None:
    module = ops.MaskedAttention(8, heads=2, dropout=0.1).eval()
    x = torch.randn(2, 3, 8)
    causal = torch.ones(3, 3, dtype=torch.bool).tril().expand(2, 3, 3)
    torch.testing.assert_close(module(x, causal)[:, :2], module(x[:, :2], causal[:, :2, :2]))
    with pytest.raises(ValueError, match="is not a multiple of heads"):
        ops.MaskedAttention(8, heads=3)


def test_masked_attention_has_a_second_derivative_with_the_math_kernel() -> None:
    q, k, v = (torch.randn(1, 3, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = torch.tensor([[True, True, False], [False, False, False], [True, False, True]])
    with sdpa_kernel(SDPBackend.MATH):
        assert torch.autograd.gradgradcheck(lambda q, k, v: ops.masked_attention(q, k, v, mask), (q, k, v))
