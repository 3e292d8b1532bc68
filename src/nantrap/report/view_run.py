"""The view-model of a run: its verdict, what to do first, its curves, its incidents by cause, its ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from nantrap.health import Expectations, HealthVerdict, judge
from nantrap.incident import BY_SLUG, Incident
from nantrap.incident.wording import counted, percent, place_text, value
from nantrap.record import ACTIONS, Column, NotedStep, Run, Series, StepTally
from nantrap.report import diagnostics as words
from nantrap.report.surroundings import environment
from nantrap.report.view_incident import Badge, verdict_of

_MOST_EVENTS = 200_000
_MOST_TERMS = 6
_MOST_WATCHED = 8
_MOST_GROUPS = 40
_MOST_EVALUATIONS = 60


@dataclass(frozen=True, slots=True)
class IncidentGroup:
    """Incidents with one cause at one place."""

    number: int
    code: str
    title: str
    verdict: Badge
    place: str
    steps: tuple[int, ...]
    did: str
    fix: str
    verified: bool
    folder: str
    folder_step: int | None

    @property
    def span(self) -> str:
        """`590 to 19,942`."""
        first, last = self.steps[0], self.steps[-1]
        return f"{first:,}" if first == last else f"{first:,} to {last:,}"


@dataclass(frozen=True, slots=True)
class Drawn:
    """A column of the journal that gets a chart. `limit` is a labelled line, such as the clip of the norm."""

    key: str
    title: str
    column: Column
    limit: tuple[float, str] | None = None
    stairs: bool = False


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One row of the table of evaluations."""

    step: int
    values: tuple[str, ...]
    best: bool


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank of the run."""

    rank: int
    steps: int
    applied: int
    began: int
    milliseconds: str
    agrees: str


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One check of the whole run or of one stage of the plan."""

    stage: str
    check: str
    found: str
    verdict: Badge


@dataclass(frozen=True, slots=True)
class RunView:
    """What is shown of a run."""

    name: str
    kind: str
    verdict: Badge
    title: str
    span: str
    result: tuple[str, str]
    not_applied: tuple[str, str]
    recovered: tuple[str, str]
    first: tuple[str, str, str]
    first_step: int
    last_step: int
    attempted: int
    applied: int
    skipped_steps: tuple[int, ...]
    rollbacks: tuple[tuple[int, int | None], ...]
    stop_step: int | None
    loss: Column | None
    drawn: tuple[Drawn, ...]
    terms: tuple[Drawn, ...]
    left_out: tuple[str, ...]
    groups: tuple[IncidentGroup, ...]
    more_groups: int
    incidents: int
    spikes: tuple[int, ...]
    evaluation_names: tuple[str, ...]
    evaluations: tuple[Evaluation, ...]
    evaluation_loss: Column | None
    ranks: tuple[RankRow, ...]
    stages: tuple[CheckRow, ...]
    environment: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, int], ...]
    problems: tuple[str, ...]
    segments: int


def view_run(run: Run, *, expect: Expectations | None = None) -> RunView:
    """The view of a run or of a log that nantrap did not write. Nothing in it depends on the clock.

    Args:
        run: as `record.open_run` gave it.
        expect: the plan against which its stages are checked.
    """
    series = run.main
    action = series.action
    events = series.events(limit=_MOST_EVENTS)
    others = [event for other in run.others for event in other.main.events(limit=_MOST_EVENTS)]
    incidents = {folder.name: folder.incident for folder in run.incidents if folder.incident is not None}
    groups = _groups([*events, *others], {name: i for name, i in incidents.items() if not _is_told_by(series, i)})
    step = series.step
    skipped = tuple(int(s) for s in step[series.refused])
    tally = run.tally()
    attempted, applied = tally.attempted, tally.applied
    stop_rows = np.flatnonzero(action == ACTIONS.index("stop"))
    rollbacks = _rollbacks(events)
    loss = series.get("loss")
    evaluation_loss = _evaluation_loss(run.evaluations)
    terms = tuple(_drawn(series, name, name.partition(".")[2]) for name in series.names if name.startswith("terms."))
    drawn, left_out = _charts(series, run.info)
    spikes = tuple(i.step for i in incidents.values() if any(f.kind == "spike" for f in i.findings))
    health = judge(run, expect=expect, now=run.modified)
    verdict = _verdict(health, stopped=len(stop_rows) > 0, events=tally.incidents + len(skipped))
    names, rows = _evaluations(run.evaluations)
    return RunView(
        name=run.name,
        kind=run.kind,
        verdict=verdict,
        title=_title(attempted, applied, groups, run.kind),
        span=_span(run),
        result=_result(loss, series, evaluation_loss),
        not_applied=_not_applied([series, *(other.main for other in run.others)], tally),
        recovered=_recovered(rollbacks, run.info, stopped=len(stop_rows) > 0),
        first=_first(groups, len(skipped)),
        first_step=int(step.min()) if len(step) else 0,
        last_step=int(step.max()) if len(step) else 0,
        attempted=attempted,
        applied=applied,
        skipped_steps=skipped,
        rollbacks=rollbacks,
        stop_step=int(step[stop_rows[-1]]) if len(stop_rows) else None,
        loss=loss,
        drawn=drawn,
        terms=terms[:_MOST_TERMS],
        left_out=(*left_out, *(term.title for term in terms[_MOST_TERMS:])),
        groups=groups[:_MOST_GROUPS],
        more_groups=max(0, len(groups) - _MOST_GROUPS),
        incidents=tally.incidents,
        spikes=spikes,
        evaluation_names=names,
        evaluations=rows,
        evaluation_loss=evaluation_loss,
        ranks=_ranks(run, incidents),
        stages=_stages(health) if len(series) else (),
        environment=environment(run.info),
        files=_files(run),
        problems=run.problems[:5],
        segments=len(series.segments),
    )


# ---- the incidents of a run by cause and place


def _is_told_by(lead: Series, incident: Incident) -> bool:
    """Whether another rank tells of a step that the journal of the first one has too: one failure, written twice."""
    same = lead.step == incident.step
    return incident.rank != lead.rank and incident.during == "training" and bool((same & lead.refused).any())


def _groups(events: Sequence[NotedStep], incidents: Mapping[str, Incident]) -> tuple[IncidentGroup, ...]:
    """Incidents by cause, phase and module, the most frequent first.

    The journal knows all of them, the folders only those with a bundle; the folder with trials is shown for its group.
    """
    groups: dict[tuple[str | None, ...], list[NotedStep]] = {}
    for event in events:
        if event.phase is not None or event.cause is not None or event.action != "apply":
            groups.setdefault((event.cause, event.phase, event.module), []).append(event)
    folders: dict[tuple[str | None, ...], tuple[str, Incident]] = {}
    for name, incident in sorted(incidents.items()):
        slug = incident.causes[0].slug if incident.causes else None
        key = (slug, incident.phase, incident.module)
        kept = folders.get(key)
        if kept is None or (not kept[1].trials and incident.trials):
            folders[key] = (name, incident)
        groups.setdefault(
            key, [NotedStep(incident.step, -1, incident.action.value, slug, incident.phase, incident.module)]
        )
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[1][0].step))
    return tuple(_group(number, key, found, folders.get(key)) for number, (key, found) in enumerate(ordered, start=1))


def _group(
    number: int, key: tuple[str | None, ...], found: Sequence[NotedStep], folder: tuple[str, Incident] | None
) -> IncidentGroup:
    """One group of incidents, with what the incident in `folder` knows about its cause and fix."""
    slug, phase, module = key
    incident = folder[1] if folder is not None else None
    cause = incident.causes[0] if incident is not None and incident.causes else None
    entry = BY_SLUG.get(slug or "unknown") or BY_SLUG["unknown"]
    source = incident.source if incident is not None else None
    places = [place_text(source.file.rpartition("/")[2], source.line)] if source is not None else []
    if module:
        places.append(f"in {module}")
    if not places and phase:
        places.append(phase)
    done = {
        action: sum(1 for event in found if event.action == action) for action in ("skip", "rollback", "stop", "apply")
    }
    did = ", ".join(f"{number_:,} {words.VERBS[action]}" for action, number_ in done.items() if number_)
    title = entry.title if cause is None or cause.slug != "unknown" else cause.summary or entry.title
    if cause is None and slug is None:
        title = "not applied, not diagnosed" if incident is None else words.what(incident)
    return IncidentGroup(
        number=number,
        code=cause.code if cause is not None else entry.code,
        title=title,
        verdict=verdict_of(cause) if incident is not None or slug in (None, "unknown") else _noted_verdict(found),
        place=" ".join(places),
        steps=tuple(event.step for event in found),
        did=did,
        fix=cause.fix.words if cause is not None and cause.fix is not None else "",
        verified=bool(cause and cause.fix and cause.fix.verified),
        folder=folder[0] if folder is not None else "",
        folder_step=incident.step if incident is not None else None,
    )


def _noted_verdict(found: Sequence[NotedStep]) -> Badge:
    """How sure the cause of incidents is that have no folder: the journal says of each whether it was proven."""
    if all(event.guess for event in found):
        return Badge("warn", "?", "a guess: not proven")
    return Badge("plain", "≈", "partly proven") if any(event.guess for event in found) else Badge("ok", "✓", "proven")


# ---- the other parts of the page


_SIGNS: Final = {"pass": ("ok", "✓"), "warn": ("warn", "▲"), "fail": ("bad", "✖"), "unknown": ("muted", "?")}


def _verdict(health: HealthVerdict, *, stopped: bool, events: int) -> Badge:
    """The verdict of `nantrap check`; in other words where the guard stopped the run, or contained what happened."""
    if stopped:
        return Badge("bad", "✖", "stopped by the guard")
    words = "with incidents" if health.outcome == "warn" and events else health.word
    return Badge(*_SIGNS[health.outcome], words)


def _title(attempted: int, applied: int, groups: Sequence[IncidentGroup], kind: str) -> str:
    """The run in a sentence: how many steps, how many applied, how many causes, how many of them proven."""
    if kind != "nantrap":
        return f"{counted(attempted, 'step')} in this log."
    if not attempted:
        return "No step was recorded."
    parts = [counted(attempted, "step"), f"{applied:,} applied ({percent(applied, attempted)})"]
    if groups:
        causes = {group.code for group in groups}
        proven = sum(1 for code in causes if any(g.code == code and g.verdict.tone == "ok" for g in groups))
        how = "all proven" if proven == len(causes) else f"{proven} proven" if proven else "none proven"
        parts.append(f"{counted(len(causes), 'cause')}, {how if len(causes) > 1 or not proven else 'proven'}")
    return ", ".join(parts) + "."


def _span(run: Run) -> str:
    """How many ranks, when the run started, and how often it was started again."""
    started = run.info.get("started")
    parts = [counted(len(run.ranks), "rank")] if run.kind == "nantrap" else [f"a {run.kind} log"]
    if run.others:
        parts.append(f"{len(run.others) + 1} optimizers, the curves are those of the first")
    if isinstance(started, str):
        parts.append(f"started {started.replace('T', ' ').replace('+00:00', ' UTC')}")
    resumed = run.info.get("resumed")
    if isinstance(resumed, list) and resumed:
        parts.append(f"started again {counted(len(resumed), 'time')}")
    return " · ".join(parts)


def _result(loss: Column | None, series: Series, held_out: Column | None) -> tuple[str, str]:
    """How good the run is, as a title and a note: the held-out loss if there is one, else the training loss."""
    if loss is None or not len(loss.value):
        return "No loss was recorded.", ""
    good = loss.value[np.isfinite(loss.value)]
    last = f"Last loss {value(float(loss.value[-1]), 4)}"
    if not len(good):
        return f"{last}: it was never finite.", ""
    applied = series.applied[loss.row]
    bad = int((~np.isfinite(loss.value) & applied).sum())
    note = f"best {value(float(good.min()), 4)}"
    if bad:
        note += f"; {counted(bad, 'applied step')} with a loss that is not finite"
    if held_out is not None and len(held_out.value):
        finite = held_out.value[np.isfinite(held_out.value)]
        if len(finite):
            best = (
                ", the best so far" if held_out.value[-1] == finite.min() else f", best {value(float(finite.min()), 4)}"
            )
            return (
                f"Held-out loss {value(float(held_out.value[-1]), 4)} at step {int(held_out.step[-1]):,}{best}.",
                f"training: last {value(float(loss.value[-1]), 4)}, {note}",
            )
    return f"{last} at step {int(loss.step[-1]):,}.", note


def _not_applied(journals: Sequence[Series], tally: StepTally) -> tuple[str, str]:
    """How many steps were refused, how many of them in a row, and how many a GradScaler left out."""
    probes = ""
    if tally.scaler_probes:
        probes = f"a GradScaler left {counted(tally.scaler_probes, 'step')} out while it searched its scale (normal)"
    number = tally.skipped
    if not sum(len(series.refused) for series in journals):
        return "No step was recorded.", ""
    if not number:
        return "No step was skipped." if probes else "Every step was applied.", probes
    padded = np.concatenate([[0], *((*series.refused.astype(np.int8), 0) for series in journals)])
    edges = np.flatnonzero(np.diff(padded))
    longest = int((edges[1::2] - edges[::2]).max())
    return (
        f"{counted(number, 'step')} not applied, {longest:,} in a row at most.",
        f"{percent(number, tally.attempted)} of all steps" + (f"; {probes}" if probes else ""),
    )


def _rollbacks(events: Sequence[NotedStep]) -> tuple[tuple[int, int | None], ...]:
    """Each rollback with the step whose state was restored; older journals do not say it."""
    return tuple((event.step, event.restored_step) for event in events if event.action == "rollback")


def _recovered(
    rollbacks: Sequence[tuple[int, int | None]], info: Mapping[str, Any], *, stopped: bool
) -> tuple[str, str]:
    """What was needed to go on: rollbacks, or a stop; and how much of the budget is used."""
    policy = info.get("policy")
    most = policy.get("max_rollbacks") if isinstance(policy, Mapping) else None
    used = f"{len(rollbacks)} of {most} rollbacks used" if isinstance(most, int) else ""
    if stopped:
        return "The guard stopped the run; the state is as it was before the last step.", used
    if not rollbacks:
        return "No rollback was needed.", ""
    step, target = rollbacks[-1]
    where = f" to step {target:,}" if target is not None else ""
    return f"{counted(len(rollbacks), 'rollback')}, the last at step {step:,}{where}.", used


def _first(groups: Sequence[IncidentGroup], skipped: int) -> tuple[str, str, str]:
    """Gives what to do first: a sentence, the place in the program, and the folder of the incident."""
    if not groups:
        return "Nothing to do.", "", ""
    best = next((group for group in groups if group.verified), groups[0])
    at = "" if best.folder_step is None else f" at step {best.folder_step:,}"
    proven = f"proven{at}" if best.verdict.tone == "ok" else "not proven yet"
    how = f"a fix was verified{at}" if best.verified else proven
    whole = counted(sum(len(group.steps) for group in groups), "incident")
    text = f"Cause {best.number}, {best.code}: {len(best.steps):,} of {whole}; {how}."
    return text, best.place, best.folder


def _drawn(
    series: Series, name: str, title: str, limit: tuple[float, str] | None = None, *, stairs: bool = False
) -> Drawn:
    return Drawn(name, title, series[name], limit, stairs)


def _charts(series: Series, info: Mapping[str, Any]) -> tuple[tuple[Drawn, ...], tuple[str, ...]]:
    """The curves below the loss, and the names of watched values that are too many to draw."""
    drawn = []
    clip = info.get("max_grad_norm")
    limit = (float(clip), f"clip {clip:g}") if isinstance(clip, (int, float)) and clip > 0 else None
    if series.get("grad_norm") is not None:
        drawn.append(_drawn(series, "grad_norm", "Gradient norm", limit))
    if series.get("lr") is not None:
        drawn.append(_drawn(series, "lr", "Learning rate"))
    if series.get("scale") is not None:
        drawn.append(_drawn(series, "scale", "Loss scale", stairs=True))
    watched = [name for name in series.names if name.startswith("watch.")]
    drawn += [_drawn(series, name, f"Watched: {name.partition('.')[2]}") for name in watched[:_MOST_WATCHED]]
    return tuple(drawn), tuple(name.partition(".")[2] for name in watched[_MOST_WATCHED:])


def _evaluation_loss(evaluations: Mapping[str, Column]) -> Column | None:
    return next((column for name, column in evaluations.items() if "loss" in name.lower()), None)


def _evaluations(found: Mapping[str, Column]) -> tuple[tuple[str, ...], tuple[Evaluation, ...]]:
    """The table of evaluation results: names and rows, thinned out if there are many; the best row is marked."""
    names = tuple(found)[:6]
    if not names:
        return (), ()
    steps = sorted({int(step) for name in names for step in found[name].step})
    if len(steps) > _MOST_EVALUATIONS:
        steps = [steps[round(i * (len(steps) - 1) / (_MOST_EVALUATIONS - 1))] for i in range(_MOST_EVALUATIONS)]
    by_step = [dict(zip(found[name].step.tolist(), found[name].value.tolist(), strict=True)) for name in names]
    lead = next((i for i, name in enumerate(names) if "loss" in name.lower()), None)
    best = None
    if lead is not None:
        finite = {step: number for step, number in by_step[lead].items() if math.isfinite(number)}
        best = min(finite, key=lambda step: finite[step]) if finite else None
    rows = tuple(
        Evaluation(step, tuple(value(c[step], 4) if step in c else "" for c in by_step), step == best) for step in steps
    )
    return names, rows


def _ranks(run: Run, incidents: Mapping[str, Incident]) -> tuple[RankRow, ...]:
    """One row per rank: steps, incidents that began there, time per step, and whether it agrees with the first rank."""
    rows = []
    lead = run.main
    for rank, series in run.series.items():
        ms = series.get("ms")
        middle = f"{float(np.median(ms.value)):,.0f}" if ms is not None and len(ms.value) else ""
        began = {i.step for i in incidents.values() if rank == (i.rank if (at := words.origin_rank(i)) is None else at)}
        rows.append(RankRow(rank, len(series), int(series.applied.sum()), len(began), middle, _agrees(lead, series)))
    return tuple(rows)


def _agrees(lead: Series, series: Series) -> str:
    shared = min(len(lead), len(series))
    differs = np.flatnonzero(
        (lead.action[:shared] != series.action[:shared]) | (lead.step[:shared] != series.step[:shared])
    )
    return "always" if not len(differs) else f"differs from step {int(series.step[differs[0]]):,} on"


def _stages(health: HealthVerdict) -> tuple[CheckRow, ...]:
    """The checks of the whole run, then those of each stage of the plan."""
    found = [("whole run", finding) for finding in health.findings]
    found += [(f"{stage.name} ({stage.span}, {stage.state})", f) for stage in health.stages for f in stage.findings]
    return tuple(
        CheckRow(name, f.check.replace("_", " "), f.summary, Badge(*_SIGNS[f.outcome], f.outcome))
        for name, f in found[:80]
    )


def _files(run: Run) -> tuple[tuple[str, int], ...]:
    if not run.path.is_dir():
        return ((run.path.name, run.path.stat().st_size),)
    names = sorted(
        p.name for p in run.path.iterdir() if p.is_file() and p.suffix in (".jsonl", ".json", ".svg", ".md", ".png")
    )
    return tuple((name, (run.path / name).stat().st_size) for name in names[:40] if name != "report.json")
