"""Healthy programs that a careless detector would accuse raise no incident and lose no step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import nantrap
from guard.loops import FORMS, INF, batches, make_run, mse
from nantrap import Policy, Spikes
from zoo.loading import batches as batches_of
from zoo.loading import collection_of, find, load, loss_function

CONTROLS = [path for path in find("controls") if collection_of(path) == "everyday_failures"]


def test_there_are_controls() -> None:
    assert len(CONTROLS) >= 10


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("path", CONTROLS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore")  # the programs are not ours
def test_control(form: str, path: Path, tmp_path: Path) -> None:
    case = load(path)
    forward = loss_function(case)
    with nantrap.Guard(case["model"], case["optimizer"], max_grad_norm=None, run_dir=tmp_path, quiet=True) as guard:
        for batch in batches_of(case):
            if form == "attempt":
                outcome = guard.attempt(forward, batch)
            else:
                guard.backward(forward(batch))
                outcome = guard.step()
            assert outcome.incident is None
            assert outcome.applied


class Attention(nn.Module):
    mask: Tensor
    largest: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.register_buffer("mask", torch.full((6, 6), -INF).triu(1))
        self.register_buffer("largest", torch.tensor(-INF))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, -1)
        self.largest.copy_(torch.maximum(self.largest, x.max()))
        return torch.softmax(query @ key.transpose(1, 2) + self.mask, -1) @ value


@pytest.mark.parametrize("form", FORMS)
def test_deliberate_infinities_in_buffers(form: str) -> None:
    data = [torch.randn(2, 6, 8) for _ in range(5)]
    run = make_run(model=Attention, loss=lambda m, b: m(b).square().mean(), data=data)
    guard = run.guard()
    FORMS[form](run, guard)
    assert all(outcome.applied for outcome in run.outcomes)
    assert guard.check_state() == []


@pytest.mark.parametrize("form", FORMS)
def test_ctc(form: str) -> None:
    class Recogniser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(5, 7)

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x).log_softmax(-1)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        lengths = torch.full((3,), 12), torch.full((3,), 4)
        return nn.functional.ctc_loss(model(x), torch.arange(1, 13).remainder(6).add(1).view(3, 4), *lengths)

    run = make_run(model=Recogniser, loss=loss, data=[torch.randn(12, 3, 5) for _ in range(5)])
    FORMS[form](run, run.guard())
    assert all(outcome.applied for outcome in run.outcomes)


@pytest.mark.parametrize("form", FORMS)
def test_a_finite_spike(form: str) -> None:
    run = make_run(data=batches(80), max_grad_norm=1.0)
    run.batches[70] = (run.batches[70][0], run.batches[70][1] * 1e8)
    FORMS[form](run, run.guard(policy=Policy(spikes=Spikes(warmup=20))))
    assert all(outcome.applied and outcome.incident is None for outcome in run.outcomes)


@pytest.mark.parametrize("form", FORMS)
def test_a_nan_gradient_that_relu_erases(form: str) -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        output = model(batch[0])
        # d sqrt / dx is infinite at 0; the ReLU passes nothing back where its input is negative
        erased = torch.sqrt(torch.relu(output.abs() * -1.0)).detach()
        return nn.functional.mse_loss(output + erased, batch[1])

    run = make_run(loss=loss)
    FORMS[form](run, run.guard())
    assert all(outcome.applied for outcome in run.outcomes)


def test_zero_gradients_and_no_gradients() -> None:
    run = make_run(loss=lambda m, b: mse(m, b) * 0.0)
    guard = run.guard()
    FORMS["attempt"](run, guard)
    assert all(outcome.applied and outcome.grad_norm == 0.0 for outcome in run.outcomes)
