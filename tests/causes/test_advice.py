"""The help names the call in the code, not another one of its family."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap.incident import Cause


def cause_of(loss: Callable[[Tensor], Tensor], *, zero: bool = True) -> Cause:
    """Train a linear layer whose results are exactly 0 for one sample."""
    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    nn.init.zeros_(model.bias)
    batch = torch.randn(5, 3)
    if zero:
        batch[2] = 0.0
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), quiet=True) as guard:
        incident = guard.attempt(lambda b: loss(model(b)), batch).incident
    assert incident is not None
    return incident.causes[0]


@pytest.mark.parametrize(
    ("loss", "help_text"),
    [
        (
            lambda y: y.abs().sqrt().mean(),
            "not tried: an eps inside: sqrt(x + 1e-12) (an eps outside, sqrt(x) + eps, changes nothing)",
        ),
        (
            lambda y: (y.abs() ** 0.6).mean(),
            "not tried: an eps inside: (x + 1e-12) ** a (an eps outside, x ** a + eps, changes nothing)",
        ),
        (
            lambda y: y.abs().log().mean(),
            "nantrap.ops.safe_log(x): verified",
        ),
        (
            lambda y: (y * 1e4).softmax(-1).log().mean(),
            "log_softmax(x) instead of log(softmax(x)) in line ",
        ),
        (
            lambda y: (y * 1e4).sigmoid().log().mean(),
            "logsigmoid(x) instead of log(sigmoid(x)) in line ",
        ),
    ],
)
def test_the_help_names_the_call(loss: Callable[[Tensor], Tensor], help_text: str) -> None:
    fix = cause_of(loss).fix
    assert fix is not None
    assert help_text in fix.words


def test_a_logarithm_of_a_negative_number_is_not_called_one_of_zero() -> None:
    cause = cause_of(lambda y: (y - 10).log().mean(), zero=False)
    assert cause.slug == "domain_error"
    assert cause.summary == "log was given -9.838, for which it is not defined, in the loss"
    assert cause.evidence[0].text.startswith(
        "aten.log was given values outside its domain at 20 of 20 places, from -10"
    )
