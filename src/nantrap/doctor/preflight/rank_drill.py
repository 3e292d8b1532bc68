"""A fault on one rank of two real processes: both must skip the same step, and their weights must stay equal.

The factory is run in two processes of this machine, which average their gradients over gloo, as data-parallel training
does. One of them gets the fault. Run as `python -m nantrap.doctor.preflight.rank_drill`, with a job as JSON.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nantrap.doctor.preflight.report import PreflightCheck
from nantrap.record.durable import write_atomically

_RANKS = 2
_AT = 1
_STEPS = 3
_FAULTS = ("activation", "grad")
_NAME = "guard on two ranks"


@contextlib.contextmanager
def ranks_in_waiting(target: str) -> Iterator[Callable[[], PreflightCheck]]:
    """Two processes that import and make the model while other checks run, and wait; the call lets them begin.

    Most of the time of this drill is the start of two programs with torch.

    Args:
        target: `module:factory`; only what can be imported can be run in another process.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = {"target": target, "folder": folder, "path": [os.getcwd(), *filter(None, sys.path)]}
        processes = [_start(job, rank) for rank in range(_RANKS)]
        try:
            yield functools.partial(_finish, processes, folder)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.communicate()


def check_ranks(target: str) -> PreflightCheck:
    """Run the drill in separate processes.

    Args:
        target: `module:factory`.
    """
    with ranks_in_waiting(target) as finish:
        return finish()


def _finish(processes: list[subprocess.Popen[str]], folder: str, *, seconds: float = 180.0) -> PreflightCheck:
    """Let the processes begin, and judge what they found."""
    for process in processes:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended already; its words are read below
            process.stdin.write("begin\n")
            process.stdin.flush()
    errors = []
    end = time.monotonic() + seconds
    try:
        for process in processes:
            errors.append(process.communicate(timeout=max(0.0, end - time.monotonic()))[1])
    except subprocess.TimeoutExpired:
        return PreflightCheck(_NAME, "unjudged", f"not finished after {seconds:.0f} s")
    found = [_result(folder, rank) for rank in range(_RANKS)]
    failed = next((error for error, result in zip(errors, found, strict=True) if result is None), None)
    if failed is not None:
        reason = failed.strip().splitlines()[-1][:160] if failed.strip() else "no reason was given"
        return PreflightCheck(_NAME, "unjudged", f"cannot be run in two processes: {reason}")
    return _judge([result for result in found if result is not None])


def _start(job: dict[str, Any], rank: int) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    environment["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, "-m", "nantrap.doctor.preflight.rank_drill", json.dumps({**job, "rank": rank})]
    environment["PYTHONPATH"] = os.pathsep.join(job["path"])
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def _result(folder: str, rank: int) -> dict[str, Any] | None:
    path = Path(folder, f"{rank}.json")
    return json.loads(path.read_text()) if path.exists() else None


def _judge(found: list[dict[str, Any]]) -> PreflightCheck:
    """Whether both ranks skipped the same step and kept equal, finite weights under every fault."""
    held: list[str] = []
    broken: list[str] = []
    for kind in _FAULTS:
        first, second = (result[kind] for result in found)
        expected = [step != _AT for step in range(_STEPS)]
        together = first["applied"] == second["applied"] and first["weights"] == second["weights"]
        tolerated = second["applied"] == [True] * _STEPS  # the fault did not reach the loss
        good = second["injected"] and first["finite"] and second["finite"] and together
        (held if good and (second["applied"] == expected or tolerated) else broken).append(kind)
    values = {"held": held, "broken": broken, "ranks": _RANKS}
    if broken:
        text = f"a fault on rank 1 is not contained: {', '.join(broken)}"
        return PreflightCheck(_NAME, "error", text, "report this loop to the project", values)
    text = (
        f"a fault on rank 1 is contained on both ({', '.join(held)}): the same step is skipped, the weights stay equal"
    )
    return PreflightCheck(_NAME, "ok", text, data=values)


# ---- one of the two processes


def _main(job: dict[str, Any]) -> None:
    """One of the two ranks: wait until the drill is wanted, run every fault, and write the results."""
    import torch
    import torch.distributed as dist

    from nantrap.doctor.preflight.subject import make_subject

    torch.set_num_threads(1)
    rank = job["rank"]
    subject = make_subject(job["target"], {})
    if not sys.stdin.readline():  # the preflight ended, or needs no drill
        return
    dist.init_process_group(
        "gloo",
        init_method=f"file://{job['folder']}/rendezvous",
        rank=rank,
        world_size=_RANKS,
        timeout=datetime.timedelta(seconds=120),
    )
    result = {kind: _loop(subject, kind) for kind in _FAULTS}
    write_atomically(Path(job["folder"], f"{rank}.json"), json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def _loop(subject: Any, kind: str) -> dict[str, Any]:
    """A few steps with one fault on rank 1; what was applied, and a hash of the weights."""
    import torch
    import torch.distributed as dist

    from nantrap.faults import inject
    from nantrap.guard import Guard, Policy, Rollback

    fresh = subject.fresh()
    policy = Policy(
        diagnose="off", bundle="off", spikes="off", max_consecutive_skips=10, rollback=Rollback(anchor_every=0)
    )
    for parameter in fresh.model.parameters():
        if parameter.requires_grad:
            parameter.register_hook(_averaged)
    torch.manual_seed(0)
    applied = []
    with (
        Guard(fresh.model, fresh.optimizer, policy=policy, quiet=True, process_group=dist.group.WORLD) as guard,
        inject(f"{kind}:step={_AT},seed=1,rank=1", model=fresh.model, optimizer=fresh.optimizer) as faults,
    ):
        for _ in range(_STEPS):
            applied.append(guard.attempt(fresh.loss_of, copy.deepcopy(subject.batch)).applied)
    weights = hashlib.sha256()
    for parameter in fresh.model.parameters():
        weights.update(parameter.detach().double().contiguous().numpy().tobytes())
    finite = all(bool(parameter.isfinite().all()) for parameter in fresh.model.parameters())
    return {"applied": applied, "finite": finite, "weights": weights.hexdigest(), "injected": len(faults.injected)}


def _averaged(gradient: Any) -> Any:
    """The mean of all ranks, as data-parallel training takes it."""
    import torch.distributed as dist

    mean = gradient.clone()
    dist.all_reduce(mean)
    return mean / _RANKS


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
