"""The rows of an incident's tables as text: operations, statistics, causes, trials, and how the suspect grew."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nantrap.incident import BY_SLUG, Cause, Finding, Frame, Incident, Trial
from nantrap.incident.wording import counted, place_text
from nantrap.record import Event
from nantrap.report import wording as words
from nantrap.report.numbers import LIMITS, shape, value


@dataclass(frozen=True, slots=True)
class Verdict:
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
    verdict: Verdict
    reasons: tuple[tuple[str, str], ...]
    best: bool


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A trial and how the step went in it."""

    number: int
    change: str
    verdict: Verdict
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


def verdict_of(cause: Cause | None) -> Verdict:
    """Proven, likely, a guess, or unknown."""
    if cause is None or cause.slug == "unknown":
        return Verdict("muted", "?", "cause unknown")
    if cause.proven:
        trial = next((e.trial for e in cause.evidence if e.trial is not None), None)
        return Verdict("ok", "✓", f"proven by trial {trial}" if trial is not None else "proven by measurement")
    if cause.evidence:
        return Verdict("plain", "≈", "likely, not proven")
    return Verdict("warn", "?", "a guess: no evidence yet")


def frame_row(frame: Frame) -> FrameRow:
    """An operation before the origin as a row; its bits are how often its largest value could still be doubled."""
    limit = LIMITS.get(frame.dtype)
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
        if one.dtype in LIMITS
    ]
    if not incident.magnitudes:
        limit = LIMITS.get(dtype) or LIMITS["float32"]
        numbers = {step: limit / 2.0**bits if bits > -1000 else math.inf for step, bits in incident.headroom.items()}
        of = f"the output of {incident.module}" if incident.module else "the module's output"
        found = [_growth(of, dtype if dtype in LIMITS else "float32", numbers, _HOW["sampled"])]
    return tuple(growth for growth in found if growth.points)


def _growth(of: str, dtype: str, by_step: Mapping[str, float], how: str) -> Growth:
    points = tuple(
        Point(int(step), number)
        for step, number in by_step.items()
        if step.isdecimal() and len(step) < 16 and number >= 0
    )
    said = f"{_grew(points, LIMITS[dtype])} {how.format(counted(len(points), 'step'))}"
    return Growth(of, dtype, LIMITS[dtype], points, said.strip())


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
        rows.append(CauseRow(cause.code, cause.title, Verdict("muted", "✗", word), _reasons(cause), False))
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
        verdict = Verdict("muted", "?", "not run")
    elif trial.finite:
        verdict = Verdict("warn" if control else "ok", "▲" if control else "✓", "finite")
    else:
        verdict = Verdict("plain" if control else "bad", "✖", "not finite")
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
        if cause.fix is not None and cause.fix.verified and cause.fix.trial == trial.number:
            said.append("verifies the fix")
    for cause in incident.refuted:
        if any(evidence.trial == trial.number for evidence in cause.evidence):
            said.append(f"refutes {cause.code}")
    return ", ".join(dict.fromkeys(said))


# ---- The incidents of a run by cause and place: what a reader of many incidents wants to see first.


@dataclass(frozen=True, slots=True)
class Group:
    """Incidents with one cause at one place."""

    number: int
    code: str
    title: str
    verdict: Verdict
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


def groups_of(events: Sequence[Event], incidents: Mapping[str, Incident]) -> tuple[Group, ...]:
    """Incidents by cause, phase and module, the most frequent first.

    The journal knows all of them, the folders only those with a bundle; the folder with trials is shown for its group.
    """
    groups: dict[tuple[str | None, ...], list[Event]] = {}
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
        groups.setdefault(key, [Event(incident.step, -1, incident.action.value, slug, incident.phase, incident.module)])
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[1][0].step))
    return tuple(_group(number, key, found, folders.get(key)) for number, (key, found) in enumerate(ordered, start=1))


def _group(
    number: int, key: tuple[str | None, ...], found: Sequence[Event], folder: tuple[str, Incident] | None
) -> Group:
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
    return Group(
        number=number,
        code=cause.code if cause is not None else entry.code,
        title=title,
        verdict=verdict_of(cause),
        place=" ".join(places),
        steps=tuple(event.step for event in found),
        did=did,
        fix=cause.fix.text if cause is not None and cause.fix is not None else "",
        verified=bool(cause and cause.fix and cause.fix.verified),
        folder=folder[0] if folder is not None else "",
        folder_step=incident.step if incident is not None else None,
    )
