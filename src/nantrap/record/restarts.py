"""A run that a scheduler starts again: why it stopped, whether that will happen again, and what the scheduler is told.

A scheduler (torchrun, SLURM, Kubernetes, Ray) starts a run again that ended with an error. A bad sample or a wrong
setting ends the next attempt as well. So a stop has a kind, which `nantrap run --exit-by-kind` turns into an exit code,
and the journal remembers it: an attempt that comes to the same incident stops at once, and the attempt after that is
not made.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nantrap.errors import StopKind
from nantrap.incident.wording import some_of

if TYPE_CHECKING:
    from nantrap.incident import Incident

RUN_STOPS = "run_stops"
"""The kind of the journal's line about a stop."""
_COUNTERS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT", "NANTRAP_RESTART_COUNT")
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_TAIL = 1 << 16
_FAULTY_MACHINE = "hardware_fault"


@dataclass(frozen=True, slots=True)
class RunStop:
    """How an attempt was stopped.

    Attributes:
        step: the step at which it stopped.
        place: cause, phase, module and operation of its incident.
        samples: the dataset's indices of the guilty samples, or their places in the batch.
        indexed: `samples` are the dataset's indices.
        kind: `repeats`: the same will happen again unless something is changed. `hardware`: the machine is suspected.
            `spent`: the policy allows no further skip or rollback, and no cause was proven.
        repeated: the attempt before it had stopped in the same way.
    """

    step: int
    place: tuple[str, ...]
    samples: tuple[int, ...] = ()
    indexed: bool = False
    kind: StopKind = "spent"
    repeated: bool = False

    @classmethod
    def of(cls, incident: Incident, *, repeated: bool = False) -> RunStop:
        """The stop at an incident."""
        cause = incident.cause
        slug = "" if cause is None else cause.slug
        place = (slug, incident.phase, incident.module or "", incident.op or "")
        kind: StopKind = "spent"
        if slug == _FAULTY_MACHINE:
            kind = "hardware"
        elif repeated or (cause is not None and cause.proven):
            kind = "repeats"
        indexed = bool(incident.dataset_indices)
        samples = incident.dataset_indices if indexed else incident.samples
        return cls(incident.step, place, tuple(samples), indexed, kind, repeated)

    def is_like(self, other: RunStop) -> bool:
        """Whether two incidents are the same one: cause and place, and the samples of the dataset or the step."""
        if self.place != other.place or self.samples != other.samples or self.indexed != other.indexed:
            return False
        return self.indexed or self.step == other.step

    def in_words(self) -> str:
        """Cause and sample, or the step where the sample is not known."""
        cause = self.place[0] or "no known cause"
        where = f"step {self.step:,}"
        if self.samples:
            of = " of the dataset" if self.indexed else f" of the batch of {where}"
            where = f"sample {some_of([str(each) for each in self.samples], 5)}{of}"
        return f"{cause}, {where}"


def restart_count() -> int:
    """How often a scheduler has started this run again, as its environment says."""
    counts = [os.environ.get(name, "") for name in _COUNTERS]
    return max([int(count) for count in counts if count.isdigit()], default=0)


def last_stop(journal: Path) -> RunStop | None:
    """How the last attempt that wrote a journal was stopped; `None` if it was not, or is not known."""
    try:
        with journal.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            lines = file.read().splitlines()
    except OSError:
        return None
    for text in reversed(lines):
        try:
            line = json.loads(text)
        except ValueError:  # torn, or cut at the beginning of what was read
            continue
        kind = line.get("kind") if isinstance(line, dict) else None
        if kind == RUN_STOPS:
            return _read(line)
        if kind in (None, "run_starts"):  # a step, or a later attempt: it did not stop so
            return None
    return None


def line_of(stop: RunStop) -> dict[str, Any]:
    """The journal's line about a stop."""
    return {
        "step": stop.step,
        "kind": RUN_STOPS,
        "stop": stop.kind,
        "place": list(stop.place),
        "samples": list(stop.samples),
        "indexed": stop.indexed,
        "repeated": stop.repeated,
    }


def _read(line: Mapping[str, Any]) -> RunStop | None:
    try:
        kind: StopKind = line["stop"]
        place, samples = tuple(map(str, line["place"])), tuple(map(int, line["samples"]))
        return RunStop(int(line["step"]), place, samples, bool(line["indexed"]), kind, bool(line["repeated"]))
    except (KeyError, TypeError, ValueError):
        return None


def tell_launcher(text: str) -> None:
    """Write one line into the file from which `torchrun` prints why a worker ended, if there is one."""
    path = os.environ.get(_ERROR_FILE)
    if not path:
        return
    line = text.partition("\n")[0]
    extra = {"py_callstack": line, "timestamp": str(int(time.time()))}
    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"message": {"message": line, "extraInfo": extra}}, file)
    except OSError:
        return  # torchrun then prints that there is no message
