"""One rank of two, which trains in the ways people do: `ranks.py FOLDER SCENARIO...`, with RANK in the environment.

Each scenario has a model and an optimizer of its own. `bad:SCENARIO` puts a fault into it. The weights that each
scenario ends with go to FOLDER/result-RANK.json.
"""

import contextlib
import datetime
import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANK = int(os.environ.get("RANK", "0"))
NAN = float("nan")


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def smaller():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


def batch(step, bad=False):
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1000 * RANK + step))
    if bad:
        x[2, 1] = NAN
    return x


def weights(model):
    """The exact weights of this rank, its shards where they are sharded."""
    tensors = [p.detach() for p in model.parameters()]
    return [(t.to_local() if hasattr(t, "to_local") else t).double().sum().item().hex() for t in tensors]


def disabled_scaler(bad):
    """`enabled=use_amp`, with use_amp False."""
    model = DistributedDataParallel(net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for step in range(4):
        optimizer.zero_grad()
        scaler.scale(model(batch(step, bad and step == 2 and RANK == 1)).square().mean()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return weights(model)


def scaled(bad):
    """A scaler in use; NaN on one rank that no scale would repair, then an overflow that a lower scale repairs."""
    inner = smaller()
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    for step in range(5):
        optimizer.zero_grad()
        loss = model(batch(step)).square().mean()
        if bad and RANK == 1 and step == 2:
            loss = loss + torch.sqrt(inner[2].bias * 0.0).sum()
        if bad and RANK == 1 and step == 3:
            loss = loss + inner[2].bias.sum() * 2e34
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return [*weights(model), scaler.get_scale().hex()]


def join(bad):
    """Uneven data."""
    model = DistributedDataParallel(smaller())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with model.join():
        for step in range(3 + 2 * RANK):
            optimizer.zero_grad()
            model(batch(step, bad and step == 1 and RANK == 1)).square().mean().backward()
            optimizer.step()
    return weights(model)


def alone(bad):
    """Rank 0 makes extra steps by itself, before, between and after the common ones."""
    inner = smaller()
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    def probe(step):
        if RANK == 0:
            kept = {name: value.clone() for name, value in inner.state_dict().items()}
            optimizer.zero_grad()
            inner(batch(step, bad and step == 70)).square().mean().backward()
            optimizer.step()
            inner.load_state_dict(kept)

    probe(77)
    for step in range(3):
        optimizer.zero_grad()
        model(batch(step, bad and step == 1 and RANK == 1)).square().mean().backward()
        optimizer.step()
        probe(70 + step)
    return weights(model)


def apart(bad):
    """Every rank has its own model; nothing is averaged."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(4):
        optimizer.zero_grad()
        model(batch(step, bad and step == 1 and RANK == 1)).square().mean().backward()
        optimizer.step()
    return weights(model)


def sharded(bad):
    """FSDP2 with clipping; a fault in the forward pass of a layer, and one that only the backward pass shows."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), Risky(), nn.Linear(8, 4))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(5):
        Risky.how = {1: "forward", 3: "backward"}.get(step, "") if bad and RANK == 1 else ""
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return weights(model)


class Risky(nn.Module):
    how = ""

    def forward(self, x):
        if self.how == "forward":
            return torch.log(x * 0.0)
        if self.how == "backward":
            return torch.sqrt(x * 0.0) + x
        return torch.relu(x)


def mixed(bad):
    """One layer is split over the ranks, the other is plain."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model = smaller()
    parallelize_module(model[0], init_device_mesh("cpu", (2,)), ColwiseParallel(output_layouts=Replicate()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    for step in range(3):
        optimizer.zero_grad()
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
        if bad and step == 1:
            x[1, 1] = NAN
        model(x).square().mean().backward()
        optimizer.step()
    return weights(model)


def night(bad):
    """Both ranks fail in one step in their own ways, then rank 0 four times alike, then rank 1 in its backward pass."""
    inner = net()
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    plan = {1: {0: "log", 1: "divide"}, 2: {0: "log"}, 3: {0: "log"}, 4: {0: "log"}, 6: {1: "backward"}}
    for step in range(8):
        fault = plan.get(step, {}).get(RANK, "") if bad else ""
        optimizer.zero_grad()
        out = model(batch(step))
        loss = out.square().mean()
        if fault == "log":
            loss = loss + torch.log(out[:1] * 0.0).sum()
        if fault == "divide":
            loss = loss + (out[:1] * 0.0 / (out[1:2] * 0.0)).sum()
        if fault == "backward":
            loss = loss + torch.sqrt(out * 0.0).sum()
        loss.backward()
        optimizer.step()
    return weights(model)


def accumulated(bad):
    """Micro-batches under `no_sync`, a static graph, and the last micro-batch averages."""
    model = DistributedDataParallel(net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(4):
        optimizer.zero_grad()
        for micro in range(3):
            with model.no_sync() if micro < 2 else contextlib.nullcontext():
                (
                    model(batch(10 * step + micro, bad and step == 1 and micro == 0 and RANK == 1)).square().mean() / 3
                ).backward()
        optimizer.step()
    return weights(model)


def begin(folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=RANK,
        world_size=2,
        timeout=datetime.timedelta(seconds=90),
    )


def run(scenarios):
    results = {}
    for scenario in scenarios:
        name = scenario.removeprefix("bad:")
        results[scenario] = globals()[name](scenario != name)
        dist.barrier()
    return results


def main(folder, *scenarios):
    begin(folder)
    results = run(scenarios)
    with open(f"{folder}/result-{RANK}.json", "w") as file:
        json.dump(results, file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
