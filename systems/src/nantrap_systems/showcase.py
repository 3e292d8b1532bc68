"""One fault, run several ways from one seed: repaired, plain, with each historic remedy, and under the guard.

Showcase           all these runs, and the first incident; a table and JSON
show               run them
reported_before    what nantrap says of a fault before anything is trained
write_report       what `nantrap demo` leaves in the run's folder: `report.md` with story, table, losses and diagnostic,
                   `losses.svg` with the picture in it, `showcase.json` for programs (`nantrap.demo/1`)
"""

from __future__ import annotations

import fnmatch
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from nantrap.incident import Incident
from nantrap.record import write_atomically
from nantrap.report import render_incident
from nantrap_systems.curves import Curve, draw_curves
from nantrap_systems.measuring import Apart, Job, Result, measure, measure_together
from nantrap_systems.system import Fault, Remedy, Run, System

SCHEMA = "nantrap.demo/1"


@dataclass(frozen=True, slots=True)
class Showcase:
    """All runs of a fault, in the order they were made, the guard's first incident, and what nantrap said.

    `notes` is what it said when the run was made, `before` what it said before any training, if it was asked.
    """

    system: System
    fault: Fault
    results: tuple[Result, ...]
    incident: Incident | None
    notes: tuple[str, ...] = ()
    before: tuple[str, ...] | None = None

    def result(self, name: str) -> Result:
        """The run of this name."""
        return next(result for result in self.results if result.name == name)

    @property
    def named(self) -> bool:
        """Whether nantrap said what it was expected to: the notice, the cause and the place, or nothing."""
        return self._noticed() and self._placed()

    @property
    def proven(self) -> bool:
        """Whether a trial or a measurement proved the cause."""
        return self.incident is not None and bool(self.incident.causes) and self.incident.causes[0].proven

    @property
    def headings(self) -> tuple[str, ...]:
        """Of the columns of the table."""
        return ("run", "applied", "final loss", "held out", self.system.quality, "state", "cause", "proven")

    def rows(self) -> list[tuple[str, ...]]:
        """The cells of the table, a row a run."""
        return [
            (
                result.name,
                f"{result.applied}/{result.steps}",
                _figure(result.final_loss),
                _figure(result.held_out_loss),
                f"{result.quality:.1%}",
                _weights(result),
                *(self._verdict() if result.name == "nantrap" else ("", "")),
            )
            for result in self.results
        ]

    def table(self) -> Table:
        """The runs side by side, in 80 columns: cause and proof share one."""
        *headings, _ = self.headings
        rows = [(*cells, f"{cause} proven" if proven == "yes" else cause) for *cells, cause, proven in self.rows()]
        heads = [heading.replace(" ", "\n") for heading in headings]
        widths = [max(map(len, [*head.split("\n"), *cells])) for head, *cells in zip(heads, *rows, strict=True)]
        gap = 2 if sum(widths) + 2 * (len(widths) - 1) <= 80 else 1
        table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
        for head in heads:
            words = head in ("run", "state", "cause")
            table.add_column(head, justify="left" if words else "right", no_wrap=True)
        for result, row in zip(self.results, rows, strict=True):
            table.add_row(*row, style="" if result.state_finite else "red")
        return table

    def stories(self) -> list[tuple[str, str]]:
        """What is printed about each run below the table."""
        fault = self.fault
        remedies = [(remedy.name, remedy.result) for remedy in fault.remedies]
        return [*self.remarks(), ("plain", fault.damage), *remedies, ("nantrap", fault.answer)]

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
            "reported_by": self.fault.reported_by,
            "named": self.named,
            "proven": self.proven,
            "incident": self.incident.to_dict() if self.incident else None,
            "notes": list(self.notes),
            "before": list(self.before or ()),
        }

    def remarks(self) -> list[tuple[str, str]]:
        """What the table has no column for, by run: errors, ranks that differ, nantrap's notes."""
        found = []
        for result in self.results:
            if result.error:
                found.append((result.name, f"ended at step {result.steps - 1} by {result.error}"))
            if result.ranks_agree is False:
                found.append((result.name, "the processes ended with different weights"))
        return found + [("nantrap", note) for note in (*(self.before or ())[:1], *self.notes)]

    def _noticed(self) -> bool:
        if self.fault.code is not None and self.before is not None and not self.before:
            return False
        pattern = self.fault.notice
        return pattern is None or any(fnmatch.fnmatch(note, pattern) for note in self.notes)

    def _placed(self) -> bool:
        """Whether cause, module and operation are those of the fault; for one without a cause, whether there is no
        incident.
        """
        fault, incident = self.fault, self.incident
        if fault.cause is None or incident is None:
            return fault.cause is None and incident is None
        return (
            bool(incident.causes)
            and incident.causes[0].slug == fault.cause
            and fnmatch.fnmatch(incident.module or "", fault.module or "*")
            and fnmatch.fnmatch(incident.op or "", fault.op or "*")
        )

    def _verdict(self) -> tuple[str, str]:
        if self.incident is None:
            by = self.fault.reported_by
            return (f"{by.split()[0]} {self.fault.code}" if by and self.fault.code else by or "not diagnosed"), ""
        if not self.incident.causes:
            return "not diagnosed", ""
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
    at_a_time: int = 1,
    before: Callable[[], tuple[str, ...]] | None = None,
) -> Showcase:
    """Run a fault in every way.

    Args:
        system: whose fault it is.
        fault: the fault.
        steps: of each run.
        seed: of weights, batches and noise, the same for all.
        run_dir: where the guard's journal and incidents go.
        changes: settings by dotted name, for all runs.
        quiet: the guard prints nothing.
        say: called with the name of each run and what it is, as it begins.
        at_a_time: 1 makes them one after the other, here. More run all but the guarded one in separate processes,
            this many in parallel; then the system must be one that has a name.
        before: what nantrap says before any training.
    """
    fault.check_possible()
    ways = [
        _Way("clean", "the repaired system", repaired=True),
        _Way("plain", "the fault, and an ordinary loop"),
        *(_Way(remedy.name, remedy.story, remedy=remedy) for remedy in fault.remedies),
        _Way("nantrap", "the fault, and every step an attempt of the guard", guarded=True),
    ]

    def job(way: _Way) -> Job:
        """The run of one way, as plain data that another process can take."""
        return Job(
            name=way.name,
            system=system.name,
            fault=fault.name,
            remedy=way.remedy.name if way.remedy else None,
            repaired=way.repaired,
            guarded=way.guarded,
            steps=steps,
            seed=seed,
            changes=changes or {},
            run_dir=run_dir if way.guarded else None,
            quiet=quiet,
        )

    def here(way: _Way) -> tuple[Result, Incident | None, tuple[str, ...]]:
        if fault.processes > 1:
            return measure_together(job(way), fault.processes)
        run = system.run(fault=fault, remedy=way.remedy, repaired=way.repaired, changes=changes, seed=seed)
        chosen = run_dir if way.guarded else None
        result, incident = measure(way.name, run, steps, guarded=way.guarded, run_dir=chosen, quiet=quiet)
        return result, incident, run.notes

    said = before() if before is not None else None
    *others, guarded = ways
    results: list[Result] = []
    if at_a_time > 1 and fault.processes == 1:
        with Apart([job(way) for way in others], at_a_time) as apart:
            for way in ways:
                say(way.name, way.story)
            last, incident, notes = here(guarded)
            results = apart.results()
    else:
        for way in others:
            say(way.name, way.story)
            results.append(here(way)[0])
        say(guarded.name, guarded.story)
        last, incident, notes = here(guarded)
    return Showcase(system, fault, (*results, last), incident, notes, said)


@dataclass(frozen=True, slots=True)
class _Way:
    name: str
    story: str
    remedy: Remedy | None = None
    repaired: bool = False
    guarded: bool = False


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _figure(value: float) -> str:
    """Four digits, three where the number needs an exponent."""
    return f"{value:.3g}" if abs(value) >= 1e4 else f"{value:.4g}"


def _weights(result: Result) -> str:
    if not result.state_finite:
        return "NaN"
    return "differ" if result.ranks_agree is False else "finite"


# ---- before training

_BATCHES = 12


def reported_before(
    system: System, fault: Fault, *, seed: int, changes: Mapping[str, Any] | None = None
) -> tuple[str, ...]:
    """The findings that have the fault's code, as the commands print them; none for a fault without one."""
    if fault.code is None:
        return ()
    if fault.reported_by == "doctor":
        return _of_doctor(system, fault.code)
    return _of_data(system.run(fault=fault, changes=changes, seed=seed), fault.code)


def _of_doctor(system: System, code: str) -> tuple[str, ...]:
    """What `nantrap doctor` says about this fault in the system's own folder."""
    from nantrap.doctor.examine import examine
    from nantrap.doctor.report import RISK_OF

    folder = system.config.parent
    return tuple(
        f"`nantrap doctor`: {RISK_OF[each.severity]}[{each.code}] {each.title}: {each.message} "
        f"({os.path.relpath(each.place.file, folder.parent)}:{each.place.line})"
        for each in examine([str(folder)]).findings
        if each.code == code
    )


def _of_data(run: Run, code: str) -> tuple[str, ...]:
    """The batches of the first steps are written as files, as a dataset on disk would be."""
    from nantrap.doctor.data import check_data

    with tempfile.TemporaryDirectory(prefix="nantrap-data-") as folder:
        for step in range(_BATCHES):
            for number, batch in enumerate(run.window(step)):
                tensors = {name: value.clone() for name, value in batch._asdict().items()}
                torch.save(tensors, Path(folder, f"batch-{step:03}-{number}.pt"))
        found = check_data(folder).findings
    return tuple(
        f"`nantrap data`: {each.slug}[{each.code}]: {each.field}: {each.message} ({Path(each.file).name})"
        for each in found
        if each.code == code
    )


# ---- as files

REPORT = "report.md"
DOCUMENT = "showcase.json"
PICTURE = "losses.svg"


def write_report(shown: Showcase, folder: Path, *, steps: int, seed: int) -> Path:
    """Write the three files; the path of the one for people."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(
        folder / DOCUMENT, json.dumps(shown.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    )
    write_atomically(folder / PICTURE, picture_of(shown))
    report = folder / REPORT
    write_atomically(report, report_of(shown, steps=steps, seed=seed))
    return report


def report_of(shown: Showcase, *, steps: int, seed: int) -> str:
    """The report as Markdown."""
    system, fault = shown.system, shown.fault
    lines = [f"# {system.name}, {fault.name}", "", f"{fault.title}.".capitalize(), "", fault.story, ""]
    lines += [f"{steps} steps each, seed {seed}: `nantrap demo {system.name} --fault {fault.name}`", ""]
    headings = shown.headings
    lines += ["| " + " | ".join(headings) + " |", "| " + " | ".join("---" for _ in headings) + " |"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in shown.rows()]
    lines += ["", f"![the loss of each run over its steps]({PICTURE})"]
    lines += ["", *(f"- **{name}**: {what}" for name, what in shown.stories())]
    if shown.incident is not None:
        lines += ["", "## The diagnosis", "", "```text", render_incident(shown.incident), "```"]
        if shown.incident.bundle:
            lines += ["", f"Bundle: `{shown.incident.bundle}`."]
    return "\n".join(lines) + "\n"


def picture_of(shown: Showcase) -> str:
    """The training loss of every run, step by step, as SVG."""
    curves = [
        Curve(
            result.name,
            result.losses,
            skipped=frozenset(result.skipped),
            strong=result.name == "nantrap",
            note="" if result.state_finite else "state NaN",
        )
        for result in shown.results
    ]
    return draw_curves(curves, title=f"{shown.system.name}, {shown.fault.name}: training loss")
