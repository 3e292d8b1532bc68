"""A run, trained for some steps and examined: here, in another process, or in several that train together.

Result              what became of a run
measure             train it here, plain or guarded, and look at what is left
Job                 a run by names, as plain values, so that any process can make it
Apart               jobs in processes of their own, in parallel with this one
measure_together    one job in several real processes: a gloo group, with a time-out that turns a hang into an error
measure_outside     one job in its own loop, unchanged, under `nantrap run`
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from nantrap import finite
from nantrap.errors import NonFiniteError
from nantrap.guard import Diagnosis
from nantrap.incident import Incident
from nantrap.record import open_run
from nantrap_systems import load_system
from nantrap_systems.system import Fault, Remedy, Run, System
from nantrap_systems.training import Step, guard_of, mean_of_last, train

DIAGNOSIS = Diagnosis(repeats=1)
"""In a demo the first of incidents that look alike is diagnosed, and the others refer to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one run.

    Attributes:
        name: `clean`, `plain`, the name of a remedy, or `nantrap`.
        steps: how many were tried; fewer than asked for if the run ended early.
        applied: how many moved the weights.
        first_bad: the first step whose loss was not finite.
        final_loss: the mean of the last ten training losses, of applied steps under the guard.
        held_out_loss: on held-out data at the end.
        quality: the system's figure at the end.
        state_finite: whether every parameter and buffer is finite at the end.
        incidents: how many there were.
        rollbacks: how often the guard went back to an older state.
        stopped: whether the guard stopped the run.
        error: what ended the run early, if an exception did; a hang ends as the time-out of the group.
        ranks_agree: whether all processes ended with the same weights; `None` if there was only one.
        skipped_alike: whether all processes left the same steps out; `None` if there was only one.
        seconds: how long it took, diagnosis included.
        losses: of every step that was tried.
        skipped: the steps that did not move the weights.
    """

    name: str
    steps: int
    applied: int
    first_bad: int | None
    final_loss: float
    held_out_loss: float
    quality: float
    state_finite: bool
    incidents: int = 0
    rollbacks: int = 0
    stopped: bool = False
    error: str | None = None
    ranks_agree: bool | None = None
    skipped_alike: bool | None = None
    seconds: float = 0.0
    losses: Sequence[float] = ()
    skipped: Sequence[int] = ()


def measure(
    name: str, run: Run, steps: int, *, guarded: bool = False, run_dir: Path | None = None, quiet: bool = False
) -> tuple[Result, Incident | None]:
    """Train for a number of steps, plain or guarded: the result, and the guard's first incident."""
    began = time.perf_counter()
    done: list[Step] = []
    incidents: list[Incident] = []
    stopped, failure = False, None
    guard = guard_of(run, run_dir=run_dir, quiet=quiet, diagnosis=DIAGNOSIS) if guarded else None
    try:
        for step in train(run, steps=steps, guard=guard):
            done.append(step)
            incidents += [step.incident] if step.incident is not None else []
    except NonFiniteError as error:
        stopped = True
        done.append(Step(len(done), math.nan, False))
        incidents.append(error.incident)
    except Exception as error:  # whatever ends a run early is a part of its story
        failure = _first_line(error)
    finally:
        if guard is not None:
            guard.close()
    found = run.evaluate()
    state: list[torch.Tensor] = [*run.model.parameters(), *run.model.buffers()]
    result = Result(
        name=name,
        steps=len(done) + (failure is not None),
        applied=sum(step.applied for step in done),
        first_bad=next((step.number for step in done if not math.isfinite(step.loss)), None),
        final_loss=mean_of_last([step.loss for step in done if step.applied]),
        held_out_loss=found.loss,
        quality=found.quality,
        state_finite=not finite.any_nonfinite(state),
        incidents=len(incidents),
        rollbacks=guard.tally.rollbacks if guard is not None else 0,
        stopped=stopped,
        error=failure,
        seconds=time.perf_counter() - began,
        losses=[step.loss for step in done],
        skipped=[step.number for step in done if not step.applied],
    )
    return result, incidents[0] if incidents else None


def _first_line(error: Exception) -> str:
    """What an error says; of one that a line of C++ raised, its first sentence without that line."""
    text = str(error).strip().split("\n", 1)[0]
    if raised := re.match(r"\[[^]]*\]\s*", text):
        text = text[raised.end() :].split(". ", 1)[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# ---- in another process


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One way to run a fault, as plain values."""

    name: str
    system: str
    fault: str
    remedy: str | None
    repaired: bool
    guarded: bool
    steps: int
    seed: int
    changes: Mapping[str, Any]
    run_dir: Path | None
    quiet: bool

    def make(self) -> Run:
        """The run, before its first step."""
        system = load_system(self.system)
        fault = system.fault(self.fault)
        remedy = next((each for each in fault.remedies if each.name == self.remedy), None)
        return demo_run(system, fault, remedy, self.steps, repaired=self.repaired, changes=self.changes, seed=self.seed)


def demo_run(system: System, fault: Fault, remedy: Remedy | None, steps: int, **how: Any) -> Run:
    """The run of which the first steps are shown: as long as it is configured, longer if more steps are shown."""
    return system.run(fault=fault, remedy=remedy, steps=max(steps, system.settings_of().length.steps), **how)


_PRELOADED = ["torch._dynamo", "nantrap_systems.showcase"]
"""What every training process would import for itself; the first optimizer imports the first, which takes seconds."""


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_method() -> str:
    """Processes are forked off one that has imported torch and done nothing more; where that is not possible, they are
    started separately."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return "spawn"
    multiprocessing.get_context("forkserver").set_forkserver_preload(_PRELOADED)
    return "forkserver"


class Apart:
    """Runs of one process each, in parallel with this one; `results` waits for them, in the order in which they were
    given."""

    def __init__(self, jobs: Sequence[Job], at_a_time: int) -> None:
        self._pool = ProcessPoolExecutor(at_a_time, mp_context=multiprocessing.get_context(start_method()))
        self._waiting: list[Future[Result]] = [self._pool.submit(_measure_apart, job) for job in jobs]

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown(wait=exception[0] is None, cancel_futures=True)

    def results(self) -> list[Result]:
        """Their results."""
        return [future.result() for future in self._waiting]


def _measure_apart(job: Job) -> Result:
    torch.set_num_threads(1)
    return measure(job.name, job.make(), job.steps, guarded=job.guarded, run_dir=job.run_dir, quiet=job.quiet)[0]


# ---- in several processes that train together

HANG_SECONDS = 8
"""How long a collective of an unguarded run may wait."""
DIAGNOSIS_SECONDS = 60
"""How long one of a guarded run may: one rank looks for the cause while the others wait."""


def measure_together(job: Job, processes: int) -> tuple[Result, Incident | None, tuple[str, ...]]:
    """The run in several processes: what rank 0 saw, the first incident where it began, the notes; all errors."""
    with tempfile.TemporaryDirectory(prefix="nantrap-ranks-") as folder:
        start_processes(_process, (job, processes, folder), nprocs=processes, start_method=start_method())
        found = [json.loads(Path(folder, f"{rank}.json").read_text(encoding="utf-8")) for rank in range(processes)]
    result = Result(**found[0]["result"])
    errors = [f"rank {rank}: {each['result']['error']}" for rank, each in enumerate(found) if each["result"]["error"]]
    result = replace(
        result,
        error="; ".join(errors) or None,
        ranks_agree=len({each["weights"] for each in found}) == 1,
        skipped_alike=all(each["result"]["skipped"] == found[0]["result"]["skipped"] for each in found),
    )
    incidents = [Incident.from_dict(each["incident"]) for each in found if each["incident"]]
    first = min(incidents, key=lambda each: (each.step, not each.causes), default=None)
    return result, first, tuple(found[0]["notes"])


def _process(rank: int, job: Job, processes: int, folder: str) -> None:
    """One rank: join the others, measure, and write the result to the folder."""
    torch.set_num_threads(1)
    seconds = DIAGNOSIS_SECONDS if job.guarded else HANG_SECONDS
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=processes,
        timeout=datetime.timedelta(seconds=seconds),
    )
    try:
        found = _measure_rank(job, rank)
    finally:
        dist.destroy_process_group()
    Path(folder, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")


def _measure_rank(job: Job, rank: int) -> dict[str, Any]:
    """The result of this rank as plain data, with a hash of its weights to compare the ranks."""
    run = job.make()
    quiet = job.quiet or rank != 0
    result, incident = measure(job.name, run, job.steps, guarded=job.guarded, run_dir=job.run_dir, quiet=quiet)
    weights = hashlib.sha256()
    for parameter in run.model.parameters():
        weights.update(parameter.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return {
        "result": asdict(result),
        "incident": incident.to_dict() if incident else None,
        "notes": run.notes,
        "weights": weights.hexdigest(),
    }


# ---- in its own loop, guarded from outside


def measure_outside(job: Job) -> tuple[Result, Incident | None, tuple[str, ...]]:
    """The faulty loop as it is, under `nantrap run`: its result, the first incident, the lines of the summary."""
    with tempfile.TemporaryDirectory(prefix="nantrap-outside-") as folder:
        run_dir = job.run_dir or Path(folder, "run")
        given, found = Path(folder, "job.json"), Path(folder, "result.json")
        given.write_text(json.dumps({**asdict(job), "guarded": False, "run_dir": None}), encoding="utf-8")
        command = [sys.executable, "-m", "nantrap", "run", "--run-dir", str(run_dir)]
        command += ["-m", "nantrap_systems.measuring", str(given), str(found)]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, encoding="utf-8", check=False)
        if not job.quiet:
            sys.stderr.write(done.stderr)
        if not found.is_file():
            raise RuntimeError(f"nantrap run ended with {done.returncode}: {done.stderr.strip()[-500:]}")
        result = Result(**json.loads(found.read_text(encoding="utf-8")))
        guarded = open_run(run_dir)
        incidents = sorted((each.incident for each in guarded.incidents if each.incident), key=lambda each: each.step)
        tally, journal = guarded.tally(), (run_dir / "journal-r0.jsonl").read_text(encoding="utf-8")
    lines = [line.removeprefix("nantrap: ").strip() for line in done.stderr.splitlines() if line.startswith("nantrap:")]
    summary = next((n for n, line in enumerate(lines) if line.startswith(f"{result.steps} steps, ")), len(lines))
    steps = [row for row in map(json.loads, journal.splitlines()) if "action" in row]
    result = replace(
        result,
        applied=tally.applied,
        skipped=[row["step"] for row in steps if row["action"] != "apply"],
        incidents=tally.incidents,
        rollbacks=tally.rollbacks,
    )
    notes = tuple(line for line in lines[summary + 1 :] if not line.startswith("report: "))
    return result, incidents[0] if incidents else None, notes


def _measure_job(given: str, found: str) -> None:
    """In the process of `nantrap run`: an ordinary script that trains in its own loop and writes its result."""
    torch.set_num_threads(1)
    job = Job(**json.loads(Path(given).read_text(encoding="utf-8")))
    result, _ = measure(job.name, job.make(), job.steps)
    Path(found).write_text(json.dumps(asdict(result)), encoding="utf-8")


if __name__ == "__main__":
    _measure_job(*sys.argv[1:])
