"""Two real processes of which only one has a fault: no hang, the same decisions, equal weights, the right rank named.

The group has a timeout, so that a disagreement ends as an error and not as a hang.
"""

from __future__ import annotations

import contextlib
import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import nantrap
from nantrap import Policy
from nantrap.report import one_line
from ranked import join, policy_of, start
from sharding import needs_sharding

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


def _worker(rank: int, folder: str) -> None:
    """Every scenario in turn, each in its own process group, so that one that fails does not disturb the next."""
    torch.set_num_threads(1)
    for name, (scenario, options) in SCENARIOS.items():
        place = Path(folder, name)
        place.mkdir(exist_ok=True)
        join(rank, folder, name)
        try:
            result = scenario(rank, str(place), **options)
            dist.barrier()
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        finally:
            dist.destroy_process_group()
        (place / f"result-{rank}.json").write_text(json.dumps(result))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict[str, Any]]]:
    """The results of a scenario on both ranks. Starting processes is slow, so all scenarios share two."""
    folder = tmp_path_factory.mktemp("ranks")
    start(_worker, str(folder))

    def results(name: str) -> list[dict[str, Any]]:
        read = [json.loads((folder / name / f"result-{rank}.json").read_text()) for rank in range(WORLD)]
        assert not any("error" in result for result in read), read
        assert {path.name for path in (folder / name).glob("journal*")} <= {"journal-r0.jsonl", "journal-r1.jsonl"}
        return read

    return results


def build(rank: int, *, ddp: bool) -> tuple[Net, nn.Module]:
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
    grouped: bool = False,
) -> dict[str, Any]:
    inner, model = build(rank, ddp=ddp)
    late = (policy or {}).get("sync") == "late"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=late)
    actions: list[str] = []
    ranks: list[int | None] = []
    phases: list[str | None] = []
    causes: list[list[str]] = []
    with nantrap.Guard(
        model,
        optimizer,
        max_grad_norm=1.0,
        policy=policy_of(policy or {}),
        run_dir=folder,
        process_group=dist.group.WORLD if grouped else None,
        quiet=True,
    ) as guard:
        for step in range(steps):
            hit = bad.get(str(step)) == rank

            def loss_fn(batch: tuple[Tensor, Tensor], hit: bool = hit) -> Tensor:
                output = model(batch[0])
                loss = nn.functional.mse_loss(output, batch[1])
                if fault == "loss" and hit:
                    return loss * NAN
                if fault == "huge" and hit:
                    return loss + inner.head.bias.sum() * 3e16  # finite, beyond what is proven safe
                if fault == "backward" and hit:  # the loss is finite, and so is the other rank's part
                    return loss + torch.sqrt(inner.head.bias * 0.0).sum()
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
                ranks.append(error.incident.origin_rank)
                break
            actions.append(str(outcome.action))
            ranks.append(outcome.incident.origin_rank if outcome.incident else None)
            phases.append(outcome.incident.phase if outcome.incident else None)
            causes.append([cause.slug for cause in outcome.incident.causes] if outcome.incident else [])
    return {
        "actions": actions,
        "ranks": ranks,
        "phases": phases,
        "causes": causes,
        "parameters": checksum(inner, buffers=False),
        "finite": all(bool(torch.isfinite(t.float()).all()) for t in inner.state_dict().values()),
        "lr": optimizer.param_groups[0]["lr"],
        "spikes": guard.tally.spikes,
    }


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


def _huge(rank: int, folder: str, *, bad: dict[str, int]) -> dict[str, Any]:
    inner, model = build(rank, ddp=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    actions = []
    policy = Policy(diagnose="off")
    guard = nantrap.Guard(model, optimizer, policy=policy, process_group=dist.group.WORLD, quiet=True)
    for step in range(5):
        scale = 3e16 if bad.get(str(step)) == rank else 1.0
        batch = batch_of(rank, step, bad=False)
        outcome = guard.attempt(lambda b: nn.functional.mse_loss(model(b[0]), b[1]) * scale, batch)
        actions.append(str(outcome.action))
    return {"actions": actions, "finite": all(bool(torch.isfinite(p).all()) for p in inner.parameters())}


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
        "ranks": [o.incident.origin_rank if o.incident else None for o in outcomes],
        "phases": [o.incident.phase if o.incident else None for o in outcomes],
        "parameters": checksum(inner, buffers=False),
        "finite": all(bool(torch.isfinite(p).all()) for p in inner.parameters()),
    }


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
            output = model(b[0])
            return nn.functional.mse_loss(torch.log(output * 0.0) if hit else output, b[1])

        outcomes.append(guard.attempt(loss_fn, batch))
    incidents = [outcome.incident for outcome in outcomes if outcome.incident]
    return {
        "actions": [str(outcome.action) for outcome in outcomes],
        "notes": [note for incident in incidents for note in incident.notes],
        "ops": [incident.op for incident in incidents],
    }


def _gathered_features(rank: int, folder: str) -> dict[str, Any]:
    """The loss compares with the features of all ranks, so one rank alone cannot compute it again."""
    torch.manual_seed(0)
    model = DistributedDataParallel(_small())
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), run_dir=folder, quiet=True)
    outcomes = []
    for step in range(3):
        x, _ = batch_of(rank, step, bad=False)
        hit = rank == 1 and step == 1

        def loss_fn(x: Tensor, hit: bool = hit) -> Tensor:
            features = model(x)
            everywhere = [torch.empty_like(features) for _ in range(WORLD)]
            dist.all_gather(everywhere, features.detach())
            distances = torch.cdist(features, torch.cat(everywhere).detach() + 1.0)
            return torch.log(distances * (0.0 if hit else 1.0)).mean()

        outcomes.append(guard.attempt(loss_fn, x))
    incidents = [outcome.incident for outcome in outcomes if outcome.incident]
    return {
        "actions": [str(outcome.action) for outcome in outcomes],
        "notes": [note for incident in incidents for note in incident.notes],
        "ops": [incident.op for incident in incidents],
        "origins": [incident.origin_rank for incident in incidents],
        "parameters": checksum(model),
    }


def _small(*, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def _sharded(rank: int, folder: str) -> dict[str, Any]:
    """FSDP2: parameters, gradients and their norm are DTensors; clipping and one bad shard of the batch."""
    from torch.distributed.fsdp import fully_shard

    model = _small()
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    guard = nantrap.Guard(model, optimizer, max_grad_norm=0.1, run_dir=folder, quiet=True)
    outcomes = []
    for step in range(4):
        x, _ = batch_of(rank, step, bad=False)
        hit = step == 2 and rank == 1
        outcomes.append(guard.attempt(lambda b: torch.log(model(b).square() * (0 if hit else 1) + (1 - hit)).mean(), x))
    guard.close()
    incidents = [outcome.incident for outcome in outcomes if outcome.incident]
    folders = sorted(path.name for path in Path(folder, "incidents").iterdir()) if rank == 1 else []
    return {
        "folders": folders,
        "ops": [incident.op for incident in incidents],
        "sources": [incident.source.text if incident.source else "" for incident in incidents],
        "notes": [note for incident in incidents for note in incident.notes],
        "actions": [str(outcome.action) for outcome in outcomes],
        "origins": [outcome.incident.origin_rank for outcome in outcomes if outcome.incident],
        "restored": [outcome.incident.restored for outcome in outcomes if outcome.incident],
    }


def _tensor_parallel(rank: int, folder: str) -> dict[str, Any]:
    """One layer is split over the ranks, the other is plain: gradients of both kinds have one norm."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model, plain = _small(), _small()
    parallelize_module(model[0], init_device_mesh("cpu", (WORLD,)), ColwiseParallel(output_layouts=Replicate()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, foreach=False)
    guard = nantrap.Guard(model, optimizer, max_grad_norm=0.1, quiet=True)
    x, _ = batch_of(0, 0, bad=False)
    outcome = guard.attempt(lambda b: model(b).square().mean(), x)
    plain(x).square().mean().backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in plain.parameters() if p.grad is not None])
    return {"applied": outcome.applied, "norm": outcome.grad_norm, "plain": float(norm)}


def _joined(rank: int, folder: str) -> dict[str, Any]:
    """Uneven data under `Join`: the rank that is done answers DDP's collectives only, so the guard has none."""
    from torch.distributed.algorithms.join import Join

    model = DistributedDataParallel(_small())
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=1e-2), quiet=True)
    actions = []
    with Join([model]):
        for step in range(3 + 2 * rank):
            x, _ = batch_of(rank, step, bad=False)
            guard.backward(model(x).square().mean())
            actions.append(str(guard.step().action))
    return {"actions": actions, "parameters": checksum(model)}


def _alone(rank: int, folder: str) -> dict[str, Any]:
    """Rank 0 makes extra steps of the shared optimizer by itself, before, between and after the common ones."""
    inner, model = build(rank, ddp=True)
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=1e-2), run_dir=folder, quiet=True)
    actions = []

    def alone(bad: bool) -> None:
        if rank == 0:
            kept = copy.deepcopy(inner.state_dict())
            x, y = batch_of(rank, 77, bad=bad)
            guard.backward(nn.functional.mse_loss(inner(x), y))
            actions.append(str(guard.step().action))
            inner.load_state_dict(kept)

    alone(False)
    for step in range(3):
        x, y = batch_of(rank, step, bad=step == 1 and rank == 1)
        guard.backward(nn.functional.mse_loss(model(x), y))
        actions.append(str(guard.step().action))
        alone(step == 0)
    return {"actions": actions, "parameters": checksum(inner, buffers=False)}


def _unguarded(rank: int, folder: str) -> dict[str, Any]:
    """Only rank 0 has a guard: it notices without waiting, and still refuses what the averaged gradients show."""
    from nantrap.guard.ranks import handshake

    inner, model = build(rank, ddp=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    handshake.SECONDS = 3600.0  # a rank that waited would end with the group's timeout
    guard = nantrap.Guard(model, optimizer, quiet=True) if rank == 0 else None
    for step in range(3):
        x, y = batch_of(rank, step, bad=False)
        loss = nn.functional.mse_loss(model(x), y)
        if guard is None:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        else:
            guard.backward(loss)
            guard.step()
    return {"parameters": checksum(inner, buffers=False), "applied": guard.tally.applied if guard else 3}


def _sharded_scaler(rank: int, folder: str, *, value: float = float("inf"), after: bool = False) -> dict[str, Any]:
    """FSDP2, a GradScaler, and a gradient that is non-finite in the shard of one rank only."""
    from torch.distributed.fsdp import fully_shard

    class Last(nn.Linear):
        hit = False

        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            if self.hit and out.requires_grad:
                out.register_hook(self.spoil)
            return out

        @staticmethod
        def spoil(gradient: Tensor) -> Tensor:
            gradient = gradient.clone()
            gradient[:, -1] = value  # the last row of the weight, which belongs to the last rank
            return gradient

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), Last(8, 4).requires_grad_())
    model[0].requires_grad_(False)
    fully_shard(model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    guard = nantrap.Guard(model, optimizer, scaler=scaler, run_dir=folder, quiet=True)
    outcomes = []
    for step in range(4):
        Last.hit = step == 1 and not after
        x, _ = batch_of(rank, step, bad=False)
        guard.backward(model(x).square().mean())
        if after and step == 1 and rank == 1:
            gradient: Any = model[2].weight.grad
            gradient.to_local()[0, 0] = value
        outcomes.append(guard.step())
    incidents = [outcome.incident for outcome in outcomes if outcome.incident]
    return {
        "actions": [str(outcome.action) for outcome in outcomes],
        "probes": guard.tally.scaler_probes,
        "scale": scaler.get_scale(),
        "notes": [note for incident in incidents for note in incident.notes],
        "origins": [incident.origin_rank for incident in incidents],
        "folders": [Path(incident.bundle).name for incident in incidents if incident.bundle],
        "lines": [one_line(incident) for incident in incidents],
    }


def _night(rank: int, folder: str) -> dict[str, Any]:
    """Both ranks fail in one step, each in its own way; then rank 0 alone four times, and rank 1 in another way."""
    _, model = build(rank, ddp=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    policy = Policy(max_consecutive_skips=20)
    guard = nantrap.Guard(model, optimizer, policy=policy, run_dir=folder, quiet=True)
    plan = {1: {0: "log", 1: "divide"}, **{step: {0: "log"} for step in range(2, 6)}, 6: {1: "backward"}}
    outcomes = []
    for step in range(8):
        fault = plan.get(step, {}).get(rank, "")

        def loss_fn(batch: tuple[Tensor, Tensor], fault: str = fault) -> Tensor:
            output = model(batch[0])
            loss = nn.functional.mse_loss(output, batch[1])
            if fault == "log":
                loss = loss + torch.log(output[:1] * 0.0).sum()
            if fault == "divide":
                loss = loss + (output[:1] * 0.0 / (output[1:2] * 0.0)).sum()
            if fault == "backward":
                loss = loss + torch.sqrt(output * 0.0).sum()
            return loss

        outcomes.append(guard.attempt(loss_fn, batch_of(rank, step, bad=False)))
    guard.close()
    dist.barrier()
    found = sorted(Path(folder, "incidents").glob("*/incident.json"))
    documents = {path.parent.name: json.loads(path.read_text()) for path in found}
    incidents = [outcome.incident for outcome in outcomes if outcome.incident]
    return {
        "actions": [str(outcome.action) for outcome in outcomes],
        "origins": [incident.origin_rank for incident in incidents],
        "bad": [incident.bad_ranks for incident in incidents],
        "ops": [incident.op for incident in incidents],
        "causes": dict(guard.tally.causes),
        "folders": {name: [each["rank"], each["bad_ranks"], each["op"]] for name, each in documents.items()},
        "notes": incidents[0].notes,
        "last": Path(incidents[-1].bundle or "").name,
    }


def _genuine_nan(rank: int, folder: str) -> dict[str, Any]:
    """A GradScaler, and a NaN gradient on rank 1 that no scale would repair; then an overflow that a scale repairs."""
    inner, model = build(rank, ddp=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    guard = nantrap.Guard(model, optimizer, scaler=scaler, quiet=True)
    actions, origins = [], []
    for step in range(5):
        hit = rank == 1 and step == 2
        high = rank == 1 and step == 3

        def loss_fn(batch: tuple[Tensor, Tensor], hit: bool = hit, high: bool = high) -> Tensor:
            loss = nn.functional.mse_loss(model(batch[0]), batch[1])
            if high:
                return loss + inner.head.bias.sum() * 1e34
            return loss + torch.sqrt(inner.head.bias * 0.0).sum() if hit else loss

        outcome = guard.attempt(loss_fn, batch_of(rank, step, bad=False))
        actions.append(str(outcome.action))
        origins.append(outcome.incident.origin_rank if outcome.incident else None)
    return {
        "actions": actions,
        "origins": origins,
        "probes": guard.tally.scaler_probes,
        "scale": scaler.get_scale(),
        "parameters": checksum(inner, buffers=False),
    }


def _averaging_styles(rank: int, folder: str) -> dict[str, Any]:
    """Accumulation under no_sync, unused parameters, a static graph, ZeRO: a bad batch on one rank, then on both."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    results = {}
    for style in ("no_sync", "unused", "static", "zero"):
        torch.manual_seed(0)
        inner = Net()
        unused, static = style == "unused", style == "static"
        model = DistributedDataParallel(inner, find_unused_parameters=unused, static_graph=static)
        parameters = list(model.parameters())
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(parameters, lr=1e-3)
        if style == "zero":
            optimizer = ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=1e-3)
        guard = nantrap.Guard(model, optimizer, policy=Policy(diagnose="off"), quiet=True)
        actions = []
        for step in range(4):
            micros = 3 if style == "no_sync" else 1
            for micro in range(micros):
                bad = micro == 0 and (step == 2 or (step == 1 and rank == 1))
                x, y = batch_of(rank, 10 * step + micro, bad=bad)
                quiet = model.no_sync() if micro < micros - 1 else contextlib.nullcontext()
                with quiet:
                    guard.backward(nn.functional.mse_loss(model(x), y) / micros)
            actions.append(str(guard.step().action))
        results[style] = {"actions": actions, "parameters": checksum(inner, buffers=False)}
    return results


SCENARIOS: dict[str, tuple[Callable[..., dict[str, Any]], dict[str, Any]]] = {
    "two_line": (_train, {"ddp": True, "form": "two_line", "bad": {"1": 1, "3": 0, "4": 1}}),
    "attempt": (_train, {"ddp": True, "form": "attempt", "bad": {"1": 1, "3": 0, "4": 1}}),
    "two_skipped": (_train, {"ddp": True, "form": "attempt", "bad": {"1": 1, "3": 0}}),
    "plain_ddp": (_plain_ddp, {}),
    "plain_models": (_train, {"ddp": False, "form": "attempt", "bad": {"1": 1, "2": 0, "4": 1}, "fault": "loss"}),
    "huge": (_huge, {"bad": {"2": 1}}),
    "broken_update": (_broken_update, {}),
    "check_batch": (
        _train,
        {"ddp": True, "form": "attempt", "steps": 4, "policy": {"batches": {"finite": True}}, "bad": {"1": 1}},
    ),
    "accumulation": (_train, {"ddp": True, "form": "attempt", "steps": 4, "micro": 3, "bad": {"1": 1}}),
    "late": (_train, {"ddp": True, "form": "attempt", "steps": 4, "policy": {"sync": "late"}, "bad": {"1": 1}}),
    "strict": (
        _train,
        {"ddp": True, "form": "attempt", "steps": 4, "policy": {"on_incident": "raise"}, "bad": {"2": 1}},
    ),
    "rollback": (
        _train,
        {
            "ddp": True,
            "form": "attempt",
            "steps": 4,
            "policy": {"max_consecutive_skips": 0, "rollback": {"anchor_every": 1}},
            "bad": {"2": 0},
        },
    ),
    "spike": (
        _train,
        {
            "ddp": False,
            "grouped": True,
            "form": "attempt",
            "bad": {"12": 1},
            "fault": "spike",
            "policy": {"spikes": {"action": "skip", "warmup": 8, "window": 8}, "diagnose": "off"},
            "steps": 14,
        },
    ),
    "backward_two_line": (
        _train,
        {"ddp": True, "form": "two_line", "steps": 4, "fault": "backward", "bad": {"1": 1, "2": 0}},
    ),
    "backward_attempt": (
        _train,
        {"ddp": True, "form": "attempt", "steps": 4, "fault": "backward", "bad": {"1": 1, "2": 0}},
    ),
    "sync_batch_norm": (_sync_batch_norm, {}),
    "gathered_features": (_gathered_features, {}),
    "sharded": (_sharded, {}),
    "tensor_parallel": (_tensor_parallel, {}),
    "joined": (_joined, {}),
    "alone": (_alone, {}),
    "sharded_scaler": (_sharded_scaler, {}),
    "sharded_scaler_nan": (_sharded_scaler, {"value": NAN}),
    "sharded_spoiled": (_sharded_scaler, {"value": NAN, "after": True}),
    "night": (_night, {}),
    "genuine_nan": (_genuine_nan, {}),
    "styles": (_averaging_styles, {}),
    "unguarded": (_unguarded, {}),
}
Ranks = Callable[[str], list[dict[str, Any]]]


@pytest.mark.parametrize("form", ["two_line", "attempt"])
def test_ddp_where_one_rank_gets_a_bad_batch(ranks: Ranks, form: str) -> None:
    zero, one = ranks(form)
    assert zero["actions"] == one["actions"] == ["apply", "skip", "apply", "skip", "skip", "apply"]
    assert zero["ranks"] == one["ranks"] == [None, 1, None, 0, 1, None]
    assert zero["parameters"] == one["parameters"]
    assert zero["finite"]
    assert one["finite"]


@pytest.mark.parametrize("form", ["two_line", "attempt"])
def test_ddp_where_the_fault_is_in_one_ranks_backward(ranks: Ranks, form: str) -> None:
    """Averaging spreads it to all gradients of all ranks; only running each part alone shows whose it was."""
    zero, one = ranks(f"backward_{form}")
    assert zero["actions"] == one["actions"] == ["apply", "skip", "skip", "apply"]
    assert zero["ranks"] == one["ranks"] == [None, 1, 0, None]
    assert zero["causes"] == one["causes"], "the innocent rank says what the guilty one found"
    assert zero["causes"][1] and zero["causes"][2]  # noqa: PT018
    assert zero["parameters"] == one["parameters"]


def test_ddp_is_bit_identical_to_the_run_without_the_bad_steps(ranks: Ranks) -> None:
    """Six steps, two of them skipped, against four plain DDP steps on the same batches."""
    zero, one = ranks("two_skipped")
    assert zero["parameters"] == one["parameters"] == ranks("plain_ddp")[0]["parameters"]


def test_independent_models_are_not_coupled(ranks: Ranks) -> None:
    """Neither replicated nor sharded: the fault of one rank costs the other no step, and nothing is exchanged."""
    zero, one = ranks("plain_models")
    assert zero["actions"] == ["apply", "apply", "skip", "apply", "apply", "apply"]
    assert one["actions"] == ["apply", "skip", "apply", "apply", "skip", "apply"]
    assert zero["ranks"] == [None, None, 0, None, None, None]
    assert one["ranks"] == [None, 1, None, None, 1, None]


def test_one_rank_alone_needs_a_careful_step(ranks: Ranks) -> None:
    """Each rank has its own norm: one must be able to undo its update where the other need not."""
    zero, one = ranks("huge")
    assert zero["actions"] == one["actions"]
    assert zero["finite"]
    assert one["finite"]


def test_an_update_that_goes_wrong_on_one_rank_is_undone_on_both(ranks: Ranks) -> None:
    zero, one = ranks("broken_update")
    assert zero["actions"] == one["actions"] == ["apply", "skip", "apply"]
    assert zero["ranks"] == one["ranks"] == [None, 1, None]
    assert zero["phases"] == one["phases"] == [None, "optimizer", None]
    assert zero["parameters"] == one["parameters"]
    assert zero["finite"]
    assert one["finite"]


@pytest.mark.parametrize(
    ("scenario", "actions"),
    [
        ("check_batch", ["apply", "skip", "apply", "apply"]),
        ("accumulation", ["apply", "skip", "apply", "apply"]),
        ("late", ["apply", "skip", "apply", "apply"]),
        ("strict", ["apply", "apply", "stop"]),
        ("rollback", ["apply", "apply", "rollback", "apply"]),
    ],
)
def test_policies_together(ranks: Ranks, scenario: str, actions: list[str]) -> None:
    zero, one = ranks(scenario)
    assert zero["actions"] == one["actions"] == actions
    assert zero["ranks"] == one["ranks"]
    assert [rank for rank in one["ranks"] if rank is not None] == [0 if scenario == "rollback" else 1]
    assert zero["parameters"] == one["parameters"]
    assert zero["lr"] == one["lr"]
    assert zero["finite"]
    assert one["finite"]


def test_a_spike_on_one_rank_is_skipped_by_both(ranks: Ranks) -> None:
    zero, one = ranks("spike")
    assert zero["actions"] == one["actions"] == ["apply"] * 12 + ["skip", "apply"]
    assert zero["ranks"][12] == one["ranks"][12] == 1
    assert zero["spikes"] == 0


def test_synchronised_statistics_are_replayed_by_all_ranks(ranks: Ranks) -> None:
    zero, one = ranks("sync_batch_norm")
    assert zero["actions"] == one["actions"] == ["apply", "skip", "apply"]
    assert one["notes"][-1].startswith("run again by all ranks together")
    assert zero["ops"] == one["ops"] == ["aten.log"]


def test_a_loss_that_gathers_from_all_ranks_is_run_again_by_all(ranks: Ranks) -> None:
    zero, one = ranks("gathered_features")
    assert zero["actions"] == one["actions"] == ["apply", "skip", "apply"]
    assert zero["ops"] == one["ops"] == ["aten.log"]
    assert zero["origins"] == one["origins"] == [1]
    assert one["notes"][-1].startswith("run again by all ranks together")
    assert zero["parameters"] == one["parameters"]


@needs_sharding
def test_sharded_parameters_are_clipped_and_contained(ranks: Ranks) -> None:
    zero, one = ranks("sharded")
    assert one["folders"] == ["000002-r1"]
    assert zero["ops"] == one["ops"] == ["aten.log"]
    assert one["notes"][-1].startswith("run again by all ranks together")  # before torch 2.13 no cause is tried
    assert zero["notes"] == one["notes"], "what the guilty rank found is told as it found it"
    assert zero["actions"] == one["actions"]
    assert zero["actions"] == ["apply", "apply", "skip", "apply"]
    assert (zero["origins"], zero["restored"]) == ([1], [True])


def test_plain_and_split_parameters_have_one_norm(ranks: Ranks) -> None:
    for result in ranks("tensor_parallel"):
        assert result["applied"]
        assert result["norm"] == pytest.approx(result["plain"], rel=1e-5)


def test_uneven_data_under_join(ranks: Ranks) -> None:
    zero, one = ranks("joined")
    assert zero["actions"] == ["apply"] * 3
    assert one["actions"] == ["apply"] * 5
    assert zero["parameters"] == one["parameters"]


def test_extra_steps_of_one_rank_alone(ranks: Ranks) -> None:
    zero, one = ranks("alone")
    assert one["actions"] == ["apply", "skip", "apply"]
    assert zero["actions"] == ["apply", "apply", "skip", "skip", "apply", "apply", "apply"]
    assert zero["parameters"] == one["parameters"]


def test_a_rank_without_a_guard_is_noticed(ranks: Ranks) -> None:
    zero, one = ranks("unguarded")
    assert zero["applied"] == 3
    assert zero["parameters"] == one["parameters"]


@needs_sharding
def test_an_overflow_in_one_shard_under_a_scaler(ranks: Ranks) -> None:
    zero, one = ranks("sharded_scaler")
    assert zero == one
    assert zero["actions"] == ["apply", "skip", "apply", "apply"]
    assert (zero["probes"], zero["scale"]) == (1, 512.0)


@needs_sharding
def test_nan_in_one_shard_under_a_scaler_is_no_search(ranks: Ranks) -> None:
    zero, one = ranks("sharded_scaler_nan")
    assert zero["actions"] == one["actions"] == ["apply", "skip", "apply", "apply"]
    assert zero["probes"] == one["probes"] == 0
    assert zero["scale"] == one["scale"] == 1024.0


@needs_sharding
def test_nan_that_appears_in_one_shard_after_the_backward_pass(ranks: Ranks) -> None:
    """Nothing can be found by running the step again; the rank that holds the bad shard is named all the same."""
    zero, one = ranks("sharded_spoiled")
    assert zero["actions"] == one["actions"] == ["apply", "skip", "apply", "apply"]
    assert zero["origins"] == one["origins"] == [1]
    assert zero["lines"] == [
        "step 1 skipped: it began on rank 1, backward: gradient 2.weight: 1 of 16 values is NaN; lr 0.01"
    ]
    assert one["lines"] == ["step 1 skipped: backward: gradient 2.weight: 1 of 16 values is NaN; lr 0.01"]
    assert zero["folders"] == one["folders"] == ["000001-r1"], "both refer to the folder of the guilty rank"


def test_each_fault_names_the_rank_where_it_began(ranks: Ranks) -> None:
    zero, one = ranks("night")
    assert zero["actions"] == one["actions"] == ["apply", *["skip"] * 6, "apply"]
    assert zero["origins"] == one["origins"] == [0, 0, 0, 0, 0, 1]
    assert zero["bad"] == one["bad"] == [[0, 1]] + [[0]] * 4 + [[1]]
    assert (zero["ops"][0], one["ops"][0]) == ("aten.log", "aten.div")
    assert (zero["ops"][5], one["ops"][5]) == ("aten.div", "aten.div"), "in the backward pass of sqrt"
    assert "undiagnosed" not in zero["causes"]
    folders = zero["folders"]
    assert folders["000001-r0"] == [0, [0, 1], "aten.log"]
    assert folders["000001-r1"] == [1, [0, 1], "aten.div"]
    assert folders["000006-r1"] == [1, [1], "aten.div"]
    assert "000006-r0" not in folders
    assert zero["last"] == one["last"] == "000006-r1"
    assert any(note.startswith("also bad on rank 1, forward: [NT202] ") for note in zero["notes"]), zero["notes"]
    assert any(note.startswith("also bad on rank 0, forward: [NT201] ") for note in one["notes"]), one["notes"]


def test_nan_under_a_scaler_is_not_taken_for_its_search(ranks: Ranks) -> None:
    zero, one = ranks("genuine_nan")
    assert zero == one
    assert zero["actions"] == ["apply", "apply", "skip", "skip", "apply"]
    assert zero["origins"] == [None, None, 1, None, None]
    assert (zero["probes"], zero["scale"]) == (1, 2.0**15)


@pytest.mark.parametrize("style", ["no_sync", "unused", "static", "zero"])
def test_ways_to_average_gradients(ranks: Ranks, style: str) -> None:
    zero, one = (result[style] for result in ranks("styles"))
    assert zero == one
    assert zero["actions"] == ["apply", "skip", "skip", "apply"]
