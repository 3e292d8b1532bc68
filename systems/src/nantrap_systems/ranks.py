"""One run in several real processes: a gloo group over a file, with a time-out that turns a hang into an error."""

from __future__ import annotations

import datetime
import hashlib
import json
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from nantrap.incident import Incident
from nantrap_systems.job import Job, start_method
from nantrap_systems.result import Result, measure

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
    result = replace(result, error="; ".join(errors) or None, ranks_agree=len({each["weights"] for each in found}) == 1)
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
        found = _measure(job, rank)
    finally:
        dist.destroy_process_group()
    Path(folder, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")


def _measure(job: Job, rank: int) -> dict[str, Any]:
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
