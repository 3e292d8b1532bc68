"""Two real processes of which only one meets a fault: no hang, the same decisions, equal weights, the right rank named.

Each test spawns two gloo ranks with a timeout, so that a disagreement ends as an error and not as a hang.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import nantrap
from nantrap import Policy

NAN = float("nan")
WORLD = 2
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.body(x))))


def _worker(rank: int, folder: str, scenario: str, options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=datetime.timedelta(seconds=60),
    )
    try:
        result = SCENARIOS[scenario](rank, folder, **options)
        Path(folder, f"result-{rank}.json").write_text(json.dumps(result))
        dist.barrier()
    finally:
        dist.destroy_process_group()


def run_ranks(folder: Path, scenario: str, **options: Any) -> list[dict[str, Any]]:
    mp.spawn(_worker, args=(str(folder), scenario, options), nprocs=WORLD, join=True)  # type: ignore[no-untyped-call]
    return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(WORLD)]


def build(rank: int, *, ddp: bool) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    inner = Net()
    return inner, DistributedDataParallel(inner) if ddp else inner


def checksum(model: nn.Module, *, buffers: bool = True) -> float:
    tensors = [*model.parameters(), *(model.buffers() if buffers else ())]
    return float(sum(t.detach().double().abs().sum() for t in tensors))


def batch_of(rank: int, step: int, bad: bool) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x, y = torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator)
    if bad:
        x[2, 1] = NAN
    return x, y


def _train(
    rank: int,
    folder: str,
    *,
    ddp: bool,
    form: str,
    bad: dict[str, int],
    policy: dict[str, Any] | None = None,
    micro: int = 1,
    fault: str = "batch",
    steps: int = 6,
) -> dict[str, Any]:
    inner, model = build(rank, ddp=ddp)
    late = (policy or {}).get("sync") == "late"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=late)
    actions: list[str] = []
    ranks: list[int | None] = []
    phases: list[str | None] = []
    with nantrap.Guard(model, optimizer, policy=Policy(**(policy or {})), run_dir=folder, quiet=True) as guard:
        for step in range(steps):
            hit = bad.get(str(step)) == rank

            def loss_fn(batch: tuple[Tensor, Tensor], hit: bool = hit) -> Tensor:
                output = model(batch[0])
                loss = nn.functional.mse_loss(output, batch[1])
                if fault == "loss" and hit:
                    return loss * NAN
                if fault == "huge" and hit:
                    return loss + inner.head.bias.sum() * 3e16  # finite, beyond what is proven safe
                if fault == "spike" and hit:
                    return loss * 1e6
                return loss

            windows = [batch_of(rank, 10 * step + i, hit and fault == "batch" and i == 0) for i in range(micro)]
            try:
                if form == "attempt":
                    outcome = guard.attempt(loss_fn, *windows)
                else:
                    for batch in windows:
                        guard.backward(loss_fn(batch) / micro)
                    outcome = guard.step()
            except nantrap.NonFiniteError as error:
                actions.append("stop")
                ranks.append(error.incident.rank)
                break
            actions.append(str(outcome.action))
            ranks.append(outcome.incident.rank if outcome.incident else None)
            phases.append(outcome.incident.phase if outcome.incident else None)
    return {
        "actions": actions,
        "ranks": ranks,
        "phases": phases,
        "parameters": checksum(inner, buffers=False),
        "finite": all(bool(torch.isfinite(t.float()).all()) for t in inner.state_dict().values()),
        "lr": optimizer.param_groups[0]["lr"],
        "spikes": guard.tally.spikes,
    }


SCENARIOS: dict[str, Callable[..., dict[str, Any]]] = {"train": _train}


@pytest.mark.parametrize("form", ["two_line", "attempt"])
def test_ddp_where_one_rank_meets_a_bad_batch(tmp_path: Path, form: str) -> None:
    zero, one = run_ranks(tmp_path, "train", ddp=True, form=form, bad={"1": 1, "3": 0, "4": 1})
    assert zero["actions"] == one["actions"] == ["apply", "skip", "apply", "skip", "skip", "apply"]
    assert zero["ranks"] == one["ranks"] == [None, 1, None, 0, 1, None]
    assert zero["parameters"] == one["parameters"]
    assert zero["finite"]
    assert one["finite"]
    assert (tmp_path / "journal-r0.jsonl").exists()
    assert (tmp_path / "journal-r1.jsonl").exists()


def test_ddp_is_bit_identical_to_the_run_without_the_bad_steps(tmp_path: Path) -> None:
    """Six steps, two of them skipped, against four plain DDP steps on the same batches."""
    zero, one = run_ranks(tmp_path, "train", ddp=True, form="attempt", bad={"1": 1, "3": 0})
    other = tmp_path / "plain"
    other.mkdir()
    plain = run_ranks(other, "plain_ddp")
    assert zero["parameters"] == one["parameters"] == plain[0]["parameters"]


def _plain_ddp(rank: int, folder: str) -> dict[str, Any]:
    inner, model = build(rank, ddp=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in (0, 2, 4, 5):
        x, y = batch_of(rank, 10 * step, bad=False)
        nn.functional.mse_loss(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return {"parameters": checksum(inner, buffers=False)}


SCENARIOS["plain_ddp"] = _plain_ddp


def test_plain_models_whose_norms_differ(tmp_path: Path) -> None:
    """Without DDP each rank has a norm of its own: one may need a careful step where the other would not."""
    zero, one = run_ranks(
        tmp_path, "train", ddp=False, form="attempt", bad={"1": 1, "2": 0, "4": 1}, fault="loss"
    )
    assert zero["actions"] == one["actions"] == ["apply", "skip", "skip", "apply", "skip", "apply"]
    assert zero["ranks"] == one["ranks"] == [None, 1, 0, None, 1, None]


def test_one_rank_alone_needs_a_careful_step(tmp_path: Path) -> None:
    zero, one = run_ranks(tmp_path, "huge", bad={"2": 1})
    assert zero["actions"] == one["actions"]
    assert zero["finite"]
    assert one["finite"]


def _huge(rank: int, folder: str, *, bad: dict[str, int]) -> dict[str, Any]:
    inner, model = build(rank, ddp=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    actions = []
    guard = nantrap.Guard(model, optimizer, max_grad_norm=None, policy=Policy(diagnose="off"), quiet=True)
    for step in range(5):
        scale = 3e16 if bad.get(str(step)) == rank else 1.0
        batch = batch_of(rank, step, bad=False)
        outcome = guard.attempt(lambda b: nn.functional.mse_loss(model(b[0]), b[1]) * scale, batch)
        actions.append(str(outcome.action))
    return {"actions": actions, "finite": all(bool(torch.isfinite(p).all()) for p in inner.parameters())}


SCENARIOS["huge"] = _huge


def test_an_update_that_goes_wrong_on_one_rank_is_undone_on_both(tmp_path: Path) -> None:
    zero, one = run_ranks(tmp_path, "broken_update")
    assert zero["actions"] == one["actions"] == ["apply", "skip", "apply"]
    assert zero["ranks"] == one["ranks"] == [None, 1, None]
    assert zero["phases"] == one["phases"] == [None, "optimizer", None]
    assert zero["parameters"] == one["parameters"]
    assert zero["finite"]
    assert one["finite"]


def _broken_update(rank: int, folder: str) -> dict[str, Any]:
    class Broken(torch.optim.SGD):
        armed = False

        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            if self.armed:
                with torch.no_grad():
                    self.param_groups[0]["params"][0][0, 0] = NAN

    inner, model = build(rank, ddp=True)
    optimizer = Broken(model.parameters(), lr=1e-2)
    guard = nantrap.Guard(model, optimizer, policy=Policy(diagnose="off"), quiet=True)
    outcomes = []
    for step in range(3):
        Broken.armed = rank == 1 and step == 1
        batch = batch_of(rank, step, bad=False)
        outcomes.append(guard.attempt(lambda b: nn.functional.mse_loss(model(b[0]), b[1]), batch))
    return {
        "actions": [str(o.action) for o in outcomes],
        "ranks": [o.incident.rank if o.incident else None for o in outcomes],
        "phases": [o.incident.phase if o.incident else None for o in outcomes],
        "parameters": checksum(inner, buffers=False),
        "finite": all(bool(torch.isfinite(p).all()) for p in inner.parameters()),
    }


SCENARIOS["broken_update"] = _broken_update


@pytest.mark.parametrize(
    ("options", "actions"),
    [
        ({"policy": {"check_batch": True}, "bad": {"1": 1}}, ["apply", "skip", "apply", "apply"]),
        ({"micro": 3, "bad": {"1": 1}}, ["apply", "skip", "apply", "apply"]),
        ({"policy": {"sync": "late"}, "bad": {"1": 1}}, ["apply", "apply", "apply", "apply"]),
        ({"policy": {"on_incident": "raise"}, "bad": {"2": 1}}, ["apply", "apply", "stop"]),
        (
            {"policy": {"max_consecutive_skips": 0, "anchor_every": 1}, "bad": {"2": 0}},
            ["apply", "apply", "rollback", "apply"],
        ),
    ],
    ids=["check_batch", "accumulation", "late", "strict", "rollback"],
)
def test_policies_together(tmp_path: Path, options: dict[str, Any], actions: list[str]) -> None:
    zero, one = run_ranks(tmp_path, "train", ddp=True, form="attempt", steps=4, **options)
    assert zero["actions"] == one["actions"] == actions
    assert zero["ranks"] == one["ranks"]
    assert zero["parameters"] == one["parameters"]
    assert zero["lr"] == one["lr"]
    assert zero["finite"]
    assert one["finite"]


def test_a_spike_on_one_rank_is_skipped_by_both(tmp_path: Path) -> None:
    policy = {"spikes": "skip", "spike_warmup": 8, "spike_window": 8, "diagnose": "off"}
    zero, one = run_ranks(
        tmp_path, "train", ddp=False, form="attempt", bad={"12": 1}, fault="spike", policy=policy, steps=14
    )
    assert zero["actions"] == one["actions"] == ["apply"] * 12 + ["skip", "apply"]
    assert zero["ranks"][12] == one["ranks"][12] == 1
    assert zero["spikes"] == 0


def test_synchronised_statistics_are_not_replayed_alone(tmp_path: Path) -> None:
    zero, one = run_ranks(tmp_path, "sync_batch_norm")
    assert zero["actions"] == one["actions"] == ["apply", "skip", "apply"]
    assert one["notes"] == [
        "not run again: the model talks to the other ranks in its forward pass, and they have moved on"
    ]


def _sync_batch_norm(rank: int, folder: str) -> dict[str, Any]:
    class Synchronised(nn.SyncBatchNorm):
        """The real one wants a GPU; this one too would wait for the other rank in its forward pass."""

        def forward(self, x: Tensor) -> Tensor:
            total = x.detach().sum(0)
            dist.all_reduce(total)
            return x - total / (WORLD * x.shape[0])

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), Synchronised(4), nn.Linear(4, 3))
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), quiet=True)
    outcomes = []
    for step in range(3):
        batch = batch_of(rank, step, bad=False)
        hit = rank == 1 and step == 1

        def loss_fn(b: tuple[Tensor, Tensor], hit: bool = hit) -> Tensor:
            return nn.functional.mse_loss(model(b[0]), b[1]) * (NAN if hit else 1.0)

        outcomes.append(guard.attempt(loss_fn, batch))
    notes = [note for outcome in outcomes if outcome.incident for note in outcome.incident.notes]
    return {"actions": [str(outcome.action) for outcome in outcomes], "notes": notes}


SCENARIOS["sync_batch_norm"] = _sync_batch_norm
