"""A run by names, so that any process can make it."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nantrap_systems import load_system
from nantrap_systems.result import Result, measure
from nantrap_systems.system import Run


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
        return system.run(fault=fault, remedy=remedy, repaired=self.repaired, changes=self.changes, seed=self.seed)


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_method() -> str:
    """Processes are forked off one that has imported torch and done nothing more; where that is not possible, they are
    started separately."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return "spawn"
    multiprocessing.get_context("forkserver").set_forkserver_preload(["nantrap_systems.warm"])
    return "forkserver"


class Apart:
    """Runs of one process each, in parallel with this one; `results` waits for them, in the order in which they were
    given."""

    def __init__(self, jobs: Sequence[Job], at_a_time: int) -> None:
        self._pool = ProcessPoolExecutor(at_a_time, mp_context=multiprocessing.get_context(start_method()))
        self._waiting: list[Future[Result]] = [self._pool.submit(_measure, job) for job in jobs]

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown(wait=exception[0] is None, cancel_futures=True)

    def results(self) -> list[Result]:
        """Their results."""
        return [future.result() for future in self._waiting]


def _measure(job: Job) -> Result:
    torch.set_num_threads(1)
    return measure(job.name, job.make(), job.steps, guarded=job.guarded, run_dir=job.run_dir, quiet=job.quiet)[0]
