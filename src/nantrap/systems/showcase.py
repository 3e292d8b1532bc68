"""One fault, run several ways from one seed: repaired, plain, with each historic remedy, and under the guard.

Result      what became of one of these runs
Showcase    all of them, and the first incident; a table and JSON
show        run them
"""

from __future__ import annotations

import fnmatch
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from nantrap import finite
from nantrap.errors import NonFiniteError
from nantrap.incident import Incident
from nantrap.systems.system import Fault, Run, System
from nantrap.systems.training import Step, guard_of, mean_of_last, train

SCHEMA = "nantrap.demo/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one run.

    Attributes:
        name: `clean`, `plain`, the name of a remedy, or `nantrap`.
        steps: how many were tried; fewer than asked for if the guard stopped the run.
        applied: how many moved the weights.
        first_bad: the first step whose loss was not finite.
        final_loss: the mean of the last ten training losses, of applied steps under the guard.
        held_out_loss: on held-out data at the end.
        quality: the system's figure at the end.
        state_finite: whether every parameter and buffer is finite at the end.
        incidents: how many the guard met.
        stopped: whether the guard stopped the run.
        seconds: how long it took, diagnosis included.
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
    stopped: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Showcase:
    """All runs of a fault, in the order they were made, and the guard's first incident."""

    system: System
    fault: Fault
    results: tuple[Result, ...]
    incident: Incident | None

    def result(self, name: str) -> Result:
        """The run of this name."""
        return next(result for result in self.results if result.name == name)

    @property
    def named(self) -> bool:
        """Whether the guard named the expected cause at the expected place; without one: whether it met nothing."""
        fault, incident = self.fault, self.incident
        if fault.cause is None or incident is None:
            return fault.cause is None and incident is None
        return (
            bool(incident.causes)
            and incident.causes[0].slug == fault.cause
            and fnmatch.fnmatch(incident.module or "", fault.module or "*")
            and fnmatch.fnmatch(incident.op or "", fault.op or "*")
        )

    @property
    def proven(self) -> bool:
        """Whether a trial or a measurement proved the cause."""
        return self.incident is not None and bool(self.incident.causes) and self.incident.causes[0].proven

    def table(self) -> Table:
        """The runs side by side, in 80 columns."""
        table = Table(box=None, pad_edge=False)
        for heading in ("run", "applied", "final loss", "held out", self.system.quality, "weights", "cause", "proven"):
            words = heading in ("run", "weights", "cause", "proven")
            table.add_column(heading.replace(" ", "\n"), justify="left" if words else "right", no_wrap=True)
        for result in self.results:
            cause, proven = self._verdict() if result.name == "nantrap" else ("", "")
            table.add_row(
                result.name,
                f"{result.applied}/{result.steps}",
                f"{result.final_loss:.4g}",
                f"{result.held_out_loss:.4f}",
                f"{result.quality:.1%}",
                "finite" if result.state_finite else "NaN",
                cause,
                proven,
                style="" if result.state_finite else "red",
            )
        return table

    def to_dict(self) -> dict[str, Any]:
        """The showcase as plain JSON values; a loss that is not finite is `null`."""
        return {
            "schema": SCHEMA,
            "system": self.system.name,
            "fault": self.fault.name,
            "quality": self.system.quality,
            "results": [{key: _plain(value) for key, value in asdict(result).items()} for result in self.results],
            "cause": self.incident.causes[0].slug if self.incident and self.incident.causes else None,
            "expected_cause": self.fault.cause,
            "named": self.named,
            "proven": self.proven,
            "incident": self.incident.to_dict() if self.incident else None,
        }

    def _verdict(self) -> tuple[str, str]:
        if self.incident is None or not self.incident.causes:
            return ("none" if self.incident is None else "?"), ""
        return self.incident.causes[0].code, "yes" if self.proven else "no"


def show(
    system: System,
    fault: Fault,
    *,
    steps: int = 60,
    seed: int = 8,
    run_dir: Path | None = None,
    changes: Mapping[str, Any] | None = None,
    quiet: bool = False,
    say: Callable[[str, str], None] = lambda name, story: None,
) -> Showcase:
    """Run a fault in every way, one after the other.

    Args:
        system: whose fault it is.
        fault: the fault.
        steps: of each run.
        seed: of weights, batches and noise, the same for all.
        run_dir: where the guard's journal and incidents go.
        changes: settings by dotted name, for all runs.
        quiet: the guard prints nothing.
        say: is told the name of each run and what it is, as it begins.
    """
    ways: list[tuple[str, str, dict[str, Any]]] = [
        ("clean", "the repaired system", {"repaired": True}),
        ("plain", "the fault, and an ordinary loop", {}),
    ]
    ways += [(remedy.name, remedy.story, {"remedy": remedy}) for remedy in fault.remedies]
    results = []
    for name, story, options in ways:
        say(name, story)
        results.append(_run(name, system.run(fault=fault, seed=seed, changes=changes, **options), steps)[0])
    say("nantrap", "the fault, and every step an attempt of the guard")
    guarded = system.run(fault=fault, seed=seed, changes=changes)
    last, incident = _run("nantrap", guarded, steps, guarded=True, run_dir=run_dir, quiet=quiet)
    return Showcase(system, fault, (*results, last), incident)


def _run(
    name: str, run: Run, steps: int, *, guarded: bool = False, run_dir: Path | None = None, quiet: bool = False
) -> tuple[Result, Incident | None]:
    began = time.perf_counter()
    done: list[Step] = []
    incidents: list[Incident] = []
    stopped = False
    guard = guard_of(run, run_dir=run_dir, quiet=quiet, repeat_diagnoses=1) if guarded else None
    try:
        for step in train(run, steps=steps, guard=guard):
            done.append(step)
            incidents += [step.incident] if step.incident is not None else []
    except NonFiniteError as error:
        stopped = True
        done.append(Step(len(done), math.nan, False))
        incidents.append(error.incident)
    finally:
        if guard is not None:
            guard.close()
    found = run.evaluate()
    state: list[torch.Tensor] = [*run.model.parameters(), *run.model.buffers()]
    result = Result(
        name=name,
        steps=len(done),
        applied=sum(step.applied for step in done),
        first_bad=next((step.number for step in done if not math.isfinite(step.loss)), None),
        final_loss=mean_of_last([step.loss for step in done if step.applied]),
        held_out_loss=found.loss,
        quality=found.quality,
        state_finite=not finite.any_nonfinite(state),
        incidents=len(incidents),
        stopped=stopped,
        seconds=time.perf_counter() - began,
    )
    return result, incidents[0] if incidents else None


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
