"""Exceptions that a non-finite value caused: contained like any bad step; all others pass through untouched."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import nantrap
from nantrap import NonFiniteError, Policy


class Actor(nn.Module):
    """A policy whose distribution refuses NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Categorical:
        return Categorical(logits=self.head(self.norm(self.body(x)).exp().log()), validate_args=True)


def made(**policy: object) -> tuple[Actor, nantrap.Guard, Callable[[Tensor], Tensor]]:
    torch.manual_seed(0)
    actor = Actor()
    optimizer = torch.optim.Adam(actor.parameters())
    guard = nantrap.Guard(actor, optimizer, policy=Policy(**policy), quiet=True)  # type: ignore[arg-type]
    return actor, guard, lambda x: actor(x).entropy().mean()


def bad_batch() -> Tensor:
    x = torch.randn(8, 4)
    x[3, 1] = math.nan
    return x


def test_attempt_contains_it_and_names_the_sample() -> None:
    actor, guard, loss = made()
    assert guard.attempt(loss, torch.randn(8, 4)).applied
    before = {name: tensor.clone() for name, tensor in actor.state_dict().items()}
    outcome = guard.attempt(loss, bad_batch())
    assert not outcome.applied
    assert math.isnan(outcome.loss)
    incident = outcome.incident
    assert incident is not None
    assert (incident.phase, incident.samples) == ("data", (3,))
    assert incident.causes[0].slug == "bad_input_data"
    assert incident.notes[0].startswith("the step ended with ValueError: Expected parameter logits")
    assert all(torch.equal(before[name], tensor) for name, tensor in actor.state_dict().items())
    assert guard.attempt(loss, torch.randn(8, 4)).applied, "and the run goes on"


def test_an_operation_of_the_forward_pass_is_named() -> None:
    actor, guard, _ = made()

    def loss(x: Tensor) -> Tensor:
        hidden = actor.body(x)
        return Categorical(logits=hidden / (hidden - hidden), validate_args=True).entropy().mean()

    incident = guard.attempt(loss, torch.randn(8, 4)).incident
    assert incident is not None
    assert (incident.phase, incident.op) == ("forward", "aten.div")
    assert incident.causes[0].slug == "division_by_zero"


@pytest.mark.parametrize(
    ("mistake", "error"),
    [
        (lambda x: torch.cat([x, torch.ones(2, 4, device="meta")]).mean(), RuntimeError),
        (lambda x: x.sum() + object(), TypeError),
        (lambda x: x.mean().square(exponent=3), TypeError),
    ],
)
def test_a_mistake_that_no_value_leads_to_is_raised_although_the_batch_holds_nan(
    mistake: Callable[[Tensor], Tensor], error: type[Exception]
) -> None:
    """Tensors of two devices, a wrong argument: it would fail with any batch, so nothing is contained."""
    _, guard, _ = made()
    with pytest.raises(error):
        guard.attempt(mistake, bad_batch())
    assert guard.last_incident is None


def test_an_exception_of_the_users_own_passes_through() -> None:
    actor, guard, _ = made()

    def loss(x: Tensor) -> Tensor:
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        guard.attempt(loss, torch.randn(8, 4))
    assert guard.tally.incidents == 0
    masked = torch.full((3, 3), -math.inf).triu(1)  # on purpose, and not why it fails

    def shapes(x: Tensor) -> Tensor:
        (masked + 0).softmax(-1)
        return (actor.body(x) @ torch.zeros(5, 5)).mean()

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        guard.attempt(shapes, torch.randn(8, 4))
    assert guard.tally.incidents == 0


def test_observe_reports_and_lets_it_go_and_strict_raises_its_own() -> None:
    _, guard, loss = made(on_incident="observe")
    with pytest.raises(ValueError, match="Expected parameter logits"):
        guard.attempt(loss, bad_batch())
    assert guard.tally.incidents == 1
    _, guard, loss = made(on_incident="raise")
    with pytest.raises(NonFiniteError) as stopped:
        guard.attempt(loss, bad_batch())
    assert stopped.value.incident.causes[0].slug == "bad_input_data"


def test_many_in_a_row_are_a_stop() -> None:
    _, guard, loss = made(max_consecutive_skips=2, then="stop")
    for _ in range(2):
        assert not guard.attempt(loss, bad_batch()).applied
    with pytest.raises(NonFiniteError):
        guard.attempt(loss, bad_batch())


def test_a_guard_that_is_left_by_such_an_exception_says_what_was_behind_it(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    actor = Actor()
    optimizer = torch.optim.Adam(actor.parameters())
    with pytest.raises(ValueError), nantrap.Guard(actor, optimizer) as guard:  # noqa: PT012
        for x in (torch.randn(8, 4), bad_batch()):
            guard.backward(actor(x).entropy().mean())
            guard.step()
    err = capsys.readouterr().err
    assert "nantrap: step 1 stopped; " in err
    assert "error[NT101]: the model's input already contains NaN: x" in err
    assert "the run ended with ValueError" in err
    assert guard.last_incident is not None
