"""A loss that was divided or multiplied after the program had computed it: by what, and how it is done again."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from nantrap.locate.replay.root_call import Factor
from nantrap.locate.twoline.same_loss import applied_after, factors_of


def loss_of(weight: Tensor, data: float = 1.5) -> Tensor:
    return (weight * data).exp().sum()


def made_by(weight: Tensor) -> Callable[[Any, Any], bool]:
    """Whether a node is where `loss_of` ends."""
    name = loss_of(weight).grad_fn.name()  # type: ignore[union-attr]
    return lambda then, now: then.name() == now.name() == name


@pytest.fixture
def weight() -> Tensor:
    return torch.tensor([0.25, -0.5], requires_grad=True)


def test_factors_are_read_while_the_graph_is_alive(weight: Tensor) -> None:
    assert factors_of(loss_of(weight) / 3 * 0.5) == (Factor(False, 0.5), Factor(True, 3.0))
    assert factors_of(loss_of(weight)) == ()
    assert factors_of(loss_of(weight) / weight.sum()) == (), "not a number: it has a gradient"


@pytest.mark.parametrize(("divides", "number"), [(True, 3.0), (True, 8.0), (True, 1.0), (False, 0.25), (False, 64.0)])
def test_after_backward_the_factor_follows_from_the_values(divides: bool, number: float, weight: Tensor) -> None:
    then = Factor(divides, number).apply(loss_of(weight))
    then.backward()
    apply = applied_after(then, loss_of(weight), (), made_by(weight))
    assert apply is not None
    again = apply(loss_of(weight))
    assert again.detach().equal(then.detach())
    assert again.grad_fn.name() == then.grad_fn.name()  # type: ignore[union-attr]


def test_of_a_loss_that_is_nan_only_a_factor_that_was_read_counts(weight: Tensor) -> None:
    then = loss_of(weight, math.nan) / 4
    known = factors_of(then)
    then.backward()
    now = loss_of(weight, math.nan)
    assert applied_after(then, now, (), made_by(weight)) is None
    apply = applied_after(then, now, known, made_by(weight))
    assert apply is not None
    assert float(apply(torch.tensor(2.0))) == 0.5


@pytest.mark.parametrize("then_value", [math.inf, -math.inf, 0.0])
def test_no_factor_is_made_up_for_a_loss_that_no_factor_explains(then_value: float, weight: Tensor) -> None:
    """A division by zero would give an infinite loss, and would be the only thing that is wrong with it."""
    then = (loss_of(weight) + then_value - loss_of(weight).detach()) / 2
    then.backward()
    now = loss_of(weight) + 1.0
    assert applied_after(then, now, (), lambda before, _: before is not then.grad_fn) is None


def test_another_loss_is_not_taken_for_it(weight: Tensor) -> None:
    then = loss_of(weight) / 2
    assert applied_after(then, weight.square().sum().tanh(), (), made_by(weight)) is None
