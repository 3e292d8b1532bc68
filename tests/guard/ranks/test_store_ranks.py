"""Two processes and one store: the first rank saves, both go back to the same checkpoint, or stop together."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import nantrap
from nantrap import Policy, Rollback
from nantrap.checkpoints import CheckpointStore
from ranked import join, start

WORLD = 2
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file")


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    join(rank, folder, world=WORLD, seconds=60)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    store = CheckpointStore(Path(folder, "store"))
    policy = Policy(rollback=Rollback(anchor_every=0), diagnose="off", max_consecutive_skips=0, max_rollbacks=9)
    guard = nantrap.Guard(model, optimizer, policy=policy, store=store, save_every=2, quiet=True)
    result: dict[str, Any] = {"actions": [], "sums": []}

    def attempt(bad: bool) -> None:
        batch = torch.full((3, 4), float("nan") if bad and rank == 1 else 1.0 + rank)
        outcome = guard.attempt(lambda x: model(x).square().mean(), batch)
        result["actions"].append(str(outcome.action.value))
        result["sums"].append(float(sum(p.detach().double().sum() for p in model.parameters())))

    try:
        for _ in range(5):
            attempt(False)
        attempt(True)  # back to 4
        if rank == 0:  # the disk eats the older one: neither rank may use it
            (Path(folder) / "store" / "step-000002.safetensors").write_bytes(b"")
        dist.barrier()
        attempt(True)
    except nantrap.NonFiniteError as error:
        result["error"] = str(error)
    dist.barrier()
    dist.destroy_process_group()
    Path(folder, f"result-{rank}.json").write_text(json.dumps(result))


def test_both_ranks_go_back_to_the_same_checkpoint_and_stop_together(tmp_path: Path) -> None:
    start(worker, str(tmp_path))
    first, second = (json.loads((tmp_path / f"result-{rank}.json").read_text()) for rank in range(WORLD))
    assert first["actions"] == second["actions"] == ["apply"] * 5 + ["rollback"]
    assert first["sums"] == second["sums"]
    assert first["sums"][5] == first["sums"][3]  # the state after four steps
    for result in (first, second):
        assert "no older state could be restored" in result["error"]
        assert "last good checkpoint" in result["error"]
    assert [saved.step for saved in CheckpointStore(tmp_path / "store").checkpoints()] == [4]
