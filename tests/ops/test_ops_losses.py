"""Cross-entropy, CTC, KL and beta-PMI: equal to the reference where there is one, else the convention."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from nantrap import ops

PROPERTY = settings(deadline=None, derandomize=True, max_examples=40)
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))


@every_dtype
@PROPERTY
@given(
    labels=st.lists(st.sampled_from([-100, 0, 1, 2]), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
    weighted=st.booleans(),
    smoothing=st.sampled_from([0.0, 0.1]),
    poison=st.sampled_from([math.nan, math.inf, 0.0]),
)
def test_cross_entropy(
    labels: list[int], seed: int, weighted: bool, smoothing: float, poison: float, dtype: torch.dtype
) -> None:
    torch.manual_seed(seed)
    target = torch.tensor(labels)
    counts = target != -100
    weight = torch.tensor([0.5, 2.0, 1.0]) if weighted else None
    clean = (torch.randn(len(labels), 3) * 10).to(dtype)
    logits = torch.where(counts[:, None], clean, poison).requires_grad_()
    loss = ops.cross_entropy(logits, target, weight=weight, label_smoothing=smoothing)
    assert loss.dtype == (torch.float32 if dtype.itemsize == 2 else dtype)
    (slope,) = torch.autograd.grad(loss, logits)
    assert (slope[~counts] == 0).all()
    if not counts.any():
        assert loss.item() == 0.0
        return
    reference = clean.double().requires_grad_()
    double_weight = None if weight is None else weight.double()
    exact = F.cross_entropy(reference, target, weight=double_weight, label_smoothing=smoothing)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=1e-5)
    (exact_slope,) = torch.autograd.grad(exact, reference)
    torch.testing.assert_close(slope.double(), exact_slope, rtol=0, atol=max(torch.finfo(dtype).eps, 1e-6))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_of_every_shape_is_torchs(reduction: Any) -> None:
    for shape, target in (
        ((4,), torch.tensor(2)),
        ((3, 4), torch.tensor([0, 3, 1])),
        ((2, 4, 5), torch.randint(0, 4, (2, 5))),
    ):
        logits = torch.randn(shape)
        ours = ops.cross_entropy(logits, target, reduction=reduction)
        torch.testing.assert_close(ours, F.cross_entropy(logits, target, reduction=reduction))


def test_cross_entropy_with_weights_of_zero_and_with_probabilities() -> None:
    logits = torch.randn(2, 3, requires_grad=True)
    loss = ops.cross_entropy(logits, torch.tensor([0, 0]), weight=torch.tensor([0.0, 1.0, 1.0]))
    assert loss.item() == 0.0
    assert torch.autograd.grad(loss, logits)[0].isfinite().all()
    with pytest.raises(ValueError, match="must hold class indices"):
        ops.cross_entropy(logits, torch.rand(2, 3))


def test_ctc_feasible_counts_repeats_within_the_target_only() -> None:
    targets = torch.tensor([[1, 1, 2], [1, 2, 3], [1, 1, 1], [5, 0, 0], [0, 0, 0]])
    feasible = ops.ctc_feasible(targets, [4, 3, 4, 1, 0], torch.tensor([3, 3, 3, 1, 0]))
    assert feasible.tolist() == [True, True, False, True, True]
    with pytest.raises(ValueError, match="must be padded"):
        ops.ctc_feasible(torch.tensor([1, 2]), [2], [2])


@every_dtype
@PROPERTY
@given(seed=st.integers(0, 1000))
def test_ctc_loss(seed: int, dtype: torch.dtype) -> None:
    torch.manual_seed(seed)
    batch = 4
    targets = torch.randint(1, 4, (batch, 3))
    inputs, lengths = torch.randint(1, 7, (batch,)), torch.randint(1, 4, (batch,))
    fits = ops.ctc_feasible(targets, inputs, lengths)
    clean = torch.randn(6, batch, 4).log_softmax(-1).to(dtype)
    log_probs = torch.where(fits[:, None], clean, math.nan).requires_grad_()
    exact_input = clean.double().requires_grad_()
    exact = F.ctc_loss(exact_input, targets, inputs, lengths, reduction="none")
    assert torch.equal(exact.isfinite(), fits)

    losses = ops.ctc_loss(log_probs, targets, inputs, lengths, reduction="none")
    assert losses.dtype == (torch.float32 if dtype.itemsize == 2 else dtype)
    torch.testing.assert_close(losses.double(), torch.where(fits, exact, 0.0).detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ops.ctc_loss(log_probs, targets, inputs, lengths, reduction="sum"), losses.sum())

    mean = ops.ctc_loss(log_probs, targets, inputs, lengths)
    (slope,) = torch.autograd.grad(mean, log_probs)
    assert (slope[:, ~fits] == 0).all()
    if fits.any():
        reference = (exact / lengths)[fits].mean()
        torch.testing.assert_close(mean.double(), reference, rtol=1e-5, atol=1e-5)
        (exact_slope,) = torch.autograd.grad(reference, exact_input)
        tolerance = 4 * max(torch.finfo(dtype).eps, 1e-6)
        torch.testing.assert_close(slope[:, fits].double(), exact_slope[:, fits], rtol=0, atol=tolerance)
    else:
        assert mean.item() == 0.0


def test_ctc_loss_survives_a_log_probability_of_minus_infinity() -> None:
    """torch's gradient is NaN there, with `zero_infinity=True` too, though no target uses the class."""
    log_probs = torch.randn(6, 1, 5).log_softmax(-1)
    log_probs[2, 0, 3] = -math.inf
    log_probs.requires_grad_()
    arguments = (torch.tensor([[1, 2]]), torch.tensor([6]), torch.tensor([2]))
    theirs = F.ctc_loss(log_probs, *arguments, zero_infinity=True)
    assert torch.autograd.grad(theirs, log_probs)[0].isnan().any()
    ours = ops.ctc_loss(log_probs, *arguments)
    torch.testing.assert_close(ours, theirs)
    assert torch.autograd.grad(ours, log_probs)[0].isfinite().all()
    with pytest.raises(ValueError, match="time, batch, classes"):
        ops.ctc_loss(log_probs[:, 0], *arguments)


@every_dtype
@PROPERTY
@given(
    mu=st.floats(-100, 100), logvar=st.one_of(st.floats(-100, 200), st.sampled_from([0.0, 20.0, 1e4, -1e4, 65504.0]))
)
def test_kl_divergence(mu: float, logvar: float, dtype: torch.dtype, ulps) -> None:
    m, v = (torch.tensor([x], dtype=torch.float64).to(dtype).requires_grad_() for x in (mu, logvar))
    ours = ops.kl_divergence(m, v, reduction="none")
    with mpmath.workdps(40):
        mean, log_variance = mpmath.mpf(m.item()), mpmath.mpf(v.item())
        below, above = min(log_variance, 20), max(log_variance - 20, 0)
        variance = mpmath.exp(below) * (1 + above)
        growth = mpmath.expm1(below) - below + mpmath.expm1(20) * above
        exact = (mean**2 + growth) / 2
        slope = mpmath.expm1(below) / 2
    scale = max(float(mean**2), float(variance), abs(float(log_variance)))
    assert ulps(ours, torch.tensor([float(exact)], dtype=torch.float64), scale=scale) <= 4
    to_m, to_v = torch.autograd.grad(ours.sum(), [m, v])
    assert ulps(to_m, m.detach().double()) <= 2
    assert ulps(to_v, torch.tensor([float(slope)], dtype=torch.float64)) <= 4


def test_kl_divergence_at_infinity_and_in_its_reductions() -> None:
    for infinite in (math.inf, -math.inf):
        assert ops.kl_divergence(torch.zeros(1), torch.tensor([infinite])).item() == math.inf
    mu, logvar = torch.randn(3, 4), torch.randn(3, 4)
    whole = ops.kl_divergence(mu, logvar, reduction="none")
    assert (whole >= 0).all()
    torch.testing.assert_close(ops.kl_divergence(mu, logvar), whole.mean())
    torch.testing.assert_close(ops.kl_divergence(mu, logvar, reduction="sum"), whole.sum())


def test_kl_divergence_is_never_negative_near_the_prior() -> None:
    logvar = torch.linspace(-1e-3, 1e-3, 1001)
    naive = 0.5 * (logvar.exp() - 1 - logvar)
    assert (naive < 0).any()
    assert (ops.kl_divergence(torch.zeros(1001), logvar, reduction="none") >= 0).all()


@every_dtype
@PROPERTY
@given(
    student=st.lists(st.one_of(st.floats(-10, 10), st.sampled_from([1e4, -1e4])), min_size=3, max_size=3),
    teacher=st.lists(st.one_of(st.floats(-10, 10), st.sampled_from([1e4, -1e4])), min_size=3, max_size=3),
    beta=st.sampled_from([0.3, 0.6, 1.0]),
    dead=st.booleans(),
)
def test_beta_pmi(
    student: list[float], teacher: list[float], beta: float, dead: bool, dtype: torch.dtype, ulps
) -> None:
    s, t = (torch.tensor(z, dtype=torch.float64).to(dtype).requires_grad_() for z in (student, teacher))
    p_k = torch.tensor([0.0 if dead else 0.25, 0.5, 0.25], dtype=s.dtype if dtype.itemsize > 2 else torch.float32)
    ours = ops.beta_pmi(s, t, p_k, beta=beta)
    assert ours.dtype == p_k.dtype

    def log_softmax(values: list[float], temperature: float) -> list[mpmath.mpf]:
        scaled = [mpmath.mpf(v) / mpmath.mpf(temperature) for v in values]
        total = mpmath.log(sum(mpmath.exp(v - max(scaled)) for v in scaled)) + max(scaled)
        return [v - total for v in scaled]

    with mpmath.workdps(60):
        log_s, log_t = log_softmax(s.tolist(), 0.1), log_softmax(t.tolist(), 0.04)
        tiny = torch.finfo(p_k.dtype).tiny
        terms = [beta * (a + b) - mpmath.log(max(p, tiny)) for a, b, p in zip(log_s, log_t, p_k.tolist(), strict=True)]
        top = max(terms)
        exact = mpmath.log(sum(mpmath.exp(v - top) for v in terms)) + top
        size = float(max(abs(a) + abs(b) for a, b in zip(log_s, log_t, strict=True)))
    assert ulps(ours[None], torch.tensor([float(exact)], dtype=torch.float64), scale=max(size, 100.0)) <= 8
    for slope in torch.autograd.grad(ours, [s, t]):
        assert slope.isfinite().all()


def test_beta_pmi_still_pulls_pairs_together_that_disagree() -> None:
    logits = torch.tensor([[8.0, 0.0]], requires_grad=True)
    pmi = ops.beta_pmi(logits, -logits.detach(), torch.tensor([0.5, 0.5]))
    (slope,) = torch.autograd.grad(pmi.sum(), logits)
    assert slope[0, 0] < 0 < slope[0, 1]
    p_s, p_t = (logits / 0.1).softmax(-1), (-logits.detach() / 0.04).softmax(-1)
    clamped = ((p_s * p_t).clamp(1e-8) ** 0.6 / 0.5).sum(-1).log()
    assert (torch.autograd.grad(clamped.sum(), logits)[0] == 0).all()


def test_beta_pmi_of_logits_at_the_limit() -> None:
    s = torch.tensor([3e38, -3e38], requires_grad=True)
    ours = ops.beta_pmi(s, -s.detach(), torch.tensor([0.5, 0.5]))
    assert ours.isfinite()
    assert torch.autograd.grad(ours, s)[0].isfinite().all()
