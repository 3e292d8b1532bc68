"""The view-model of an incident: everything that its page, its Markdown and its JSON show, ready to be laid out."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace

from nantrap.incident import Action, Cause, Fix, Incident
from nantrap.report import wording as words
from nantrap.report.environment import environment
from nantrap.report.incident_rows import (
    CauseRow,
    FrameRow,
    Growth,
    StatsRow,
    TrialRow,
    Verdict,
    cause_rows,
    frame_row,
    growths,
    stats_rows,
    trial_rows,
    verdict_of,
)
from nantrap.report.numbers import LIMITS
from nantrap.report.poison import Stop, path_of_poison
from nantrap.report.surroundings import Moment, Repeats, Surroundings

_FINDINGS_SHOWN = 6
_FINDINGS_LISTED = 60


@dataclass(frozen=True, slots=True)
class SimilarRow:
    """Another incident of the run that looks the same."""

    step: int
    folder: str
    samples: str
    did: str


@dataclass(frozen=True, slots=True)
class IncidentView:
    """What is shown of an incident."""

    incident: Incident
    said: words.Diagnostic
    verdict: Verdict
    title: str
    where: tuple[str, str]
    why: tuple[str, str]
    did: tuple[str, str]
    fix: Fix | None
    fix_lines: tuple[tuple[str, str], ...]
    source: tuple[tuple[int, str, bool], ...]
    path: tuple[Stop, ...]
    frames: tuple[FrameRow, ...]
    limit: tuple[str, float] | None
    magnitudes: tuple[Growth, ...]
    moments: tuple[Moment, ...]
    stats: tuple[StatsRow, ...]
    more_stats: tuple[StatsRow, ...]
    left_out: int
    causes: tuple[CauseRow, ...]
    trials: tuple[TrialRow, ...]
    next_steps: tuple[str, ...]
    replay: str
    environment: tuple[tuple[str, str], ...]
    similar: tuple[SimilarRow, ...]
    repeats: Repeats
    others: tuple[SimilarRow, ...]
    run_name: str
    folder: str
    files: tuple[tuple[str, int], ...]


def view_incident(incident: Incident, around: Surroundings | None = None) -> IncidentView:
    """The view of an incident with what was found around it."""
    around = around or Surroundings()
    said = words.diagnostic(incident)
    cause = incident.causes[0] if incident.causes else None
    dtype = words.origin_dtype(incident)
    rows = stats_rows(incident)
    same, others = _similar(incident, around)
    return IncidentView(
        incident=incident,
        said=said,
        verdict=verdict_of(cause),
        title=_sentence(said.headline),
        where=_where(incident, said),
        why=_why(cause),
        did=_did(incident),
        fix=cause.fix if cause else None,
        fix_lines=diff_lines(cause.fix) if cause and cause.fix else (),
        source=tuple((number, text, number == incident.source.line) for number, text in around.source)
        if incident.source
        else (),
        path=path_of_poison(incident),
        frames=tuple(frame_row(frame) for frame in incident.frames),
        limit=(dtype, LIMITS[dtype]) if dtype in LIMITS else None,
        magnitudes=growths(incident, dtype),
        moments=around.moments,
        stats=rows[:_FINDINGS_SHOWN],
        more_stats=rows[_FINDINGS_SHOWN:_FINDINGS_LISTED],
        left_out=max(0, len(rows) - _FINDINGS_LISTED),
        causes=cause_rows(incident),
        trials=trial_rows(incident),
        next_steps=_next_steps(incident, cause),
        replay=_replay(incident, around),
        environment=environment(around.info),
        similar=same,
        repeats=around.repeats,
        others=others,
        run_name=around.run_name,
        folder=around.folder,
        files=around.files,
    )


def diff_lines(fix: Fix) -> tuple[tuple[str, str], ...]:
    """Lines of the change, each with its kind: `add`, `del`, `at`, or nothing."""
    if not fix.diff:
        return tuple(("", line) for line in fix.code.splitlines())
    kinds = (("+++", "at"), ("---", "at"), ("@@", "at"), ("+", "add"), ("-", "del"))
    return tuple(
        (next((kind for start, kind in kinds if line.startswith(start)), ""), line) for line in fix.diff.splitlines()
    )


def _sentence(text: str) -> str:
    """The text as a sentence; a first word that is code keeps its small letter."""
    first = text.partition(" ")[0]
    begin = text[:1] if any(sign in first[:-1] for sign in "._(=") else text[:1].upper()
    return begin + text[1:] + ("" if text.endswith(".") else ".")


def _where(incident: Incident, said: words.Diagnostic) -> tuple[str, str]:
    detail = next((note.text for note in said.notes if note.label == "where"), "")
    if said.excerpt is not None:
        return replace(said.excerpt, file=said.excerpt.file.replace("\\", "/").rpartition("/")[2]).place, detail
    return incident.module or incident.op or incident.phase, detail


def _why(cause: Cause | None) -> tuple[str, str]:
    if cause is None or not cause.evidence:
        return "Not known.", "No measurement and no trial explains it yet; the evidence below is all that was seen."
    texts = words.evidence_texts(cause)
    rest = "measured, and proven by a replay" if cause.proven and any(e.trial for e in cause.evidence) else ""
    return _sentence(texts[0]), rest or (_sentence(texts[1]) if len(texts) > 1 else "")


def _did(incident: Incident) -> tuple[str, str]:
    """What the guard did, as a title and a sentence. "As before" is said only if that was checked."""
    title, text = {
        Action.APPLY: ("Applied the step.", "Nothing was held back."),
        Action.SKIP: ("Skipped the step.", "Weights, optimizer state, buffers and scheduler are as before."),
        Action.ROLLBACK: ("Rolled back.", "The last good state was restored."),
        Action.STOP: ("Stopped the run.", "The state is as it was before the step."),
    }[incident.action]
    if incident.action is Action.ROLLBACK and incident.restored_step is not None:
        text = f"The state of step {incident.restored_step:,} was restored."
    if incident.restored is False:
        text = "Not everything is as it was before the step: see the note."
    elif incident.restored is None and incident.action in (Action.SKIP, Action.STOP):
        text = "The step was not applied."
    if incident.same_as is not None:
        text += f" It looks like step {incident.same_as:,}."
    return title, text


def _next_steps(incident: Incident, cause: Cause | None) -> tuple[str, ...]:
    """What the reader should do now, the most useful first."""
    steps = []
    if cause is not None and cause.fix is not None:
        verified = " It was verified: the failed step is finite with it." if cause.fix.verified else ""
        steps.append(_sentence(cause.fix.text) + verified)
    if (cause is None or not cause.proven) and not incident.trials:
        steps.append("Let the guard repeat the step: guard.attempt(loss_fn, batch) replays it and tests causes.")
    if incident.samples and not (cause is not None and cause.proven and cause.code.startswith("NT5")):
        samples = words.samples_text(incident)
        steps.append(f"Look at sample {samples} of the batch: the step fails because of what is in it.")
    if incident.action is Action.APPLY:
        steps.append("The step was applied: check the weights with nantrap audit before the run is used.")
    return tuple(steps)


def _replay(incident: Incident, around: Surroundings) -> str:
    """The command that tests a fix, if the bundle holds what it needs."""
    if not {"state.safetensors", "batch.safetensors"} <= {name for name, _ in around.files}:
        return ""
    place = incident.bundle or (f"incidents/{around.folder}" if around.folder else "")
    return f"nantrap replay {shlex.quote(place)} --entry module:function" if place else ""


def _similar(incident: Incident, around: Surroundings) -> tuple[tuple[SimilarRow, ...], tuple[SimilarRow, ...]]:
    """The other incidents of the run: those that look the same, and the rest."""
    mark = words.fingerprint(incident)
    same: list[SimilarRow] = []
    others: list[SimilarRow] = []
    for sibling in around.siblings:
        other = sibling.incident
        code = other.causes[0].code if other.causes else "NT000"
        did = words.VERBS[other.action.value]
        alike = words.fingerprint(other) == mark
        row = SimilarRow(other.step, sibling.folder, words.samples_text(other), did if alike else f"{code}, {did}")
        (same if alike else others).append(row)
    return tuple(same), tuple(others)
