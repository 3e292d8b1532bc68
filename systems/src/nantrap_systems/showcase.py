"""One fault, run several ways from one seed: repaired, plain, with each historic remedy, and under the guard.

Showcase           all these runs, and the first incident; a table and JSON
show               run them
reported_before    what nantrap says of a fault before anything is trained
write_report       what `nantrap demo` leaves in the run's folder: `report.md` with story, table, losses and diagnostic,
                   `losses.svg` with the picture in it, `showcase.json` for programs (`nantrap.demo/1`)
"""

from __future__ import annotations

import fnmatch
import inspect
import json
import math
import os
import shutil
import tempfile
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from nantrap.incident import Cause, Incident
from nantrap.incident.wording import counted
from nantrap.record import write_atomically
from nantrap.report import render_incident
from nantrap_systems.curves import Curve, draw_curves
from nantrap_systems.measuring import (
    Apart,
    Job,
    Result,
    demo_run,
    measure,
    measure_outside,
    measure_together,
)
from nantrap_systems.settings import write_settings
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
        """Whether nantrap said what it was expected to: the notice, the cause and the place, or nothing; and whether
        the guarded run ended as it was expected to, which is without an error for all faults but one."""
        return self._noticed() and self._placed() and self._ended()

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
        heads = [textwrap.fill(heading, 7, break_long_words=False) for heading in headings]
        widths = [max(map(len, [*head.split("\n"), *cells])) for head, *cells in zip(heads, *rows, strict=True)]
        gap = 2 if sum(widths) + 2 * (len(widths) - 1) <= 80 else 1
        table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
        for head in heads:
            words = head in ("run", "state", "cause")
            table.add_column(head, justify="left" if words else "right", no_wrap=True)
        for result, row in zip(self.results, rows, strict=True):
            table.add_row(*row, style="" if result.state_finite else "red")
        return table

    def outcomes(self) -> list[tuple[str, str]]:
        """What is printed about each run below the table: what was measured in it, and nothing else."""
        first = {"nantrap": _of_incident(self.incident)} if self.incident is not None else {}
        found = [(each.name, outcome_of(each, first.get(each.name, ""))) for each in self.results]
        said = [("nantrap", note) for note in (*(self.before or ())[:1], *self.notes)]
        return [*found, *said, *self._not_best()]

    def _not_best(self) -> list[tuple[str, str]]:
        """Which runs ended better than the guarded one, with the figures that were measured; empty if none did."""
        guarded = next((each for each in self.results if each.name == "nantrap"), None)
        if guarded is None:
            return []
        others = [each for each in self.results if each.name not in ("clean", "nantrap") and each.state_finite]
        better = sorted((each for each in others if each.quality > guarded.quality), key=lambda each: -each.quality)
        if not better:
            return []
        named = ", ".join(f"{each.name} ({each.quality:.1%})" for each in better)
        text = f"{named} ended better than this run ({guarded.quality:.1%})"
        left_out = guarded.steps - guarded.applied
        if left_out and better[0].applied > guarded.applied and not guarded.error:
            text += f". nantrap left {counted(left_out, 'step')} out: it does not change what the program computes"
            if guarded.rollbacks:
                text += ", and a rollback goes back to an older state with a lower learning rate"
        return [("nantrap", text)]

    def to_dict(self) -> dict[str, Any]:
        """The showcase as plain JSON values; a loss that is not finite is `null`."""
        return {
            "schema": SCHEMA,
            "system": self.system.name,
            "fault": self.fault.name,
            "quality": self.system.quality,
            "results": [{key: _plain(value) for key, value in asdict(result).items()} for result in self.results],
            "outcomes": [list(each) for each in self.outcomes()],
            "policy": policy_of(self.fault),
            "cause": self.incident.causes[0].slug if self.incident and self.incident.causes else None,
            "expected_cause": self.fault.cause,
            "reported_by": self.fault.reported_by,
            "named": self.named,
            "proven": self.proven,
            "incident": self.incident.to_dict() if self.incident else None,
            "notes": list(self.notes),
            "before": list(self.before or ()),
        }

    def _noticed(self) -> bool:
        if self.fault.code is not None and self.before is not None and not self.before:
            return False
        pattern = self.fault.notice
        return pattern is None or any(fnmatch.fnmatch(note, pattern) for note in self.notes)

    def _placed(self) -> bool:
        """Whether cause, module and operation are those of the fault; if it has no cause, whether none is named."""
        fault, incident = self.fault, self.incident
        if fault.cause is None or incident is None:
            return fault.cause is None and (incident is None or not _causes(incident))
        return (
            bool(incident.causes)
            and incident.causes[0].slug == fault.cause
            and fnmatch.fnmatch(incident.module or "", fault.module or "*")
            and fnmatch.fnmatch(incident.op or "", fault.op or "*")
        )

    def _ended(self) -> bool:
        error = next((each.error for each in self.results if each.name == "nantrap"), None)
        return error is None if self.fault.error is None else fnmatch.fnmatch(error or "", self.fault.error)

    def _verdict(self) -> tuple[str, str]:
        """Who told the fault in this run, as it happened: the cause of the incident, a check before it, or nobody."""
        if self.incident is not None and (_causes(self.incident) or self.fault.notice is None):
            if not _causes(self.incident):
                return "no cause", ""
            return self.incident.causes[0].code, "yes" if self.proven else "no"
        if self.before and self.fault.reported_by:
            return f"{self.fault.reported_by.split()[0]} {self.fault.code}", ""
        if self.fault.notice is not None and self._noticed():
            return self.fault.reported_by or "notice", ""
        return ("error" if any(each.error for each in self.results if each.name == "nantrap") else "no incident"), ""


def outcome_of(result: Result, incident: str = "") -> str:
    """One line about a run, made of its result; `incident` says what the first one was."""
    parts = [f"{result.applied} of {result.steps} steps applied"]
    if result.incidents:
        parts.append(f"{counted(result.incidents, 'incident')}{incident}")
    if result.rollbacks:
        parts.append(counted(result.rollbacks, "rollback"))
    if result.stopped:
        parts.append(f"stopped by the guard at step {result.steps - 1}")
    if result.error:
        parts.append(f"ended at step {result.steps - 1} by {result.error}")
    bad = [number for number, loss in enumerate(result.losses) if not math.isfinite(loss)]
    if bad and not result.incidents:
        ever = len(result.losses) - bad[0] == len(bad)
        parts.append(f"loss not finite {'from step' if ever else 'first in step'} {bad[0]}{' on' if ever else ''}")
    parts.append("parameters and buffers finite" if result.state_finite else "NaN or Inf in parameters or buffers")
    if result.state_finite and not math.isfinite(result.held_out_loss):
        parts.append("the evaluation is not finite")
    if result.ranks_agree is not None:
        parts.append("the processes hold equal weights" if result.ranks_agree else "the processes hold unequal weights")
    if result.skipped_alike is not None and result.skipped:
        steps = ", ".join(map(str, result.skipped[:8])) + (", ..." if len(result.skipped) > 8 else "")
        parts.append(
            f"all of them left out the steps {steps}" if result.skipped_alike else "they left out different steps"
        )
    return "; ".join(parts)


def _of_incident(incident: Incident) -> str:
    """In which step the first incident was, and what it says of the cause."""
    cause = next(iter(_causes(incident)), None)
    said = f"{cause.code}, {'proven' if cause.proven else 'not proven'}" if cause else "no cause named"
    return f" (the first in step {incident.step}: {said})"


def _causes(incident: Incident) -> tuple[Cause, ...]:
    """The causes that were named."""
    return tuple(each for each in incident.causes if each.slug != "unknown")


def policy_of(fault: Fault) -> str:
    """The policy that the fault asks for, as it is written; empty for the default one."""
    given = ", ".join(f"{name}={value!r}" for name, value in fault.policy.items())
    return f"Policy({given})" if given else ""


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
        _Way("clean", "The repaired system.", repaired=True),
        _Way("plain", "The fault in an ordinary loop."),
        *(_Way(remedy.name, remedy.story, remedy=remedy) for remedy in fault.remedies),
        _Way("nantrap", _how_guarded(fault), guarded=True),
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
        """The run of one way in this process, in several that train together, or under `nantrap run`."""
        if fault.processes > 1:
            return measure_together(job(way), fault.processes)
        if fault.loop and way.guarded:
            return measure_outside(job(way))
        run = demo_run(system, fault, way.remedy, steps, repaired=way.repaired, changes=changes, seed=seed)
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


def _how_guarded(fault: Fault) -> str:
    """What the guarded run is, for somebody who sees a demo for the first time."""
    if fault.loop:
        return "The fault in its own loop, under `nantrap run`."
    policy = f" It has {policy_of(fault)}." if fault.policy else ""
    alike = "Of incidents that look alike, only the first is diagnosed."
    return f"The fault under the guard: `guard.attempt(loss, batch)` makes every step.{policy} {alike}"


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
        return _of_doctor(system, system.settings_of(fault, changes=changes), fault.parts, fault.code)
    return _of_data(system.run(fault=fault, changes=changes, seed=seed), fault.code)


def _of_doctor(system: System, settings: Any, parts: Mapping[str, Any], code: str) -> tuple[str, ...]:
    """What `nantrap doctor` says about these settings and parts, written as the folder of a project."""
    from nantrap.doctor.examine import examine
    from nantrap.doctor.report import RISK_OF

    with tempfile.TemporaryDirectory(prefix="nantrap-project-") as name:
        folder = Path(name, system.name)
        write_project(system, settings, parts, folder)
        return tuple(
            f"`nantrap doctor`: {RISK_OF[each.severity]}[{each.code}] {each.title}: {each.message} "
            f"({os.path.relpath(each.place.file, name)}:{each.place.line})"
            for each in examine([str(folder)]).findings
            if each.code == code
        )


def write_project(system: System, settings: Any, parts: Mapping[str, Any], folder: Path) -> None:
    """The files of a run as a project would have them: the system's own without its list of faults, the settings of the
    run as its config, and `parts.py` with the code of every part that is not the repaired one."""
    shutil.copytree(system.config.parent, folder, ignore=shutil.ignore_patterns("faults.py", "*.sh", "__pycache__"))
    write_settings(settings, folder / system.config.name)
    if parts:
        source = "\n\n".join(textwrap.dedent(inspect.getsource(part)) for part in parts.values())
        (folder / "parts.py").write_text(f"import torch\nfrom torch import nn\n\n\n{source}", encoding="utf-8")


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
    lines += ["", *(f"- **{name}**: {what}" for name, what in shown.outcomes())]
    lines += ["", "## What is known of these runs", ""]
    lines += ["Written about the runs of the documentation; what was measured here stands above.", ""]
    known = [("plain", fault.damage), *((each.name, each.result) for each in fault.remedies), ("nantrap", fault.answer)]
    lines += [f"- **{name}**: {what}" for name, what in known]
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
