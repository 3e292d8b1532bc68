"""Random faults on random ranks: contained, equal weights on all ranks, no hang."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import nantrap
from guard.ranks import ways
from nantrap import Outcome, Policy, Rollback
from nantrap.faults import Injector
from ranked import join, start
from sharding import RUNS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file")


def write_result(path: Path, outcomes: list[Outcome], injector: Injector, model: nn.Module) -> None:
    """What one rank did and how it ended, to be compared with the other ranks."""
    result = {
        "actions": [str(outcome.action) for outcome in outcomes],
        "bad_ranks": [list(outcome.incident.bad_ranks) if outcome.incident else [] for outcome in outcomes],
        "injected": sorted({(each.step, each.kind) for each in injector.injected}),
        "weights": ways.bits(model),
        "finite": all(bool(ways.whole(value).isfinite().all()) for value in model.state_dict().values()),
    }
    path.write_text(json.dumps(result))


def worker(rank: int, world: int, steps: int, faults: str, folder: str) -> None:
    join(rank, folder, world=world)
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    policy = Policy(diagnose="off", max_consecutive_skips=steps)
    outcomes: list[Outcome] = []
    with nantrap.inject(faults, model=model, optimizer=optimizer) as injector:
        guard = nantrap.Guard(model, optimizer, policy=policy, quiet=True)
        for step in range(steps):
            generator = torch.Generator().manual_seed(1000 * rank + step)
            x, y = torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator)

            def loss_fn(batch: tuple[Tensor, Tensor]) -> Tensor:
                return nn.functional.mse_loss(model(batch[0]), batch[1])

            outcomes.append(guard.attempt(loss_fn, (x, y)))
    write_result(Path(folder, f"result-{rank}.json"), outcomes, injector, inner)
    dist.barrier()
    dist.destroy_process_group()


def run(folder: Path, *, world: int, steps: int, faults: str) -> list[dict[str, Any]]:
    start(worker, world, steps, faults, str(folder), world=world)
    return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(world)]


def plan(rate: float) -> str:
    """Faults in data, forward, loss, gradients and buffers; each rank draws its own steps."""
    kinds = ("batch", "activation", "loss", "grad", "buffer")
    return ";".join(f"{kind}:{rate},seed={number}" for number, kind in enumerate(kinds))


def check(results: list[dict[str, Any]], *, least: int) -> None:
    first = results[0]
    assert sum(len(result["injected"]) for result in results) >= least
    for result in results:
        assert result["finite"]
        assert result["actions"] == first["actions"]
        assert result["bad_ranks"] == first["bad_ranks"]
        assert result["weights"] == first["weights"]
    assert {"apply", "skip"} <= set(first["actions"]) <= {"apply", "skip", "rollback"}


def test_random_faults_on_two_ranks(tmp_path: Path) -> None:
    check(run(tmp_path, world=2, steps=40, faults=plan(0.04)), least=10)


@pytest.mark.slow
def test_a_hundred_random_faults_on_two_ranks(tmp_path: Path) -> None:
    check(run(tmp_path, world=2, steps=200, faults=plan(0.06)), least=100)


@pytest.mark.slow
def test_twenty_random_faults_on_four_ranks(tmp_path: Path) -> None:
    check(run(tmp_path, world=4, steps=60, faults=plan(0.025)), least=20)


WAYS = tuple(way for way in ways.WAYS if RUNS or way != "sharded")


def ways_worker(rank: int, steps: int, faults: str, folder: str) -> None:
    """The same faults in each way to train one model together, in two lines."""
    join(rank, folder, world=2)
    for way in WAYS:
        parts = ways.build(way, faulty=False)
        outcomes: list[Outcome] = []
        policy = Policy(
            diagnose="off", max_consecutive_skips=steps, max_rollbacks=steps, rollback=Rollback(anchor_every=2)
        )
        # the guard's hook comes first, so that a buffer is hit inside the step and not before it
        guard = nantrap.Guard(parts.model, parts.optimizer, policy=policy, process_group=parts.group, quiet=True)
        with nantrap.inject(faults, model=parts.model, optimizer=parts.optimizer) as injector:
            for step in range(steps):
                for micro in range(parts.micros):
                    x, y = ways.batch_of(way, rank, step, micro)
                    with parts.quiet(micro):
                        guard.backward(nn.functional.mse_loss(parts.model(x), y) / parts.micros)
                parts.average()
                outcomes.append(guard.step())
        write_result(Path(folder, f"{way}-{rank}.json"), outcomes, injector, parts.inner)
        dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def by_way(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("by_way")
    faults = f"{plan(0.04)};optimizer:0.03,seed=7"
    start(ways_worker, 40, faults, str(folder))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_random_faults_in_each_way_to_train_together(way: str, by_way: Path) -> None:
    check([json.loads((by_way / f"{way}-{rank}.json").read_text()) for rank in range(2)], least=10)


def join_worker(rank: int, steps: int, faults: str, folder: str) -> None:
    """Uneven data under `Join`: one rank makes more steps, and the guards exchange nothing."""
    join(rank, folder, world=2)
    torch.manual_seed(0)
    inner = ways.Net()
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    policy = Policy(diagnose="off", max_consecutive_skips=2 * steps)
    guard = nantrap.Guard(model, optimizer, policy=policy, quiet=True)
    actions: list[str] = []
    weights: list[list[str]] = []
    found: list[str] = []
    with Join([model]), nantrap.inject(faults, model=model, optimizer=optimizer) as injector:
        for step in range(steps + 10 * rank):
            x, y = ways.batch_of("ddp", rank, step, 0)
            guard.backward(nn.functional.mse_loss(model(x), y))
            outcome = guard.step()
            actions.append(str(outcome.action))
            found += [each.kind for each in outcome.incident.findings] if outcome.incident else []
            weights.append(ways.bits(inner))
    result = {
        "actions": actions,
        "weights": weights,
        "end": ways.bits(inner),
        "kinds": sorted({each.kind for each in injector.injected}),
        "injected": len(injector.injected),
        "found": sorted(set(found)),
        "finite": all(bool(value.isfinite().all()) for value in inner.state_dict().values()),
    }
    Path(folder, f"result-{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def join_faults(folder: Path, *, steps: int, rate: float, least: int) -> None:
    start(join_worker, steps, plan(rate), str(folder))
    zero, one = (json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(2))
    assert zero["injected"] + one["injected"] >= least
    assert (len(zero["actions"]), len(one["actions"])) == (steps, steps + 10)
    for result in (zero, one):
        assert result["finite"]
        assert {"apply", "skip"} <= set(result["actions"])
        assert "buffer" in result["found"]
    assert zero["actions"] == one["actions"][:steps]
    assert zero["weights"] == one["weights"][:steps], "equal after every common step, not only at the end"
    assert zero["end"] == one["end"], "the rank that is done gets the weights of the last one"


def test_random_faults_under_join(tmp_path: Path) -> None:
    join_faults(tmp_path, steps=30, rate=0.06, least=10)


@pytest.mark.slow
def test_a_hundred_random_faults_under_join(tmp_path: Path) -> None:
    join_faults(tmp_path, steps=200, rate=0.06, least=100)
