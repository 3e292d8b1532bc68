"""Tests that need several ranks: processes that join one group, run every scenario in turn, and write what they found.

A process takes seconds to start, so one pair of them runs all scenarios of a file. The results are read from files,
because a rank that fails or waits must not take the others' results with it.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from nantrap import Policy

Ranks = Callable[[str], list[dict[str, Any]]]
"""What each rank found in a scenario, by the scenario's name."""
Train = Callable[..., dict[str, Any]]


def policy_of(written: Mapping[str, Any]) -> Policy:
    """A policy that reached a rank as JSON: a group is a dict of its fields."""
    usual = Policy()
    made = {name: type(getattr(usual, name))(**value) for name, value in written.items() if isinstance(value, dict)}
    return Policy(**{**written, **made})


def join(rank: int, folder: str | Path, name: str = "group", *, world: int = 2, seconds: float = 90) -> None:
    """This process becomes one rank of a gloo group, on one thread.

    Args:
        rank: the number of this process.
        folder: where the ranks find each other.
        name: of the group; each group of a folder needs its own.
        world: how many ranks there are.
        seconds: how long a rank waits for the others.
    """
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/{name}.rendezvous",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=seconds),
    )
    _groups.append(dist.group.WORLD)


_groups: list[object] = []
"""Every group that this process joined, held until it leaves: the destructor of a gloo group can keep the GIL and wait
for a thread that needs it, with or without nantrap."""


@contextlib.contextmanager
def joined(rank: int, folder: str | Path, name: str = "group") -> Iterator[None]:
    """This process is one of two ranks for a while."""
    join(rank, folder, name)
    try:
        yield
    finally:
        dist.destroy_process_group()


def start(worker: Callable[..., None], *args: Any, world: int = 2) -> None:
    """Run `worker(rank, *args)` in a process per rank, and wait for all of them.

    Args:
        worker: a function of a test's module.
        args: what each rank is given.
        world: how many ranks there are.
    """
    if "forkserver" not in mp.get_all_start_methods():  # Windows
        mp.spawn(_run_and_leave, args=(worker, args), nprocs=world, join=True)  # type: ignore[no-untyped-call]
        return
    mp.set_forkserver_preload(_PRELOADED)
    mp.start_processes(  # type: ignore[no-untyped-call]
        _run_and_leave, args=(worker, args), nprocs=world, join=True, start_method="forkserver"
    )


_PRELOADED = ["pytest", "torch", "torch.distributed.fsdp", "torch._dynamo", "nantrap.guard", "ranked"]
"""What takes seconds to import: a rank is forked from a server that has it. The server starts no thread."""


def run_apart(command: Sequence[str], environment: Mapping[str, str], *, world: int = 2) -> list[tuple[int, str]]:
    """Run a program once for each rank, without a launcher: the exit codes, and what was written to stderr.

    Args:
        command: the program; it finds its rank in the environment.
        environment: what each rank has besides it.
        world: how many ranks there are.
    """
    ranks = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    try:
        said = [rank.communicate(timeout=200)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [(rank.returncode, words) for rank, words in zip(ranks, said, strict=True)]


def _run_and_leave(rank: int, worker: Callable[..., None], args: tuple[Any, ...]) -> None:
    """The process ends at once: where a group's threads end only together with Python, gloo can abort it, with or
    without nantrap."""
    worker(rank, *args)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def run_scenarios(train: Train, scenarios: Mapping[str, Mapping[str, Any]], folder: Path) -> Ranks:
    """Run `train(rank, folder, **options)` for the options of every scenario, on two ranks.

    Args:
        train: a function of a test's module; what it returns is written as JSON.
        scenarios: the options by name.
        folder: for the results, and one folder below it for each scenario.
    """
    start(_run_all, train, scenarios, str(folder))

    def results(name: str) -> list[dict[str, Any]]:
        read = [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(2)]
        assert not any("failed" in result for result in read), read
        return read

    return results


def _run_all(rank: int, train: Train, scenarios: Mapping[str, Mapping[str, Any]], folder: str) -> None:
    for name, options in scenarios.items():
        try:
            with joined(rank, folder, name):
                result = train(rank, f"{folder}/{name}", **options)
                dist.barrier()
        except Exception as error:
            result = {"failed": f"{type(error).__name__}: {error}"}
        Path(folder, f"{name}-{rank}.json").write_text(json.dumps(result))
