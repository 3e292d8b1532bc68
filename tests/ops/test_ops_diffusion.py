"""Schedules, loss weights, AdaLN-zero and the colour codec."""

from __future__ import annotations

import math
from typing import Any, cast

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nantrap import ops

PROPERTY = settings(deadline=None, derandomize=True, max_examples=40)
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
times = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1.0, -0.5, 1.5, 1e-30, math.inf, -math.inf]))


@every_dtype
@PROPERTY
@given(t=times)
def test_schedules(t: float, dtype: torch.dtype, ulps) -> None:
    x = torch.tensor([t], dtype=torch.float64).to(dtype).requires_grad_()
    inside = min(max(x.item(), 0.0), 1.0)
    with mpmath.workdps(40):
        angle = mpmath.pi / 2 * (mpmath.mpf(inside) + mpmath.mpf(0.008)) / (1 + mpmath.mpf(0.008))
        start = mpmath.pi / 2 * mpmath.mpf(0.008) / (1 + mpmath.mpf(0.008))
        cosine = float(mpmath.cos(angle) ** 2 / mpmath.cos(start) ** 2)
    for schedule, exact in ((ops.linear_schedule, 1 - inside), (ops.cosine_schedule, cosine)):
        alpha_bar = schedule(x)
        assert alpha_bar.dtype == (torch.float32 if dtype.itemsize == 2 else dtype)
        bounded = torch.tensor([min(max(exact, 1e-6), 1 - 1e-6)], dtype=torch.float64)
        assert ulps(alpha_bar, bounded, scale=0.125 if inside < 0.9 else 0.0) <= 8
        assert alpha_bar.rsqrt().item() <= 1000.001
        assert (1 - alpha_bar).rsqrt().isfinite().all()
        assert torch.autograd.grad(alpha_bar.rsqrt().sum() + alpha_bar.logit().sum(), x)[0].isfinite().all()


@pytest.mark.parametrize("schedule", [ops.linear_schedule, ops.cosine_schedule])
def test_schedules_fall_from_one_end_to_the_other(schedule) -> None:
    alpha_bar = schedule(torch.linspace(0, 1, 1001))
    assert (alpha_bar.diff() <= 0).all()
    assert alpha_bar[0].item() == pytest.approx(1 - 1e-6, abs=1e-7)
    assert alpha_bar[-1].item() == pytest.approx(1e-6)
    signal, noise = ops.signal_and_noise(alpha_bar)
    torch.testing.assert_close(signal**2 + noise**2, torch.ones(1001))
    assert schedule(torch.zeros(1), floor=1e-12).item() < 1
    for floor in (0.0, 0.5):
        with pytest.raises(ValueError, match="must lie between 0 and"):
            schedule(torch.zeros(1), floor=floor)


def test_the_textbook_cosine_has_lost_its_digits_at_the_end() -> None:
    t = torch.tensor([1 - 2e-4])
    exact = float(
        mpmath.cos(mpmath.pi / 2 * (mpmath.mpf(t.item()) + 0.008) / 1.008) ** 2
        / mpmath.cos(mpmath.pi / 2 * 0.008 / 1.008) ** 2
    )
    naive = (torch.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2).item() / math.cos(math.pi / 2 * 0.008 / 1.008) ** 2
    ours = ops.cosine_schedule(t, floor=1e-12).item()
    assert abs(ours / exact - 1) < 1e-6 < 1e-4 < abs(naive / exact - 1)


@every_dtype
@PROPERTY
@given(a=st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1.0])))
def test_min_snr_weight(a: float, dtype: torch.dtype, ulps) -> None:
    x = torch.tensor([a], dtype=torch.float64).to(dtype).requires_grad_()
    with mpmath.workdps(40):
        alpha = mpmath.mpf(x.item())
        snr = alpha / (1 - alpha) if alpha < 1 else mpmath.mpf(10) ** 400
        capped = min(snr, mpmath.mpf(5))
        exact = {
            "epsilon": capped / snr if snr > 0 else mpmath.mpf(1),
            "sample": capped,
            "velocity": capped * (1 - alpha) if alpha < 1 else mpmath.mpf(0),
        }
    for prediction, reference in exact.items():
        ours = ops.min_snr_weight(x, prediction=cast(Any, prediction))
        assert ulps(ours, torch.tensor([float(reference)], dtype=torch.float64)) <= 4
        assert torch.autograd.grad(ours.sum(), x)[0].isfinite().all()


def test_min_snr_weight_of_an_unknown_prediction() -> None:
    with pytest.raises(ValueError, match="'epsilon', 'sample' or 'velocity'"):
        ops.min_snr_weight(torch.zeros(1), prediction=cast(Any, "noise"))


@every_dtype
@PROPERTY
@given(t=times)
def test_decoupled_weights(t: float, dtype: torch.dtype, ulps) -> None:
    x = torch.tensor([t], dtype=torch.float64).to(dtype).requires_grad_()
    inside = min(max(x.item(), 0.0), 1.0)
    data, noise = ops.decoupled_weights(x)
    with mpmath.workdps(40):
        exact = [float(2 * mpmath.exp(1 - mpmath.mpf(inside))), float(mpmath.exp(mpmath.sqrt(inside)))]
    assert ulps(data, torch.tensor(exact[:1], dtype=torch.float64)) <= 4
    assert ulps(noise, torch.tensor(exact[1:], dtype=torch.float64)) <= 4
    assert torch.autograd.grad((data + noise).sum(), x)[0].isfinite().all()


@every_dtype
@PROPERTY
@given(scale=st.one_of(st.floats(-5, 5), st.sampled_from([1e4, -1e4, 6e4])), limited=st.booleans())
def test_modulate(scale: float, limited: bool, dtype: torch.dtype, ulps) -> None:
    limit = 30.0 if limited or abs(scale) > 5 else None
    x = torch.linspace(-8, 8, 5).to(dtype).requires_grad_()
    s = torch.full((5,), scale).to(dtype).requires_grad_()
    shift = torch.linspace(1, 2, 5).to(dtype).requires_grad_()
    gain = s.detach().double()
    gain = gain if limit is None else limit * torch.tanh(gain / limit)
    ours = ops.modulate(x, shift, s, limit=limit)
    assert (
        ulps(ours, x.detach().double() * (1 + gain) + shift.detach().double(), scale=8.0 * (1 + abs(float(gain[0]))))
        <= 4
    )
    for slope in torch.autograd.grad(ours.double().sum(), [x, shift, s]):
        assert slope.isfinite().all()


def test_adaln_zero_begins_as_the_identity_and_learns() -> None:
    adaln = ops.AdaLNZero(8, condition_dim=4)
    x, condition = torch.randn(2, 5, 8), torch.randn(2, 4)
    h, gate = adaln(x, condition)
    assert gate.shape == (2, 1, 8)
    assert torch.equal(x + gate * h, x)
    torch.testing.assert_close(h, ops.rms_norm(x))
    (gate * h).sum().backward()
    assert adaln.linear.weight.grad is not None
    assert (adaln.linear.weight.grad != 0).any()
    torch.nn.init.normal_(adaln.linear.weight)
    adaln.reset_parameters()
    assert (adaln.linear.weight == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_adaln_zero_with_a_scale_that_grew_stays_finite_under_autocast(dtype: torch.dtype) -> None:
    adaln = ops.AdaLNZero(8, condition_dim=4)
    torch.nn.init.constant_(adaln.linear.weight, 3e4)
    with torch.autocast("cpu", dtype=dtype):
        h, _ = adaln(torch.randn(2, 5, 8).to(dtype) * 100, torch.full((2, 4), 0.1))
    assert h.dtype == dtype
    assert h.isfinite().all()


@PROPERTY
@given(ids=st.lists(st.integers(0, 256**3 - 1), max_size=8))
def test_codec_round_trip(ids: list[int]) -> None:
    tokens = torch.tensor(ids, dtype=torch.int64)
    colour = ops.tokens_to_colour(tokens)
    assert colour.shape == (len(ids), 3)
    assert colour.dtype == torch.float32
    assert (colour.abs() <= 1).all()
    for dtype in DTYPES:  # eight bits survive even bfloat16
        assert torch.equal(ops.colour_to_tokens(colour.to(dtype)), tokens)


def test_codec_says_what_is_wrong_and_where() -> None:
    ids = torch.tensor([[5, 151_643], [-1, 7]])
    with pytest.raises(ValueError, match=r"\[0, 151643\), but 151643 is at \(0, 1\); 2 are wrong in total"):
        ops.tokens_to_colour(ids, vocabulary=151_643)
    with pytest.raises(ValueError, match="ids must be integers"):
        ops.tokens_to_colour(torch.rand(3))
    with pytest.raises(ValueError, match="three bytes hold"):
        ops.tokens_to_colour(ids, vocabulary=2**25)
    colour = torch.zeros(2, 3)
    colour[1, 2] = math.nan
    with pytest.raises(ValueError, match=r"must not be NaN, but nan is at \(1, 2\)"):
        ops.colour_to_tokens(colour)
    with pytest.raises(ValueError, match=r"decode to ids in \[0, 1000\)"):
        ops.colour_to_tokens(torch.ones(1, 3), vocabulary=1000)
    with pytest.raises(ValueError, match=r"floating point \[..., 3\]"):
        ops.colour_to_tokens(torch.zeros(2, 4))


def test_codec_without_its_check_reads_nothing_and_stays_in_range(host_reads) -> None:
    with host_reads() as reads:
        ops.tokens_to_colour(torch.tensor([1, 2]), check=False)
        colour = torch.tensor([[math.nan, 0.0, 9.0], [math.inf, math.inf, math.inf]])
        tokens = ops.colour_to_tokens(colour, vocabulary=1000, check=False)
    assert reads.count == 0
    assert ((tokens >= 0) & (tokens < 1000)).all()
    with host_reads() as reads:
        ops.tokens_to_colour(torch.tensor([1, 2]))
    assert reads.count == 1
