"""What the agreement of ranks costs: added time per step, collectives and bytes, for 2 and 4 gloo ranks.

    python benchmarks/distributed.py [--ranks 2 4] [--steps 60] [--json]

Plain DistributedDataParallel and the same loop under a guard take turns in blocks in the same processes, so a busy
machine slows both. Calls and bytes are counted at `torch.distributed` itself and do not depend on the machine; the
times do. The all-reduce of the flags is also timed alone, and compared with the model of `docs/scale.md`: a tree of
`2 * ceil(log2 n)` messages, whose time per message is taken from the smallest group that was measured. More ranks than
cores take turns on them, which the model does not know. `docs/scale.md` takes its figures from here.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
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
FLAGS = 7


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
    for name in ("plain", "guarded"):
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        guard = nantrap.Guard(model, optimizer, quiet=True) if name == "guarded" else None

        def step(model: nn.Module = model, optimizer: Any = optimizer, guard: Any = guard) -> None:
            loss = nn.functional.mse_loss(model(x), y)
            if guard is not None:
                guard.backward(loss)
                guard.step()
                return
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        loops[name] = step
    for step in loops.values():
        for _ in range(WARM):
            step()
    counter = Counter()
    counter.attach()
    times: dict[str, list[float]] = {"plain": [], "guarded": []}
    counts: dict[str, tuple[int, int]] = {"plain": (0, 0), "guarded": (0, 0)}
    for _ in range(max(1, steps // BLOCK)):
        for name, step in loops.items():
            before = counter.calls, counter.bytes
            for _ in range(BLOCK):
                began = time.perf_counter()
                step()
                times[name].append((time.perf_counter() - began) * 1e3)
            seen = counts[name]
            counts[name] = seen[0] + counter.calls - before[0], seen[1] + counter.bytes - before[1]
    exchanges = []
    for _ in range(max(50, steps)):
        flags = torch.zeros(FLAGS)
        began = time.perf_counter()
        dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        exchanges.append((time.perf_counter() - began) * 1e3)
    made = len(times["guarded"])
    result = {
        "ranks": world,
        "plain_ms": statistics.median(times["plain"]),
        "guarded_ms": statistics.median(times["guarded"]),
        "added_ms": statistics.median(times["guarded"]) - statistics.median(times["plain"]),
        "exchange_ms": statistics.median(exchanges),
        "calls_per_step": (counts["guarded"][0] - counts["plain"][0]) / made,
        "bytes_per_step": (counts["guarded"][1] - counts["plain"][1]) / made,
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
    smallest = min(rows, key=lambda row: row["ranks"])
    for row in rows:
        row["messages"] = messages(row["ranks"])
        row["model_ms"] = smallest["exchange_ms"] / messages(smallest["ranks"]) * row["messages"]
    if arguments.json:
        print(json.dumps({"cores": os.cpu_count(), "rows": rows}))
        return
    print(f"{os.cpu_count()} cores")
    print("ranks   plain ms   guarded ms   added ms   exchange alone ms   model ms   calls/step   bytes/step")
    for row in rows:
        print(
            f"{row['ranks']:5}   {row['plain_ms']:8.2f}   {row['guarded_ms']:10.2f}   {row['added_ms']:8.2f}   "
            f"{row['exchange_ms']:17.3f}   {row['model_ms']:8.3f}   {row['calls_per_step']:10.2f}   "
            f"{row['bytes_per_step']:10.0f}"
        )


def messages(ranks: int) -> int:
    """Messages one after the other in an all-reduce over a tree."""
    return 2 * math.ceil(math.log2(ranks)) if ranks > 1 else 1


if __name__ == "__main__":
    main()
