"""The line that people write really fails where ours does not: in value, or in gradient under a finite value."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nantrap import ops
from torch_habits import CLAMP_PASSES_AT_ITS_BOUND

NAN, INF = torch.nan, torch.inf
DEAD_ROW = torch.tensor([[True, True], [False, False]])
ADDITIVE = torch.zeros(2, 2).masked_fill(~DEAD_ROW, -INF)
NOTHING = torch.tensor([False, False])
HALF = torch.float16


class Fault(NamedTuple):
    name: str
    naive: Callable[..., Tensor]
    safe: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    in_value: bool = True  # else only the gradient shows it


def scaled_softmax(x: Tensor) -> Tensor:
    return (x / 1e-3).softmax(-1)


def plain_pmi(z: Tensor) -> Tensor:
    p_s, p_t = (z / 0.1).softmax(-1), (-z.detach() / 0.04).softmax(-1)
    return ((p_s * p_t) ** 0.6 / 0.5).sum(-1).log()


def plain_sinkhorn(logits: Tensor) -> Tensor:
    matrix = logits.exp()
    for _ in range(3):
        matrix = matrix / matrix.sum(-1, keepdim=True)
        matrix = matrix / matrix.sum(-2, keepdim=True)
    return matrix


def plain_rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-20)


def plain_attention(x: Tensor) -> Tensor:
    return (x @ x.mT).masked_fill(~DEAD_ROW, -INF).softmax(-1) @ x


def plain_kl(mu: Tensor, logvar: Tensor) -> Tensor:
    return 0.5 * (mu.pow(2) + logvar.exp() - 1 - logvar).mean()


FAULTS = [
    Fault("log of zero", torch.log, ops.safe_log, (torch.tensor([0.0, 1.0]),)),
    Fault("log + 1e-8 in half", lambda x: (x + 1e-8).log(), ops.safe_log, (torch.zeros(2, dtype=HALF),)),
    Fault("sqrt at zero", torch.sqrt, ops.safe_sqrt, (torch.zeros(2),), False),
    Fault("sqrt of -1e-9", torch.sqrt, ops.safe_sqrt, (torch.tensor([-1e-9]),)),
    Fault(
        "where does not repair a gradient",
        lambda x: torch.where(x > 0, x.sqrt(), 0.0),
        ops.safe_sqrt,
        (torch.zeros(2),),
        False,
    ),
    Fault("pow at zero", lambda x: x**0.5, lambda x: ops.safe_pow(x, 0.5), (torch.zeros(2),), False),
    Fault("negative pow", lambda x: x**-1, lambda x: ops.safe_pow(x, -1), (torch.zeros(2),)),
    Fault("acos beyond one", torch.acos, ops.safe_acos, (torch.tensor([1.0000002]),)),
    Fault("acos at one", torch.acos, ops.safe_acos, (torch.tensor([1.0, -1.0]),), False),
    Fault("asin at one", torch.asin, ops.safe_asin, (torch.tensor([1.0, -1.0]),), False),
    Fault("division by zero", lambda b: 1 / b, lambda b: ops.safe_divide(1.0, b), (torch.zeros(2),)),
    Fault(
        "division + 1e-8 in half",
        lambda b: b / (b + 1e-8),
        lambda b: ops.safe_divide(b, b),
        (torch.zeros(2, dtype=HALF),),
    ),
    Fault("x log x", lambda x: x * x.log(), ops.xlogx, (torch.zeros(2),)),
    Fault("xlogy", lambda x: torch.xlogy(x, x), ops.xlogx, (torch.zeros(2),), False),
    Fault("norm at the origin", lambda x: x.square().sum().sqrt(), ops.safe_norm, (torch.zeros(2),), False),
    Fault("norm of large values", torch.linalg.vector_norm, ops.safe_norm, (torch.tensor([3e30, 4e30]),)),
    Fault("std of one", lambda x: (x - x.mean()).square().sum().div(0).sqrt(), ops.safe_std, (torch.ones(1),)),
    Fault("std of a constant", lambda x: x.var(correction=0).sqrt(), ops.safe_std, (torch.ones(3),), False),
    Fault("var of one", lambda x: (x - x.mean()).square().sum() / (x.numel() - 1), ops.safe_var, (torch.ones(1),)),
    Fault(
        "rms norm of zeros in half", plain_rms, lambda x: ops.rms_norm(x, eps=1e-20), (torch.zeros(1, 2, dtype=HALF),)
    ),
    Fault(
        "softmax of a dead row",
        lambda x: x.masked_fill(~DEAD_ROW, -INF).softmax(-1),
        lambda x: ops.masked_softmax(x, DEAD_ROW),
        (torch.ones(2, 2),),
    ),
    Fault(
        "nan_to_num after softmax",
        lambda x: (x + ADDITIVE).softmax(-1).nan_to_num(),
        lambda x: ops.masked_softmax(x + ADDITIVE),
        (torch.ones(2, 2),),
        False,
    ),
    Fault(
        "log softmax of a dead row",
        lambda x: x.masked_fill(~DEAD_ROW, -INF).log_softmax(-1),
        lambda x: ops.masked_log_softmax(x, DEAD_ROW),
        (torch.ones(2, 2),),
    ),
    Fault(
        "attention of a dead row",
        plain_attention,
        lambda x: ops.masked_attention(x, x, x, DEAD_ROW),
        (torch.ones(2, 2),),
    ),
    Fault(
        "mean of nothing",
        lambda x: (x * NOTHING).sum() / NOTHING.sum(),
        lambda x: ops.masked_mean(x, NOTHING),
        (torch.ones(2),),
    ),
    Fault(
        "mask times nan",
        lambda x: (x * DEAD_ROW[:, 0]).sum(),
        lambda x: ops.masked_mean(x, DEAD_ROW[:, 0]),
        (torch.tensor([1.0, NAN]),),
    ),
    Fault(
        "mse of nothing",
        lambda x: ((x - 1).square() * NOTHING).sum() / NOTHING.sum(),
        lambda x: ops.masked_mse(x, torch.ones(2), NOTHING),
        (torch.ones(2),),
    ),
    Fault(
        "mse in half",
        lambda x: (x.square() * DEAD_ROW[0]).sum() / 2,
        lambda x: ops.masked_mse(x, torch.zeros(2), DEAD_ROW[0]),
        (torch.full((2,), 300.0, dtype=HALF),),
    ),
    Fault(
        "all labels ignored",
        lambda z: F.cross_entropy(z, torch.tensor([-100, -100])),
        lambda z: ops.cross_entropy(z, torch.tensor([-100, -100])),
        (torch.ones(2, 3),),
    ),
    Fault(
        "an ignored row of nan",
        lambda z: F.cross_entropy(z, torch.tensor([0, -100])),
        lambda z: ops.cross_entropy(z, torch.tensor([0, -100])),
        (torch.tensor([[1.0, 2.0], [NAN, NAN]]),),
        False,
    ),
    Fault(
        "ctc without room",
        lambda z: F.ctc_loss(z.log_softmax(-1), torch.tensor([[1, 1]]), torch.tensor([2]), torch.tensor([2])),
        lambda z: ops.ctc_loss(z.log_softmax(-1), torch.tensor([[1, 1]]), (2,), (2,)),
        (torch.ones(2, 1, 3),),
    ),
    Fault("kl of a large log-variance", plain_kl, ops.kl_divergence, (torch.zeros(2), torch.tensor([0.0, 89.0]))),
    Fault("kl in half", plain_kl, ops.kl_divergence, (torch.zeros(2, dtype=HALF), torch.full((2,), 12.0, dtype=HALF))),
    Fault(
        "pmi of a pair that disagrees",
        plain_pmi,
        lambda z: ops.beta_pmi(z, -z.detach(), torch.tensor([0.5, 0.5])),
        (torch.tensor([[5.0, 0.0]]),),
        False,
    ),
    Fault(
        "softmax at a low temperature",
        scaled_softmax,
        lambda x: ops.temperature_softmax(x, 1e-3),
        (torch.tensor([[1e36, 2e36]]),),
    ),
    Fault(
        "softmax at temperature zero",
        lambda x: (x / 0.0).softmax(-1),
        lambda x: ops.temperature_softmax(x, 0.0),
        (torch.tensor([[1.0, 2.0]]),),
    ),
    Fault(
        "log softmax at temperature zero",
        lambda x: (x / 0.0).log_softmax(-1),
        lambda x: ops.temperature_log_softmax(x, 0.0),
        (torch.tensor([[1.0, 2.0]]),),
    ),
    Fault(
        "weights that sum to zero", lambda w: w / w.sum(-1, keepdim=True), ops.normalize_weights, (torch.zeros(1, 3),)
    ),
    Fault("sinkhorn of large logits", plain_sinkhorn, ops.sinkhorn, (torch.tensor([[89.0, 0.0], [0.0, 0.0]]),)),
    Fault("sinkhorn of a row far below", plain_sinkhorn, ops.sinkhorn, (torch.tensor([[-200.0, -200.0], [0.0, 0.0]]),)),
    Fault(
        "modulation that grew",
        lambda x: x * (1 + x.detach() * 1e4),
        lambda x: ops.modulate(x, 0 * x, x.detach() * 1e4, limit=30.0),
        (torch.full((2,), 6.0, dtype=HALF),),
    ),
    Fault(
        "1/sqrt at the end of a linear schedule",
        lambda t: (1 - t).rsqrt(),
        lambda t: ops.linear_schedule(t).rsqrt(),
        (torch.ones(1),),
    ),
    Fault(
        "log-snr at the start of a cosine schedule",
        lambda t: ((t * 1.5).cos() ** 2 / (1 - (t * 1.5).cos() ** 2)).log(),
        lambda t: (ops.cosine_schedule(t) / (1 - ops.cosine_schedule(t))).log(),
        (torch.zeros(1),),
    ),
    Fault(
        "noise level at the start",
        lambda a: (1 - a).sqrt(),
        lambda a: ops.signal_and_noise(a)[1],
        (torch.ones(1),),
        False,
    ),
    Fault(
        "snr weight without noise",
        lambda a: (a / (1 - a)).clamp(max=5) / (a / (1 - a)),
        ops.min_snr_weight,
        (torch.tensor([0.0, 1.0]),),
    ),
    Fault(
        "noise weight at t = 0",
        lambda t: t.sqrt().exp(),
        lambda t: ops.decoupled_weights(t)[1],
        (torch.zeros(2),),
        False,
    ),
]


def value_and_gradients(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> tuple[Tensor, list[Tensor]]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = function(*leaves)
    return out.detach(), list(torch.autograd.grad(out.float().sum(), leaves))


if CLAMP_PASSES_AT_ITS_BOUND:
    FAULTS.append(
        Fault(
            "acos clamped in half",
            lambda x: x.clamp(-1 + 1e-7, 1 - 1e-7).acos(),
            ops.safe_acos,
            (torch.ones(1, dtype=HALF),),
            False,
        )
    )


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_naive_line_fails_and_ours_does_not(fault: Fault) -> None:
    value, gradients = value_and_gradients(fault.naive, fault.inputs)
    if fault.in_value:
        assert not value.isfinite().all()
    else:
        assert value.isfinite().all()
        assert not all(g.isfinite().all() for g in gradients)

    value, gradients = value_and_gradients(fault.safe, fault.inputs)
    assert value.isfinite().all(), value
    assert all(g.isfinite().all() for g in gradients), gradients


def test_the_naive_codec_wraps_without_a_word() -> None:
    ids = torch.tensor([-1, 256**3 + 5])
    assert (ids % 256).tolist() == [255, 5]
    with pytest.raises(ValueError, match=r"but -1 is at \(0,\); 2 are wrong in total"):
        ops.tokens_to_colour(ids)


def test_rms_norm_of_large_values_is_not_silently_zero() -> None:
    x = torch.full((1, 4), 1e20)
    assert (F.rms_norm(x, (4,), eps=1e-6) == 0).all()
    assert torch.equal(ops.rms_norm(x), torch.ones(1, 4))
