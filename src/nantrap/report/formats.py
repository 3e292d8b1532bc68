"""Reports for machines and pull requests: Markdown, JSON, JUnit, GitHub annotations, SARIF. Functions of the views."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nantrap.incident import BY_CODE, Incident
from nantrap.incident.codec import encode
from nantrap.incident.wording import counted, visible, visible_lines
from nantrap.problems import NOWHERE, Problem, ProblemPlace
from nantrap.problems.github import annotation
from nantrap.problems.junit import JUnitCase, junit_document
from nantrap.problems.sarif import sarif_document
from nantrap.report.diagnostics import headline
from nantrap.report.terminal import render_incident
from nantrap.report.view_incident import IncidentView
from nantrap.report.view_run import CheckRow, RunView

SCHEMA = "nantrap.report/1"


def problem_of_incident(incident: Incident) -> Problem:
    """An incident as a problem."""
    cause = incident.causes[0] if incident.causes else None
    code = cause.code if cause else "NT000"
    parts = [headline(incident)]
    if cause is not None and cause.fix is not None:
        parts.append(f"fix: {visible(cause.fix.words)}")
    return Problem(
        code,
        "error" if cause and cause.proven else "warning",
        "; ".join(parts) + f" (step {incident.step:,}, rank {incident.rank})",
        data={"times": 1},
        place=_place(incident),
        title=visible(cause.title) if cause else BY_CODE["NT000"].title,
    )


def problems_of_run(view: RunView, incidents: Mapping[str, Incident]) -> tuple[Problem, ...]:
    """The problems of a run, one for each cause and place. `incidents` are the diagnosed ones by their folders."""
    problems = []
    for group in view.groups:
        how = "" if group.verdict.tone == "ok" else f" ({group.verdict.word})"
        times = f"{counted(len(group.steps), 'time')}, steps {group.span}"
        message = f"{visible(group.title)}{how}: {times}, {visible(group.place)}"
        if group.fix:
            message += f"; fix: {visible(group.fix)}"
        problems.append(
            Problem(
                group.code,
                "error" if group.verdict.tone == "ok" else "warning",
                message,
                data={"times": len(group.steps)},
                place=_place(incidents.get(group.folder)),
                title=visible(group.title),
            )
        )
    return tuple(problems)


def incident_json(view: IncidentView) -> str:
    """The incident with its diagnostic in words."""
    document = {
        "schema": SCHEMA,
        "kind": "incident",
        "verdict": view.verdict.word,
        "diagnostic": view.said.to_dict(),
        "path": [encode(stop) for stop in view.path],
        "replay": view.replay,
        "environment": dict(view.environment),
        "incident": view.incident.to_dict(),
    }
    return _dumped(document)


def run_json(view: RunView) -> str:
    """The run: verdict, counts, groups of incidents, evaluations, ranks."""
    document = {
        "schema": SCHEMA,
        "kind": "run",
        "name": view.name,
        "verdict": view.verdict.word,
        "title": view.title,
        "attempted": view.attempted,
        "applied": view.applied,
        "not_applied": list(view.skipped_steps[:10_000]),
        "rollbacks": [{"step": step, "to": target} for step, target in view.rollbacks],
        "stopped_at": view.stop_step,
        "groups": [encode(group) for group in view.groups],
        "evaluations": [
            {"step": row.step, **dict(zip(view.evaluation_names, row.values, strict=True))} for row in view.evaluations
        ],
        "ranks": [encode(rank) for rank in view.ranks],
        "stages": [encode(stage) for stage in view.stages],
        "environment": dict(view.environment),
        "problems": list(view.problems),
    }
    return _dumped(document)


def incident_markdown(view: IncidentView) -> str:
    """The incident for a pull request or an issue."""
    parts = [
        f"# {view.said.code}, step {view.incident.step:,}: {_md(view.title)}",
        f"**{view.verdict.sign} {view.verdict.word}** · {_md(view.did[0])} {_md(view.did[1])}",
        _fenced(render_incident(view.incident, width=100), "text"),
    ]
    if view.fix_lines:
        parts += ["## Fix", _fenced("\n".join(visible_lines(line) for _, line in view.fix_lines), "diff")]
    if view.causes:
        rows = [
            (
                f"{row.code} {row.title}",
                f"{row.verdict.sign} {row.verdict.word}",
                "; ".join(f"{t}: {s}" for t, s in row.reasons),
            )
            for row in view.causes
        ]
        parts += ["## Causes", _table(("cause", "verdict", "evidence"), rows)]
    if view.trials:
        trials = [
            (
                "control" if row.control else str(row.number),
                row.change,
                f"{row.verdict.sign} {row.verdict.word}",
                row.note,
            )
            for row in view.trials
        ]
        parts += ["## Trials", _table(("trial", "change", "the step", "what it tells"), trials)]
    if view.next_steps:
        parts += ["## Next steps", "\n".join(f"{i}. {_md(step)}" for i, step in enumerate(view.next_steps, start=1))]
    if view.replay:
        parts += ["## Replay", _fenced(visible(view.replay), "sh")]
    if view.environment:
        parts += ["## Environment", _table(("", ""), list(view.environment))]
    return "\n\n".join(parts) + "\n"


def run_markdown(view: RunView) -> str:
    """The run for a pull request or an issue."""
    parts = [
        f"# {_md(view.name)}: {_md(view.title)}",
        f"**{view.verdict.sign} {view.verdict.word}** · {_md(view.span)}",
        _table(("", ""), [
            ("result", " ".join(view.result)), ("not applied", " ".join(view.not_applied)),
            ("recovered", " ".join(view.recovered)), ("do first", " ".join(view.first[:2])),
        ]),
    ]  # fmt: skip
    if view.groups:
        rows = [
            (str(g.number), f"{g.code} {g.title}", f"{g.verdict.sign} {g.verdict.word}", f"{len(g.steps):,}", g.span,
             g.did, g.fix)
            for g in view.groups
        ]  # fmt: skip
        parts += ["## Incidents by cause", _table(("", "cause", "verdict", "incidents", "steps", "did", "fix"), rows)]
    if view.stages:
        stages = [(s.stage, s.check, s.found, f"{s.verdict.sign} {s.verdict.word}") for s in view.stages]
        parts += ["## Checks", _table(("stage", "check", "found", "verdict"), stages)]
    if view.evaluations:
        evaluations = [(f"{e.step:,}", *e.values) for e in view.evaluations]
        parts += ["## Evaluation", _table(("step", *view.evaluation_names), evaluations)]
    if len(view.ranks) > 1:
        ranks = [
            (str(r.rank), f"{r.steps:,}", f"{r.applied:,}", str(r.began), r.milliseconds, r.agrees) for r in view.ranks
        ]
        parts += ["## Ranks", _table(("rank", "steps", "applied", "began here", "ms per step", "agrees"), ranks)]
    if view.environment:
        parts += ["## Settings", _table(("", ""), list(view.environment))]
    return "\n\n".join(parts) + "\n"


def junit(name: str, problems: Sequence[Problem], *, stages: Sequence[CheckRow] = ()) -> str:
    """A JUnit file: a failing test for each problem, one that passes where there is none, and one for each stage."""
    cases = [
        JUnitCase(name, f"{problem.code} {problem.title}", "failed", problem.message, problem.message, problem.code)
        for problem in problems
    ]
    for stage in stages:
        title = f"{stage.stage}: {stage.check}"
        if stage.verdict.tone == "bad":
            cases.append(JUnitCase(name, title, "failed", stage.found, "", "stage"))
        else:
            cases.append(JUnitCase(name, title, "passed"))
    return junit_document(
        f"nantrap {name}", cases or [JUnitCase(name, "every step was finite", "passed")], inside="testsuites"
    )


def github(problems: Sequence[Problem]) -> str:
    """Workflow commands: GitHub shows each problem at its line in the pull request."""
    return "".join(f"{annotation(problem)}\n" for problem in problems)


def sarif(problems: Sequence[Problem]) -> str:
    """SARIF 2.1.0, for code scanning."""
    rules = [
        {
            "id": code,
            "name": BY_CODE[code].slug if code in BY_CODE else code,
            "shortDescription": {"text": BY_CODE[code].title if code in BY_CODE else code},
            "help": {"text": f"nantrap explain {code}"},
        }
        for code in sorted({problem.code for problem in problems})
    ]
    return _dumped(sarif_document(problems, tool="nantrap", rules=rules))


def _place(incident: Incident | None) -> ProblemPlace:
    """The source line of an incident; a path below the current folder is relative, so that a code host finds it."""
    if incident is None or incident.source is None:
        return NOWHERE
    file = incident.source.file
    with contextlib.suppress(ValueError):  # the file is somewhere else
        file = str(Path(os.path.abspath(file)).relative_to(Path.cwd()))
    return ProblemPlace(Path(file).as_posix(), incident.source.line)


def _dumped(document: Any) -> str:
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _md(text: str) -> str:
    """Text in Markdown: what would be markup is escaped."""
    shown = visible(text).replace("&", "&amp;").replace("<", "&lt;")
    for sign in "\\`*_[]|#":
        shown = shown.replace(sign, f"\\{sign}")
    return shown


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(map(_md, head)) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(_md(str(cell)) for cell in row) + " |" for row in rows)])


def _fenced(text: str, language: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"
