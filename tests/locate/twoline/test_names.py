"""What a tensor is called that the model is given: by its `forward`, else by the program's variable."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nantrap


class TakesAny(nn.Module):
    """A model whose inputs have no names of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.meta = nn.Linear(4, 4), nn.Linear(3, 4)

    def forward(self, *given: Tensor) -> Tensor:
        result: Tensor = (self.image(given[0]) + self.meta(given[1])).sum(-1)
        return result


class Counting:
    """A loss that cannot be computed again: it keeps a count."""

    calls = 0

    def __call__(self, given: Tensor, wanted: Tensor) -> Tensor:
        self.calls += 1
        return (given - wanted).square().mean()


@pytest.mark.parametrize("held", ["by a variable", "by a list"])
def test_an_argument_without_a_name_has_that_of_the_variable(held: str) -> None:
    torch.manual_seed(0)
    model, criterion = TakesAny(), Counting()
    guard: Any = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=1e-3), quiet=True)
    if held == "by a variable":
        pixels, about = torch.randn(6, 4), torch.randn(6, 3)
        about[4, 1] = torch.nan
        guard.backward(criterion(model(pixels, about), torch.zeros(6)))
    else:
        both = [torch.randn(6, 4), torch.full((6, 3), torch.nan)]
        guard.backward(criterion(model(*both), torch.zeros(6)))
    incident = guard.step().incident
    name = "about" if held == "by a variable" else r"args[1]"
    assert incident.cause.summary == f"the model's input already contains NaN: {name}"
