"""Several processes that average their gradients, and a script under `nantrap run`, on the device that is tested."""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from nantrap.doctor.selftest.training import FIRST, DidNotHold, NotHere, Recipe, Training, how_it_was_read

_SECONDS: Final = 60.0
_OF_ALL_PROCESSES: Final = frozenset({"cpu", "cuda", "mps", "xpu"})
"""Kinds of devices that any program with torch finds; others must be loaded by the program."""
_SCRIPT: Final = """
import hashlib, sys, torch
from torch import nn

device, bad, result = torch.device(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
draws = torch.Generator().manual_seed(7)
for step in range(14):
    x, y = torch.randn(8, 6, generator=draws).to(device), torch.randn(8, 3, generator=draws).to(device)
    if step == 10:
        if bad == 2:
            continue
        x = x * float("nan") if bad else x
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
words = b"".join(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
                 for value in model.state_dict().values() if value.dim())
open(result, "w").write(hashlib.sha256(words).hexdigest())
"""


def check_script(device: torch.device) -> str:
    """A script under `nantrap run`, healthy and with a bad batch, against the script alone."""
    _needs_a_device_of_all_processes(device)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(_SCRIPT, encoding="utf-8")
        run = [sys.executable, "-m", "nantrap", "run", "--run-dir"]
        commands = {
            "plain": [sys.executable, str(script), str(device), "0"],
            "without the batch": [sys.executable, str(script), str(device), "2"],
            "guarded": [*run, str(Path(folder, "a")), str(script), str(device), "0"],
            "guarded, bad batch": [*run, str(Path(folder, "b")), str(script), str(device), "1"],
        }
        files = {name: Path(folder, f"{number}.txt") for number, name in enumerate(commands)}
        words = _run_all({name: [*command, str(files[name])] for name, command in commands.items()}, folder)
        ended = {name: file.read_text() if file.exists() else "" for name, file in files.items()}
    for name in ("plain", "guarded", "guarded, bad batch"):
        if not ended[name]:
            raise DidNotHold(f"the script ({name}) did not end: {words[name]}")
    if ended["guarded"] != ended["plain"]:
        raise DidNotHold("the weights of a healthy run are not bit for bit those of the script alone")
    if ended["guarded, bad batch"] != ended["without the batch"]:
        raise DidNotHold("after a bad batch the weights are not those of a script that never met it")
    return "healthy: bit for bit the script alone; bad batch: as if it never was"


def check_ranks(device: torch.device) -> str:
    """Two processes (on CUDA as many as there are GPUs, at most two) that train one model; one gets a bad batch."""
    _needs_a_device_of_all_processes(device)
    backend = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}.get(device.type, "")
    if not dist.is_available() or not backend or not dist.is_backend_available(backend):
        raise NotHere(f"no backend of torch.distributed for {device.type} here")
    size = 2 if device.type == "cpu" else min(2, torch.accelerator.device_count())
    with tempfile.TemporaryDirectory() as folder:
        jobs = [
            {"folder": folder, "rank": rank, "size": size, "backend": backend, "kind": device.type}
            for rank in range(size)
        ]
        command = [sys.executable, "-m", "nantrap.doctor.selftest.processes"]
        words = _run_all({str(job["rank"]): [*command, json.dumps(job)] for job in jobs}, folder)
        files = [Path(folder, f"{rank}.json") for rank in range(size)]
        found = {rank: json.loads(file.read_text()) for rank, file in enumerate(files) if file.exists()}
    who = f"{size} process{'es' * (size > 1)} with {backend}"
    for rank in range(size):
        if rank not in found:
            raise DidNotHold(f"{who}: rank {rank} did not end: {words[str(rank)]}")
    first = found[0]
    if any(result[way] != first[way] for result in found.values() for way in ("plain", "healthy", "without", "bad")):
        raise DidNotHold(f"{who} do not hold the same weights")
    if first["healthy"] != first["plain"]:
        raise DidNotHold(f"{who}: a healthy run is not bit for bit the plain one")
    if first["bad"] != first["without"]:
        raise DidNotHold(f"{who}: after a bad batch on one of them the weights are not those of a run without it")
    read = "" if device.type == "cpu" else f"; read {first['read']}"
    return f"{who}: healthy as plain; a bad batch on one is skipped by all{read}"


def _needs_a_device_of_all_processes(device: torch.device) -> None:
    if device.type not in _OF_ALL_PROCESSES:
        raise NotHere(f"another process would not find a device of type {device.type}")


def _run_all(commands: dict[str, list[str]], folder: str) -> dict[str, str]:
    """Run all commands at the same time, end those that take too long, and return the last line of their errors."""
    own = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    own |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    processes, errors = [], {name: Path(folder, f"errors-{number}.txt") for number, name in enumerate(commands)}
    for name, command in commands.items():
        with errors[name].open("w", encoding="utf-8") as stream:
            processes.append(subprocess.Popen(command, env=own, cwd=folder, stdout=subprocess.DEVNULL, stderr=stream))
    end = time.monotonic() + _SECONDS
    for process in processes:
        try:
            process.wait(timeout=max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    lines = {name: file.read_text(encoding="utf-8", errors="replace").splitlines() for name, file in errors.items()}
    return {name: (given or [f"it took longer than {_SECONDS:.0f} s"])[-1][:160] for name, given in lines.items()}


# ---- one of several processes


def _train(job: dict[str, Any]) -> None:
    """All runs, one after the other; a hash of the weights after each of them."""
    rank, folder = job["rank"], job["folder"]
    device = torch.device(job["kind"], rank) if job["kind"] != "cpu" else torch.device("cpu")
    if device.type != "cpu":
        torch.accelerator.set_device_index(rank)
    dist.init_process_group(
        job["backend"], init_method=f"file://{folder}/rendezvous", rank=rank, world_size=job["size"],
        timeout=datetime.timedelta(seconds=_SECONDS),
    )  # fmt: skip
    result = {}
    for way in ("plain", "without", "healthy", "bad"):
        run = Training(Recipe(wrap=_distributed), device)
        windows = run.windows()
        if way in ("plain", "without"):
            run.plain(windows)
        else:
            x, y = windows[0][0]
            bad = (x * math.nan if rank == job["size"] - 1 else x, y)
            with run.guard(f"{folder}/{way}", diagnose="off") as guard:
                between = [[bad]] if way == "bad" else []
                run.guarded(guard, "two lines", [*windows[:FIRST], *between, *windows[FIRST:]])
            result["read"] = how_it_was_read(f"{folder}/{way}")
        weights = hashlib.sha256()
        for name, value in sorted(run.state(streams=False).items()):
            if name.startswith("parameter"):
                weights.update(value)
        result[way] = weights.hexdigest()
    Path(folder, f"{rank}.json").write_text(json.dumps(result), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def _distributed(model: nn.Module, batch: Any) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


if __name__ == "__main__":
    _train(json.loads(sys.argv[1]))
