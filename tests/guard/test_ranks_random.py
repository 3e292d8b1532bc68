"""Random faults on random ranks: contained, equal weights on all ranks, no hang."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import nantrap
from nantrap import Outcome, Policy
from nantrap.faults import Injector
from ranked import join

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file")


def write_result(path: Path, outcomes: list[Outcome], injector: Injector, model: nn.Module) -> None:
    """What one rank did and how it ended, to be compared with the other ranks."""
    result = {
        "actions": [str(outcome.action) for outcome in outcomes],
        "bad_ranks": [list(outcome.incident.bad_ranks) if outcome.incident else [] for outcome in outcomes],
        "injected": sorted({(each.step, each.kind) for each in injector.injected}),
        "weights": [float(p.detach().double().sum()).hex() for p in model.parameters()],
        "finite": all(bool(value.isfinite().all()) for value in model.state_dict().values()),
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
    mp.spawn(worker, args=(world, steps, faults, str(folder)), nprocs=world, join=True)  # type: ignore[no-untyped-call]
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


STYLES = ("no_sync", "unused", "static", "zero")


def styles_worker(rank: int, steps: int, faults: str, folder: str) -> None:
    """The same faults in each way to average gradients, in two lines; `no_sync` with two micro-batches per step."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    join(rank, folder, world=2)
    for style in STYLES:
        torch.manual_seed(0)
        inner = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
        if style == "unused":
            inner.register_parameter("unused", nn.Parameter(torch.zeros(2)))
        model = DistributedDataParallel(inner, find_unused_parameters=style == "unused", static_graph=style == "static")
        parameters = list(model.parameters())
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(parameters, lr=1e-3)
        if style == "zero":
            optimizer = ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=1e-3)
        outcomes: list[Outcome] = []
        policy = Policy(diagnose="off", max_consecutive_skips=steps)
        # the guard's hook comes first, so that a buffer is hit inside the step and not before it
        guard = nantrap.Guard(model, optimizer, policy=policy, quiet=True)
        with nantrap.inject(faults, model=model, optimizer=optimizer) as injector:
            for step in range(steps):
                micros = 2 if style == "no_sync" else 1
                for micro in range(micros):
                    generator = torch.Generator().manual_seed(10_000 * rank + 10 * step + micro)
                    x, y = torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator)
                    with model.no_sync() if micro < micros - 1 else contextlib.nullcontext():
                        guard.backward(nn.functional.mse_loss(model(x), y) / micros)
                outcomes.append(guard.step())
        write_result(Path(folder, f"{style}-{rank}.json"), outcomes, injector, inner)
        dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def by_style(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("styles")
    mp.spawn(styles_worker, args=(40, plan(0.04), str(folder)), nprocs=2, join=True)  # type: ignore[no-untyped-call]
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_random_faults_in_each_way_to_average_gradients(style: str, by_style: Path) -> None:
    check([json.loads((by_style / f"{style}-{rank}.json").read_text()) for rank in range(2)], least=10)
