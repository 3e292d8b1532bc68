"""What the agreement of ranks costs: added time per step, collectives and bytes, for 2 and 4 gloo ranks.

    python benchmarks/distributed.py [--ranks 2 4] [--steps 60] [--json]

Four loops take turns in blocks in the same processes, so a busy machine slows all of them: plain
DistributedDataParallel; the same with one all-reduce of the size of the flags (the control); a guard; and a guard whose
policy needs the flags of all ranks in every step (`spikes="skip"`). Calls and bytes are counted at `torch.distributed`
itself and do not depend on the machine; the times do. More ranks than cores take turns on them. That slows every
all-reduce, so what an exchange adds is compared with what the control adds on the same cores, and the processor time of
a rank is given beside the time of the clock. `docs/scale.md` takes its figures from here.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import nantrap

BLOCK = 10
WARM = 10
FLAGS = 8
LOOPS = ("plain", "control", "guarded", "averaged")


class Counter:
    """Counts what the guard sends through `torch.distributed`; DDP's own averaging runs below these functions."""

    def __init__(self) -> None:
        self.calls = 0
        self.bytes = 0

    def attach(self) -> None:
        for name in ("all_reduce", "all_gather", "broadcast", "all_gather_object", "barrier"):
            self._wrap(name)

    def _wrap(self, name: str) -> None:
        original: Callable[..., Any] = getattr(dist, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            self.bytes += args[0].nbytes if args and isinstance(args[0], torch.Tensor) else 0
            return original(*args, **kwargs)

        setattr(dist, name, counted)


def work(rank: int, world: int, steps: int, folder: str) -> None:
    """One rank: blocks of plain and guarded steps in turn."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous-{world}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=120),
    )
    x, y = torch.randn(16, 64), torch.randn(16, 8)
    loops = {}
    for name in LOOPS:
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        guard = None
        if name in ("guarded", "averaged"):
            policy = nantrap.Policy(rank_flags="averaged" if name == "averaged" else "every_step")
            guard = nantrap.Guard(model, optimizer, quiet=True, policy=policy)

        def step(model: nn.Module = model, optimizer: Any = optimizer, guard: Any = guard, name: str = name) -> None:
            loss = nn.functional.mse_loss(model(x), y)
            if guard is not None:
                guard.backward(loss)
                guard.step()
                return
            loss.backward()
            if name == "control":
                flags = torch.zeros(FLAGS)
                dist.all_reduce(flags, op=dist.ReduceOp.MAX)
                flags.tolist()
            optimizer.step()
            optimizer.zero_grad()

        loops[name] = step
    for step in loops.values():
        for _ in range(WARM):
            step()
    counter = Counter()
    counter.attach()
    times: dict[str, list[float]] = {name: [] for name in LOOPS}
    processor = dict.fromkeys(LOOPS, 0.0)
    counts = {name: [0, 0] for name in LOOPS}
    for _ in range(max(1, steps // BLOCK)):
        for name, step in loops.items():
            calls, sent, used = counter.calls, counter.bytes, time.process_time()
            for _ in range(BLOCK):
                began = time.perf_counter()
                step()
                times[name].append((time.perf_counter() - began) * 1e3)
            processor[name] += (time.process_time() - used) * 1e3
            counts[name][0] += counter.calls - calls
            counts[name][1] += counter.bytes - sent
    made = len(times["plain"])
    result: dict[str, Any] = {"ranks": world}
    for name in LOOPS:
        result[name] = {
            "ms": statistics.median(times[name]),
            "processor_ms": processor[name] / made,
            "calls_per_step": counts[name][0] / made,
            "bytes_per_step": counts[name][1] / made,
        }
    if rank == 0:
        Path(folder, f"result-{world}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for world in arguments.ranks:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(work, args=(world, arguments.steps, folder), nprocs=world, join=True)  # type: ignore[no-untyped-call]
            rows.append(json.loads(Path(folder, f"result-{world}.json").read_text()))
    if arguments.json:
        print(json.dumps({"cores": os.cpu_count(), "rows": rows}))
        return
    print(f"{os.cpu_count()} cores")
    print("ranks   loop         ms/step   added   processor ms   added   calls/step   bytes/step")
    for row in rows:
        plain = row["plain"]
        for name in LOOPS:
            one = row[name]
            print(
                f"{row['ranks']:5}   {name:10}   {one['ms']:7.2f}   {one['ms'] - plain['ms']:5.2f}   "
                f"{one['processor_ms']:12.2f}   {one['processor_ms'] - plain['processor_ms']:5.2f}   "
                f"{one['calls_per_step']:10.2f}   {one['bytes_per_step']:10.0f}"
            )


if __name__ == "__main__":
    main()
