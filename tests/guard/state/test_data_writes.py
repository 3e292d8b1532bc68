"""A codebook that the forward pass resets through `tensor.data`, now and then: nothing counts the write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap.guard.state.members import reached_through_data


class Codes(nn.Module):
    """Resets one entry in every third call; counts its calls, draws from its own generator, keeps an average."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 3)
        self.codes = nn.Parameter(torch.randn(5, 3))
        self.codes.data[0] = 0.0
        self.calls = 0
        self.average = torch.zeros(3)
        self.stream = torch.Generator().manual_seed(7)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        z = self.encoder(x) + 0.01 * torch.rand(len(x), 3, generator=self.stream)
        self.average = 0.9 * self.average + 0.1 * z.detach().mean(0)
        if self.calls % 3 == 0:
            self.codes.data[self.calls % 5] = z[0].detach()
        return (z - self.codes[torch.cdist(z, self.codes).argmin(-1)]).square().mean()


def batches(*, with_the_bad_one: bool) -> Iterator[Tensor]:
    draw = torch.Generator().manual_seed(1)
    for step in range(9):
        x = torch.randn(6, 4, generator=draw)
        if step == 5:  # the sixth call resets an entry
            x[2] = 1e30
        if step != 5 or with_the_bad_one:
            yield x


def everything(model: Codes, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    found = {name: value.clone() for name, value in model.state_dict().items()}
    found |= {"average": model.average, "calls": torch.tensor(model.calls), "stream": model.stream.get_state()}
    for index, state in enumerate(optimizer.state.values()):
        found |= {f"{index}.{key}": torch.as_tensor(value).clone() for key, value in state.items()}
    return found


def attempt(guard: nantrap.Guard, model: Codes, x: Tensor) -> nantrap.Outcome:
    return guard.attempt(model, x)


def two_lines(guard: nantrap.Guard, model: Codes, x: Tensor) -> nantrap.Outcome:
    guard.backward(model(x))
    return guard.step()


@pytest.mark.parametrize("form", [attempt, two_lines])
@pytest.mark.parametrize("diagnose", ["full", "off"])
def test_a_skipped_step_leaves_no_trace(
    form: Callable[[nantrap.Guard, Codes, Tensor], nantrap.Outcome], diagnose: Literal["full", "off"]
) -> None:
    ends = []
    for with_the_bad_one in (True, False):
        torch.manual_seed(0)
        model = Codes()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        guard = nantrap.Guard(model, optimizer, quiet=True, policy=nantrap.Policy(diagnose=diagnose))
        outcomes = [form(guard, model, x) for x in batches(with_the_bad_one=with_the_bad_one)]
        incidents = [outcome.incident for outcome in outcomes if outcome.incident is not None]
        assert len(incidents) == int(with_the_bad_one)
        assert not any("not restored to the values" in note for i in incidents for note in i.notes)
        ends.append(everything(model, optimizer))
    assert [name for name in ends[0] if not torch.equal(ends[0][name], ends[1][name])] == []


def test_names_before_data_in_methods_that_run_while_training() -> None:
    class Quiet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(3, 2)
            self.table.weight.data.zero_()

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.table(x))

    class Loud(Quiet):
        def restart(self) -> None:
            for row in range(3):
                self.table.weight.data[row] = 1.0

    codes = Codes()
    assert [p is codes.codes for p in reached_through_data([codes])] == [True]
    assert reached_through_data([Quiet(), nn.LSTM(3, 2)]) == []
    loud = Loud()
    assert [p is loud.table.weight for p in reached_through_data([loud])] == [True]


class Clamped(nn.Module):
    """Clamps all of its weights before it computes. The bias is inside the bound at first, so nothing happens to it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        nn.init.constant_(self.layer.weight, 0.5)
        nn.init.zeros_(self.layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        for parameter in self.parameters():
            parameter.data.clamp_(-0.3, 0.3)
        result: Tensor = self.layer(x).mean()
        return result


@pytest.mark.parametrize("form", ["attempt", "two lines"])
def test_a_clamp_of_all_weights_is_put_back_where_it_begins_to_matter_later(form: str) -> None:
    torch.manual_seed(0)
    model = Clamped()
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=1.0), quiet=True) as guard:
        for step in range(3):
            before = [p.detach().clone() for p in model.parameters()]
            x = torch.full((2, 4), float("nan")) if step == 2 else torch.ones(2, 4)
            if form == "attempt":
                outcome = guard.attempt(model, x)
            else:
                guard.backward(model(x))
                outcome = guard.step()
    assert bool((before[1].abs() > 0.3).all())  # the clamp changed it in the refused step for the first time
    assert not outcome.applied
    assert outcome.incident is not None
    assert outcome.incident.restored
    assert all(torch.equal(p, kept) for p, kept in zip(model.parameters(), before, strict=True))
