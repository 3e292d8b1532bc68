"""A batch that a closure, a partial or an object holds, and that is no argument: its bad samples are named. Next door:
a table that the closure holds as well."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap import Incident
from nantrap.cli import main


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Trainer:
    """Holds the batch of the step, as some loops do."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.x = self.y = torch.zeros(())

    def loss(self, _: Any = None) -> Tensor:
        return nn.functional.mse_loss(self.model(self.x), self.y)


def by_closure(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[Any], Tensor]:
    return lambda _: nn.functional.mse_loss(model(x), y)


def by_partial(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[Any], Tensor]:
    return functools.partial(lambda given, wanted, _: nn.functional.mse_loss(model(given), wanted), x, y)


def by_object(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[Any], Tensor]:
    trainer = Trainer(model)
    trainer.x, trainer.y = x, y
    return trainer.loss


def loader(*, bad: bool) -> Iterator[tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    for index in range(5):
        x, y = torch.randn(8, 4), torch.randn(8, 1)
        if bad and index == 3:
            x[2, 1] = math.nan
        yield x, y


def failing(held: Callable[..., Callable[[Any], Tensor]], form: str, optimizer: str) -> Incident:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    guard = nantrap.Guard(model, getattr(torch.optim, optimizer)(model.parameters(), lr=0.1), quiet=True)
    for x, y in loader(bad=True):
        loss_of = held(model, x, y)
        if form == "attempt":
            guard.attempt(loss_of, None)
        else:
            loss = loss_of(None)
            guard.backward(loss)
            guard.step()
    guard.close()
    assert guard.last_incident is not None
    return guard.last_incident


@pytest.mark.parametrize(
    ("form", "optimizer"), [("attempt", "SGD"), ("attempt", "LBFGS"), ("two lines", "SGD")], ids=lambda each: str(each)
)
@pytest.mark.parametrize("held", [by_closure, by_partial, by_object])
def test_the_samples_of_a_batch_that_is_no_argument(
    held: Callable[..., Callable[[Any], Tensor]], form: str, optimizer: str
) -> None:
    incident = failing(held, form, optimizer)
    assert (incident.phase, incident.samples) == ("data", (2,))
    assert incident.causes[0].summary == "the input batch already contains NaN: x"
    assert any(
        "x holds 1 NaN among 32 values before the forward pass, sample 2" in e.text for e in incident.causes[0].evidence
    )


def test_a_table_that_the_closure_holds_is_not_the_batch() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    table = torch.ones(8, 4)
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), quiet=True)
    for index, (x, _) in enumerate(loader(bad=False)):
        if index == 3:
            table[2, 1] = math.nan
        given = x

        def loss_of(_: Any, given: Tensor = given) -> Tensor:
            return model(given * table).square().mean()

        if guard.attempt(loss_of, None).incident is not None:
            break
    guard.close()
    incident = guard.last_incident
    assert incident is not None
    assert incident.samples == ()
    assert incident.causes[0].summary == "a tensor that the loss reads without a gradient is non-finite: table"


def test_the_closure_of_an_optimizer_under_nantrap_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)
inputs, targets = torch.randn(48, 4), torch.randn(48, 1)
inputs[34, 1] = float("nan")
for x, y in DataLoader(TensorDataset(inputs, targets), batch_size=8):
    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss
    optimizer.step(closure)
"""
    )
    assert main(["run", "--run-dir", str(tmp_path / "run"), str(script)]) == 0
    said = capsys.readouterr().err
    assert "the input batch already contains NaN: x" in said
    assert "sample: 2 (dataset index 34)" in said


def test_an_operand_that_the_program_has_no_name_for_is_not_called_by_the_argument_of_its_operation() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    temperatures = iter([4.0, 2.0, 0.0])

    def loss_of_this_step() -> Tensor:
        x = torch.randn(4, 3)
        target = (x[:, :2] / next(temperatures)).softmax(-1)  # an iterator: this loss is not computed again
        return (model(x) * target).mean()

    found: list[Incident] = []
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), quiet=True) as guard:
        for _ in range(3):
            guard.backward(loss_of_this_step())
            incident = guard.step().incident
            found += [incident] if incident is not None else []
    (incident,) = found
    said = [incident.causes[0].summary, *incident.notes, *(finding.name for finding in incident.findings)]
    assert not any("self" in each or each == "other" for each in said)
    assert any("an operand of aten.mul" in each for each in said)
