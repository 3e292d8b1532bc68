"""Two ranks that bypass DistributedDataParallel: different weights are reported, and no rank waits for another."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import nantrap
from nantrap import Policy, Sampling
from ranked import Ranks, run_scenarios

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file")


def _train(
    rank: int, folder: str, *, way: str, attempt: bool = False, steps: tuple[int, int] = (3, 3)
) -> dict[str, Any]:
    """A few steps of each rank on its own data; a rank may make more of them than the other."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = nantrap.Guard(model, optimizer, policy=Policy(sampling=Sampling(state_every=1)), quiet=True)
    torch.manual_seed(rank)
    incidents = []

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        return (model if way in ("wrapped", "no_sync") else model.module)(batch).square().mean()

    for _ in range(steps[rank]):
        batch = torch.randn(8, 4)
        if attempt:
            outcome = guard.attempt(loss_of, batch)
        elif way == "no_sync":
            with model.no_sync():
                guard.backward(loss_of(batch))
            outcome = guard.step()
        else:
            loss = loss_of(batch)
            guard.backward(loss)
            if way == "averaged by hand":
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    dist.all_reduce(parameter.grad)
            outcome = guard.step()
        if outcome.incident is not None:
            incidents.append((outcome.incident.causes[0].slug, outcome.incident.causes[0].proven, outcome.applied))
    guard.close()
    return {"incidents": incidents, "weights": [p.detach().sum().item() for p in model.parameters()]}


SCENARIOS: dict[str, dict[str, Any]] = {
    "wrapped": {"way": "wrapped"},
    "two lines": {"way": "round"},
    "attempt": {"way": "round", "attempt": True},
    "averaged by hand": {"way": "averaged by hand"},
    "no_sync": {"way": "no_sync"},
    "one rank alone": {"way": "round", "steps": (3, 0)},
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    return run_scenarios(_train, SCENARIOS, tmp_path_factory.mktemp("bypass"))


@pytest.mark.parametrize("form", ["two lines", "attempt"])
def test_ranks_that_train_their_own_models_are_reported(ranks: Ranks, form: str) -> None:
    found = ranks(form)
    assert found[0]["weights"] != found[1]["weights"]
    reported = [incident for each in found for incident in each["incidents"]]
    assert reported, "the last rank of a step sees the numbers of both"
    assert {tuple(each) for each in reported} == {("rank_divergence", True, True)}
    assert all(len(each["incidents"]) <= 1 for each in found), "once"


@pytest.mark.parametrize("way", ["wrapped", "averaged by hand"])
def test_equal_weights_are_no_incident(ranks: Ranks, way: str) -> None:
    found = ranks(way)
    assert found[0]["weights"] == found[1]["weights"]
    assert not any(each["incidents"] for each in found)


@pytest.mark.parametrize("way", ["no_sync", "one rank alone"])
def test_ranks_that_are_meant_to_differ_are_no_incident(ranks: Ranks, way: str) -> None:
    assert not any(each["incidents"] for each in ranks(way))
