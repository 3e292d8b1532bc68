"""Faults are injected into the user's own loop, and the guard must contain them. With its measured cost in that loop.

On two ranks: the factory is run in two processes of this machine, which average their gradients over gloo, as
data-parallel training does. One of them gets the fault: both must skip the same step, and their weights must stay
equal. Each is run as `python -m nantrap.doctor.preflight.drill`, with a job as JSON.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import functools
import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from nantrap.doctor.preflight.report import PreflightCheck
from nantrap.doctor.preflight.subject import Subject, make_subject, quiet
from nantrap.errors import NonFiniteError
from nantrap.faults import inject
from nantrap.guard import Guard, Policy, Rollback
from nantrap.record.durable import write_atomically

_PASSING = ("batch", "activation", "loss", "grad")
"""Faults that are over after the step: the next one must be applied again."""
_STAYING = ("param", "buffer", "optimizer")
"""Faults that stay in the state: they must be noticed in a step or, where no step reads them, when it is saved."""
_TOP_BITS = {torch.float64: 62, torch.float32: 30, torch.float16: 14, torch.bfloat16: 14}
"""The bit that makes a small number a huge one."""
_AT = 1
"""The step that gets the fault: a good one before it, so that the optimizer has a state, and one after it."""
_STEPS = 3
_RANKS = 2
_RANK_FAULTS = ("activation", "grad")
_RANKS_NAME = "guard on two ranks"
_ROUNDS = 11
_COST_SECONDS = 4.0
_POLICY = Policy(
    diagnose="off", bundle="off", spikes="off", max_consecutive_skips=10, rollback=Rollback(anchor_every=0)
)


def check_guard(subject: Subject) -> PreflightCheck:
    """One fault of each kind in a loop of three steps, and one in a checkpoint."""
    verdicts = {kind: _drill(subject, kind) for kind in (*_PASSING, *_STAYING, "bitflip")}
    verdicts["checkpoint"] = _checkpoint(subject)
    held = [kind for kind, verdict in verdicts.items() if verdict is True]
    broken = [kind for kind, verdict in verdicts.items() if verdict is False]
    skipped = [kind for kind, verdict in verdicts.items() if verdict is None]
    values = {"held": held, "broken": broken, "not_applicable": skipped}
    text = f"{len(held)} of {len(held) + len(broken)} kinds of faults contained: {', '.join(held)}"
    if broken:
        return PreflightCheck(
            "guard", "error", f"not held: {', '.join(broken)}", "report this loop to the project", values
        )
    return PreflightCheck("guard", "ok", text, data=values)


def _drill(subject: Subject, kind: str) -> bool | None:
    """Whether the guard held; `None` if the model has nothing of the kind to hit."""
    fresh = subject.fresh()
    model, optimizer = fresh.model, fresh.optimizer
    torch.manual_seed(0)
    applied: list[bool] = []
    losses: list[float] = []
    noticed = False
    with (
        quiet(),
        Guard(model, optimizer, max_grad_norm=None, policy=_POLICY, quiet=True) as guard,
        inject(_fault(kind, fresh), model=model, optimizer=optimizer) as faults,
    ):
        for _ in range(_STEPS):
            try:
                outcome = guard.attempt(fresh.loss_of, copy.deepcopy(subject.batch))
            except NonFiniteError:  # stopping is holding, too
                noticed = True
                break
            applied.append(outcome.applied)
            losses.append(outcome.loss)
            noticed = noticed or outcome.incident is not None
        if kind in _STAYING:  # a row of an embedding that no batch looks up harms no step
            noticed = noticed or _is_refused(guard)
    if not faults.injected:
        return None
    if kind in _STAYING:
        return noticed
    finite = all(bool(parameter.isfinite().all()) for parameter in model.parameters())
    if kind == "bitflip":  # a huge weight behind a normalisation does no harm, and then nothing is there to notice
        return noticed or (finite and all(map(math.isfinite, losses)))
    return finite and applied.count(False) == noticed  # the step of the fault alone, if it did any harm


def _fault(kind: str, subject: Subject) -> str:
    """The fault as text, the same in every preflight of this model."""
    text = f"{kind}:step={_AT},seed=1"
    if kind != "bitflip":
        return text
    dtype = next(parameter.dtype for parameter in subject.model.parameters() if parameter.is_floating_point())
    return f"{text},bit={_TOP_BITS.get(dtype, 14)}"


def _checkpoint(subject: Subject) -> bool:
    """A file that was damaged when it was written is found, and a state that is not finite is not written at all."""
    from nantrap.checkpoints.audit import audit

    fresh = subject.fresh()
    with tempfile.TemporaryDirectory() as folder:
        written = os.path.join(folder, "written.pt")
        with inject("checkpoint:step=0,seed=1"):
            torch.save({"model": fresh.model.state_dict()}, written)
        found = not audit(written).healthy
    with quiet(), Guard(fresh.model, fresh.optimizer, policy=_POLICY, quiet=True) as guard:
        weight = next(parameter for parameter in fresh.model.parameters() if parameter.is_floating_point())
        with torch.no_grad():
            weight.view(-1)[0] = math.nan
        return found and _is_refused(guard)


def _is_refused(guard: Guard) -> bool:
    """Whether the guard does not write the present state."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "refused.safetensors")
        try:
            guard.save(path)
        except NonFiniteError:
            return not os.path.exists(path)
    return False


def check_cost(subject: Subject) -> PreflightCheck:
    """Plain and guarded steps in turns on two copies; medians, since other programs use the machine too."""
    bare, held = subject.fresh(), subject.fresh()
    plain: list[float] = []
    guarded: list[float] = []
    begin = time.perf_counter()
    with (
        quiet(),
        Guard(
            held.model,
            held.optimizer,
            max_grad_norm=None,
            policy=Policy(bundle="off", diagnose="off"),
            quiet=True,
        ) as guard,
    ):
        for number in range(_ROUNDS + 1):
            first = time.perf_counter()
            _plain_step(bare)
            second = time.perf_counter()
            guard.attempt(held.loss_of, subject.batch)
            third = time.perf_counter()
            if number:  # the first step allocates
                plain.append(second - first)
                guarded.append(third - second)
            if third - begin > _COST_SECONDS and len(plain) >= 3:
                break
    before, after = 1e3 * statistics.median(plain), 1e3 * statistics.median(guarded)
    share = (after - before) / before
    text = f"{before:.3g} ms per plain step, {after:.3g} ms guarded ({share:+.1%}, median of {len(plain)})"
    return PreflightCheck("guard cost", "ok", text, data={"plain_ms": before, "guarded_ms": after, "share": share})


def _plain_step(subject: Subject) -> None:
    subject.optimizer.zero_grad()
    subject.total_loss(subject.batch).backward()
    subject.optimizer.step()


@contextlib.contextmanager
def ranks_in_waiting(target: str) -> Iterator[Callable[[], PreflightCheck]]:
    """Two processes that import and make the model while other checks run, and wait; the call lets them begin.

    Most of the time of this drill is the start of two programs with torch.

    Args:
        target: `module:factory`; only what can be imported can be run in another process.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = {"target": target, "folder": folder, "path": [os.getcwd(), *filter(None, sys.path)]}
        processes = [_start_rank(job, rank) for rank in range(_RANKS)]
        try:
            yield functools.partial(_finish_ranks, processes, folder)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.communicate()


def _finish_ranks(processes: list[subprocess.Popen[str]], folder: str, *, seconds: float = 180.0) -> PreflightCheck:
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
        return PreflightCheck(_RANKS_NAME, "unjudged", f"not finished after {seconds:.0f} s")
    found = [_rank_result(folder, rank) for rank in range(_RANKS)]
    failed = next((error for error, result in zip(errors, found, strict=True) if result is None), None)
    if failed is not None:
        reason = failed.strip().splitlines()[-1][:160] if failed.strip() else "no reason was given"
        return PreflightCheck(_RANKS_NAME, "unjudged", f"cannot be run in two processes: {reason}")
    return _judge_ranks([result for result in found if result is not None])


def _start_rank(job: dict[str, Any], rank: int) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    environment["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, "-m", "nantrap.doctor.preflight.drill", json.dumps({**job, "rank": rank})]
    environment["PYTHONPATH"] = os.pathsep.join(job["path"])
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def _rank_result(folder: str, rank: int) -> dict[str, Any] | None:
    path = Path(folder, f"{rank}.json")
    return json.loads(path.read_text()) if path.exists() else None


def _judge_ranks(found: list[dict[str, Any]]) -> PreflightCheck:
    """Whether both ranks skipped the same step and kept equal, finite weights under every fault."""
    held: list[str] = []
    broken: list[str] = []
    for kind in _RANK_FAULTS:
        first, second = (result[kind] for result in found)
        expected = [step != _AT for step in range(_STEPS)]
        together = first["applied"] == second["applied"] and first["weights"] == second["weights"]
        tolerated = second["applied"] == [True] * _STEPS  # the fault did not reach the loss
        good = second["injected"] and first["finite"] and second["finite"] and together
        (held if good and (second["applied"] == expected or tolerated) else broken).append(kind)
    values = {"held": held, "broken": broken, "ranks": _RANKS}
    if broken:
        text = f"a fault on rank 1 is not contained: {', '.join(broken)}"
        return PreflightCheck(_RANKS_NAME, "error", text, "report this loop to the project", values)
    text = (
        f"a fault on rank 1 is contained on both ({', '.join(held)}): the same step is skipped, the weights stay equal"
    )
    return PreflightCheck(_RANKS_NAME, "ok", text, data=values)


# ---- one of the two processes


def _run_rank(job: dict[str, Any]) -> None:
    """One of the two ranks: wait until the drill is wanted, run every fault, and write the results."""
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
    result = {kind: _drill_rank(subject, kind) for kind in _RANK_FAULTS}
    write_atomically(Path(job["folder"], f"{rank}.json"), json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def _drill_rank(subject: Subject, kind: str) -> dict[str, Any]:
    """A few steps with one fault on rank 1; what was applied, and a hash of the weights."""
    fresh = subject.fresh()
    for parameter in fresh.model.parameters():
        if parameter.requires_grad:
            parameter.register_hook(_averaged)
    torch.manual_seed(0)
    applied = []
    with (
        Guard(fresh.model, fresh.optimizer, policy=_POLICY, quiet=True, process_group=dist.group.WORLD) as guard,
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
    mean = gradient.clone()
    dist.all_reduce(mean)
    return mean / _RANKS


if __name__ == "__main__":
    _run_rank(json.loads(sys.argv[1]))
