"""The view-model of an incident: everything that its page, its Markdown and its JSON show, ready to be laid out."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace

from nantrap.incident import Action, Cause, Finding, Fix, Frame, Incident, Trial
from nantrap.incident.wording import counted, shape, value
from nantrap.report import diagnostics as words
from nantrap.report.poison import Stop, path_of_poison
from nantrap.report.surroundings import Surroundings, environment
from nantrap.thresholds import LARGEST

_FINDINGS_SHOWN = 6
_FINDINGS_LISTED = 60


@dataclass(frozen=True, slots=True)
class Badge:
    """How sure a cause is: a tone for the colour, always with a sign and a word."""

    tone: str
    sign: str
    word: str


@dataclass(frozen=True, slots=True)
class FrameRow:
    """An operation before the origin: its largest value and how much of the dtype's range is left."""

    op: str
    module: str
    line: str
    dtype: str
    largest: str
    bits: str
    used: float | None
    origin: bool
    harmless: bool


@dataclass(frozen=True, slots=True)
class StatsRow:
    """The statistics of one tensor, as text."""

    name: str
    kind: str
    origin: bool
    bad: str
    nan: str
    posinf: str
    neginf: str
    low: str
    high: str
    mean: str
    shape: str
    dtype: str


@dataclass(frozen=True, slots=True)
class CauseRow:
    """A cause with its verdict; each reason is a tag (`measured`, `trial 1`) and a sentence."""

    code: str
    title: str
    verdict: Badge
    reasons: tuple[tuple[str, str], ...]
    best: bool


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A trial and how the step went in it."""

    number: int
    change: str
    verdict: Badge
    result: str
    time: str
    note: str
    control: bool


@dataclass(frozen=True, slots=True)
class Point:
    """The suspect's largest value at a step."""

    step: int
    number: float


@dataclass(frozen=True, slots=True)
class Growth:
    """How large the suspect was over the last steps, against the limit of its dtype."""

    of: str
    dtype: str
    limit: float
    points: tuple[Point, ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class SimilarRow:
    """Another incident of the run that looks the same."""

    step: int
    folder: str
    samples: str
    did: str


@dataclass(frozen=True, slots=True)
class IncidentView:
    """What is shown of an incident and of what was found around it."""

    incident: Incident
    around: Surroundings
    said: words.Diagnostic
    verdict: Badge
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
    stats: tuple[StatsRow, ...]
    more_stats: tuple[StatsRow, ...]
    left_out: int
    causes: tuple[CauseRow, ...]
    trials: tuple[TrialRow, ...]
    next_steps: tuple[str, ...]
    replay: str
    environment: tuple[tuple[str, str], ...]
    similar: tuple[SimilarRow, ...]
    others: tuple[SimilarRow, ...]


_OF_RANGE = frozenset({"exp_overflow", "exploding_recurrence", "input_out_of_scale", "unknown"})


def _is_of_range(cause: Cause | None) -> bool:
    """Whether values may have become too large for their dtype. How far the others were from it explains nothing."""
    return cause is None or cause.slug in _OF_RANGE or cause.code.startswith(("NT4", "NT5"))


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
        around=around,
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
        limit=(dtype, LARGEST[dtype]) if dtype in LARGEST and _is_of_range(cause) else None,
        magnitudes=growths(incident, dtype),
        stats=rows[:_FINDINGS_SHOWN],
        more_stats=rows[_FINDINGS_SHOWN:_FINDINGS_LISTED],
        left_out=max(0, len(rows) - _FINDINGS_LISTED),
        causes=cause_rows(incident),
        trials=trial_rows(incident),
        next_steps=_next_steps(incident, cause),
        replay=_replay(incident, around),
        environment=environment(around.info),
        similar=same,
        others=others,
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
    """What became of the step, as a title and a sentence. That it was restored is said only if that was checked."""
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
    if incident.decided_by == "script" and incident.action is Action.APPLY:
        title, text = "Recorded it.", "The script uses this value."
    elif incident.decided_by != "nantrap":
        title = "Restored the state." if incident.restored else "Recorded it."
        text = f"It was {words.DECIDERS[incident.decided_by]} that ended the step. {text}"
    if incident.during != "training":
        title, text = "Reported it.", f"It belongs to no step: it is an {incident.during}, and the run went on."
    if incident.same_as is not None:
        text += f" It looks like step {incident.same_as:,}."
    return title, text


def _next_steps(incident: Incident, cause: Cause | None) -> tuple[str, ...]:
    """What the reader should do now, the most useful first."""
    steps = []
    if cause is not None and cause.fix is not None:
        steps.append(_sentence(cause.fix.words))
    if (cause is None or not cause.proven) and not incident.trials and incident.during == "training":
        steps.append("Let the guard repeat the step: guard.attempt(loss_fn, batch) replays it and tests causes.")
    if incident.samples and not (cause is not None and cause.proven and cause.code.startswith("NT5")):
        samples = words.samples_text(incident)
        run = "step" if incident.during == "training" else "call"
        steps.append(f"Look at sample {samples} of the batch: the {run} fails because of what is in it.")
    if incident.action is Action.APPLY and incident.during == "training":
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
    for folder, other in around.siblings:
        code = other.causes[0].code if other.causes else "NT000"
        did = words.VERBS[other.action.value]
        alike = words.fingerprint(other) == mark
        row = SimilarRow(other.step, folder, words.samples_text(other), did if alike else f"{code}, {did}")
        (same if alike else others).append(row)
    return tuple(same), tuple(others)


# ---- the rows of its tables


def verdict_of(cause: Cause | None) -> Badge:
    """Proven, likely, a guess, or unknown."""
    if cause is None or cause.slug == "unknown":
        return Badge("muted", "?", "cause unknown")
    if cause.proven:
        trial = next((e.trial for e in cause.evidence if e.trial is not None), None)
        return Badge("ok", "✓", f"proven by trial {trial}" if trial is not None else "proven by measurement")
    if cause.evidence:
        return Badge("plain", "≈", "likely, not proven")
    return Badge("warn", "?", "a guess: no evidence yet")


def frame_row(frame: Frame) -> FrameRow:
    """An operation before the origin as a row; its bits are how often its largest value could still be doubled."""
    limit = LARGEST.get(frame.dtype)
    bits, used = "", None
    if frame.origin:
        bits = "origin"
    elif frame.absmax == 0:
        bits, used = "all", 0.0
    elif frame.absmax is not None and limit is not None and math.isfinite(frame.absmax):
        left = math.log2(limit / frame.absmax)
        bits, used = f"{left:.1f}" if left < 10 else f"{left:.0f}", max(0.0, min(1.0, 1 - left / math.log2(limit)))
    return FrameRow(
        op=frame.op.removeprefix("aten."),
        module=frame.module or "",
        line=str(frame.line) if frame.line else "",
        dtype=frame.dtype,
        largest="not finite" if frame.nonfinite and frame.absmax is None else value(frame.absmax, 3),
        bits=bits,
        used=used,
        origin=frame.origin,
        harmless=bool(frame.nonfinite) and not frame.origin,
    )


_HOW = {
    "sampled": "Sampled while the run was healthy, in {}.",
    "repeated": "Measured after the failure: {} were run again from an older state and ended in it again.",
}


def growths(incident: Incident, dtype: str) -> tuple[Growth, ...]:
    """What is known of the suspect's size; of a file without it, the samples of its headroom."""
    found = [
        _growth(one.of, one.dtype, one.by_step, _HOW.get(one.how, ""))
        for one in incident.magnitudes
        if one.dtype in LARGEST
    ]
    if not incident.magnitudes:
        limit = LARGEST.get(dtype) or LARGEST["float32"]
        numbers = {step: limit / 2.0**bits if bits > -1000 else math.inf for step, bits in incident.headroom.items()}
        of = f"the output of {incident.module}" if incident.module else "the module's output"
        found = [_growth(of, dtype if dtype in LARGEST else "float32", numbers, _HOW["sampled"])]
    return tuple(growth for growth in found if growth.points)


def _growth(of: str, dtype: str, by_step: Mapping[str, float], how: str) -> Growth:
    points = tuple(
        Point(int(step), number)
        for step, number in by_step.items()
        if step.isdecimal() and len(step) < 16 and number >= 0
    )
    said = f"{_grew(points, LARGEST[dtype])} {how.format(counted(len(points), 'step'))}"
    return Growth(of, dtype, LARGEST[dtype], points, said.strip())


def _grew(points: tuple[Point, ...], limit: float) -> str:
    """What the picture shows, in a sentence of numbers."""
    if len(points) < 2 or not all(0 < point.number < math.inf for point in (points[0], points[-1])):
        return ""
    first, last = points[0], points[-1]
    factor, left = last.number / first.number, math.log2(limit / last.number)
    times = f"{value(factor, 3) if factor >= 1e4 else f'{factor:,.3g}'} times"
    return f"At step {last.step:,} it was {times} what it was at step {first.step:,}, with {left:.1f} bits left."


def stats_rows(incident: Incident) -> tuple[StatsRow, ...]:
    rows = [_stats_row(finding, origin=number == 0) for number, finding in enumerate(incident.findings)]
    rows += [
        _stats_row(Finding("activation", f"probe {probe.name}", "forward", stats=probe.stats), origin=False)
        for probe in incident.probes
    ]
    return tuple(rows)


def _stats_row(finding: Finding, *, origin: bool) -> StatsRow:
    """The statistics of one tensor as a row. A single number, such as a loss, has only its value."""
    stats = finding.stats
    kind = finding.kind.replace("_", " ")
    if stats is None:
        said = value(finding.value) if finding.value is not None else finding.note
        return StatsRow(finding.name, kind, origin, said, "", "", "", "", "", "", "", "")

    def number(found: float | None) -> str:
        return "none" if found is None else value(found, 4)

    return StatsRow(
        finding.name, kind, origin, f"{stats.nonfinite:,} of {stats.numel:,}", f"{stats.nan:,}", f"{stats.posinf:,}",
        f"{stats.neginf:,}", number(stats.min), number(stats.max), number(stats.mean), shape(stats.shape), stats.dtype,
    )  # fmt: skip


def cause_rows(incident: Incident) -> tuple[CauseRow, ...]:
    """The causes, the best one first, and after them those that a trial refuted."""
    rows = []
    for number, cause in enumerate(incident.causes):
        rows.append(CauseRow(cause.code, cause.summary or cause.title, verdict_of(cause), _reasons(cause), number == 0))
    for cause in incident.refuted:
        trial = next((e.trial for e in cause.evidence if e.trial is not None), None)
        word = f"refuted by trial {trial}" if trial is not None else "refuted"
        rows.append(CauseRow(cause.code, cause.title, Badge("muted", "✗", word), _reasons(cause), False))
    return tuple(rows)


def _reasons(cause: Cause) -> tuple[tuple[str, str], ...]:
    """An arrow of two characters would be broken at the end of a line."""
    return tuple(
        (f"trial {e.trial}" if e.trial is not None else e.kind, e.text.replace(" -> ", " → ")) for e in cause.evidence
    )


def trial_rows(incident: Incident) -> tuple[TrialRow, ...]:
    """The trials, each kind after the control that it rests on. Files of an older nantrap have no controls."""
    rows = []
    shown: set[str] = set()
    for trial in incident.trials:
        for control in incident.controls:
            if control.harness == trial.harness and control.harness not in shown:
                shown.add(control.harness)
                rows.append(_trial_row(control, incident))
        rows.append(_trial_row(trial, incident))
    return tuple(rows)


def _trial_row(trial: Trial, incident: Incident) -> TrialRow:
    """A trial as a row. A control must fail as the step did: only then do the trials of its kind count."""
    control = "control" in trial.name
    if trial.finite is None:
        verdict = Badge("muted", "?", "not run")
    elif trial.finite:
        verdict = Badge("warn" if control else "ok", "▲" if control else "✓", "finite")
    else:
        verdict = Badge("plain" if control else "bad", "✖", "not finite")
    result = "" if trial.loss is None else f"loss {value(trial.loss, 4)}"
    if control and not trial.note:
        note = "nothing changed: the trials cannot be trusted" if trial.finite else "fails as it did: the trials count"
    else:
        note = trial.note or _tells(trial, incident)
    change = trial.change or ("nothing changed" if control else trial.name)
    return TrialRow(trial.number, change, verdict, result, f"{trial.milliseconds:,.0f} ms", note, control)


def _tells(trial: Trial, incident: Incident) -> str:
    """Which causes a trial proves, supports or refutes, and whether it verifies the fix."""
    said = []
    for cause in incident.causes:
        if any(evidence.trial == trial.number for evidence in cause.evidence):
            said.append(f"{'proves' if cause.proven else 'supports'} {cause.code}")
        if cause.fix is not None and trial.number in cause.fix.verified_by:
            said.append("verifies the fix")
    for cause in incident.refuted:
        if any(evidence.trial == trial.number for evidence in cause.evidence):
            said.append(f"refutes {cause.code}")
    return ", ".join(dict.fromkeys(said))
