"""A fault on one rank of two real processes: both skip the same step, and their weights stay equal."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import nantrap
from ranked import joined

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file")


def _worker(rank: int, folder: str) -> None:
    with joined(rank, folder):
        result = _train(rank)
        Path(folder, f"{rank}.json").write_text(json.dumps(result))
        dist.barrier()


def _train(rank: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    policy = nantrap.Policy(diagnose="off")
    torch.manual_seed(rank)
    with (
        nantrap.Guard(model, optimizer, policy=policy, quiet=True) as guard,
        nantrap.inject("activation:step=2,rank=1;grad:step=4,rank=1", model=model) as faults,
    ):
        applied = [guard.attempt(lambda x: model(x).square().mean(), torch.randn(5, 4)).applied for _ in range(6)]
    return {
        "applied": applied,
        "injected": [each.kind for each in faults.injected],
        "weight": [float(value) for value in model.module.weight.detach().flatten()],
    }


@pytest.mark.slow
def test_a_fault_on_one_rank(tmp_path: Path) -> None:
    context = mp.spawn(_worker, args=(str(tmp_path),), nprocs=2, join=False)
    for _ in range(3):  # returns when one process has ended, too
        if context.join(timeout=60):
            break
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert (first["injected"], second["injected"]) == ([], ["activation", "grad"])
    assert first["applied"] == second["applied"] == [True, True, False, True, False, True]
    assert first["weight"] == second["weight"]
    assert all(abs(value) < 1e3 for value in first["weight"])
