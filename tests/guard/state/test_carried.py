"""A state that the loop carries is restored with a step that is not made. Next door: a batch is never written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap.cli import main


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.rnn = kind(4, 8, batch_first=True)  # type: ignore[call-arg]
        self.out = nn.Linear(8, 4)

    def forward(self, x: Tensor, hidden: Any) -> tuple[Tensor, Any]:
        y, hidden = self.rnn(x, hidden)
        return self.out(y), hidden


def detached(state: Any) -> Any:
    return state.detach() if isinstance(state, Tensor) else tuple(each.detach() for each in state)


def copied(state: Any) -> Any:
    return state.detach().clone() if isinstance(state, Tensor) else tuple(each.detach().clone() for each in state)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
@pytest.mark.parametrize("carry", [detached, copied])
def test_a_state_that_went_bad_is_restored_with_the_step(
    kind: type[nn.Module], carry: Callable[[Any], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model = Recurrent(kind)
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
    state: Any = torch.zeros(1, 6, 8) if kind is nn.GRU else (torch.zeros(1, 6, 8), torch.zeros(1, 6, 8))
    before: Any = None
    for index in range(12):
        data, target = torch.randn(6, 5, 4), torch.randn(6, 5, 4)
        if index == 7:
            data[3, 2, 1] = math.nan
            before = copied(state)
        output, given = model(data, state)
        state = carry(given)
        guard.backward((output - target).square().mean())
        guard.step()
        if index == 8:  # the model was given what the skipped step began with
            assert guard.last_incident is not None
            assert guard.last_incident.step == 7
    guard.close()
    assert before is not None
    assert (guard.tally.attempted, guard.tally.applied, guard.tally.incidents) == (12, 11, 1)
    said = capsys.readouterr().err
    name = "hidden" if kind is nn.GRU else "hidden[0], hidden[1]"
    assert f"step 8: {name} of the model is a state that the loop carries, and the step before made it" in said
    assert "sample: 3" in said
    assert "sample: 0" not in said


def test_the_restored_state_has_the_values_from_before_the_step() -> None:
    torch.manual_seed(0)
    model = Recurrent(nn.GRU)
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), quiet=True)
    seen: list[Tensor] = []
    model.rnn.register_forward_pre_hook(lambda _, args: seen.append(args[1].clone()) if model.training else None)
    state: Any = torch.randn(1, 6, 8)
    for index in range(3):
        data = torch.randn(6, 5, 4)
        if index == 1:
            data[3] = math.nan
        output, state = model(data, state)
        state = state.detach()
        kept = list(seen)
        guard.backward(output.square().mean())
        guard.step()
        seen[:] = kept  # without what a replay called
    guard.close()
    assert torch.equal(seen[1], seen[2])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_bad_batch_after_a_bad_batch_is_not_written(value: float) -> None:
    """Next door: the model gives what has the shape of its input, and all of it is NaN."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), quiet=True)
    for index in range(6):
        x = torch.randn(3, 4)
        if index in (2, 3):
            x[:] = value
        guard.backward((model(x) - 1.0).square().mean())
        guard.step()
        if index in (2, 3):
            assert not x.isfinite().any()
    guard.close()
    assert (guard.tally.attempted, guard.tally.applied) == (6, 4)


def test_under_nantrap_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.GRU(4, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
hidden = torch.zeros(1, 6, 8)
for step in range(12):
    data = torch.randn(5, 6, 4)
    if step == 7:
        data[2, 3, 1] = float("nan")
    optimizer.zero_grad()
    output, hidden = model(data, hidden)
    hidden = hidden.detach()
    loss = output.square().mean()
    if step == 9:
        loss = loss * float("nan")
    loss.backward()
    optimizer.step()
assert hidden.isfinite().all()
"""
    )
    assert main(["run", "--run-dir", str(tmp_path / "run"), str(script)]) == 0
    said = capsys.readouterr().err
    assert "12 steps, 10 applied" in said
    assert said.count("is a state that the loop carries, and the step before made it non-finite") == 1
