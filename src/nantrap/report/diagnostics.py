"""The diagnostic of an incident as data: the words that the terminal, the pages and the JSON of a report share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nantrap.incident import Action, Cause, Finding, Incident, Probe, TensorStats
from nantrap.incident.wording import counted, place_text, shape, some_of, value, visible, visible_lines
from nantrap.thresholds import MOST_GRADIENTS

VERBS: Mapping[str, str] = {"apply": "applied", "skip": "skipped", "rollback": "rolled back", "stop": "stopped"}

DECIDERS: Mapping[str, str] = {"script": "the script", "scaler": "GradScaler", "exception": "an exception"}
"""Who may decide what becomes of a step in the place of nantrap."""

RISKS: Mapping[str, str] = {
    "high": "without a fix it comes back, or spoils the weights unseen",
    "medium": "without a fix it can come back in any later step",
    "low": "without a fix batches like this one are lost",
}
_STATE_KINDS = ("gradient", "parameter", "buffer", "optimizer_state", "batch", "ema")
_SHOWN = 8
_INPUTS = 6


def done_text(incident: Incident) -> str:
    """What was done, and by whom; that the state was restored is said only where it was checked."""
    if incident.decided_by == "exception":
        return "nothing: nantrap passes the exception on"
    if incident.during != "training":
        return "nothing: the run goes on with this value"
    if incident.action is Action.APPLY:
        return "nothing: the script uses this value" if incident.decided_by == "script" else "the step was applied"
    if incident.action is Action.ROLLBACK:
        back = incident.restored_step
        return f"nantrap restored {'the last good state' if back is None else f'the state of step {back:,}'}"
    if incident.decided_by == "nantrap":
        done = "nantrap stopped the run" if incident.action is Action.STOP else "nantrap skipped the step"
        also, failed = f"{done} and restored the training state", f"{done}, but could not restore everything"
    else:
        done = f"{DECIDERS[incident.decided_by]} skipped the step"
        also, failed = f"{done}; nantrap restored the training state", f"{done}; nantrap could not restore everything"
    return {True: also, None: done, False: f"{failed} (see the note)"}[incident.restored]


@dataclass(frozen=True, slots=True)
class DiagnosticNote:
    """One line of facts: `= where: step 1,204, rank 0, forward`. A detail is left out where there is little room."""

    label: str
    text: str
    detail: bool = False


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The guilty line. `start` and `end` count characters of `text` and mark the guilty expression."""

    file: str
    line: int
    function: str
    inferred: bool
    text: str
    start: int
    end: int
    label: str

    @property
    def place(self) -> str:
        """`model.py:41 in Attention.forward`."""
        inside = f" in {self.function}" if self.function else ""
        return f"{place_text(self.file, self.line)}{inside}{' (inferred)' if self.inferred else ''}"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """What the diagnostic of an incident says, part by part. Every text is safe to print.

    `advice` is the part of `help` that says what to do; the rest are other ways and their limits.
    """

    code: str
    headline: str
    excerpt: Excerpt | None
    notes: tuple[DiagnosticNote, ...]
    help: str
    advice: str
    change: tuple[str, ...]
    also: str
    explain: str

    def to_dict(self) -> dict[str, Any]:
        """The diagnostic as JSON values."""
        excerpt = self.excerpt
        return {
            "code": self.code,
            "headline": self.headline,
            "source": None
            if excerpt is None
            else {"place": excerpt.place, "text": excerpt.text, "label": excerpt.label},
            "notes": [{"label": note.label, "text": note.text} for note in self.notes],
            "help": self.help,
            "change": list(self.change),
            "also_possible": self.also,
            "more": self.explain,
        }


def diagnostic(incident: Incident) -> Diagnostic:
    """The words for an incident. Observed facts and inferred causes are kept apart.

    Beside a known cause, what was measured elsewhere in the step is a detail. Without one it is all that is known.
    """
    cause = incident.causes[0] if incident.causes else None
    code = cause.code if cause else "NT000"
    explained = cause is not None and cause.slug != "unknown"
    notes = []
    if cause is not None:
        notes += [DiagnosticNote("proof" if cause.proven else "hint", text) for text in evidence_texts(cause)]
    notes += [DiagnosticNote("where", _where(incident)), *_found(incident, detail=explained)]
    if cause is not None and cause.risk in RISKS and cause.slug != "unknown" and incident.during == "training":
        notes.append(DiagnosticNote("risk", f"{cause.risk}: {RISKS[cause.risk]}", detail=True))
    notes += [DiagnosticNote("from", visible(text)) for text in incident.provenance]
    if incident.samples:
        notes.append(DiagnosticNote("sample", samples_text(incident)))
    if incident.inputs:
        label = "input" if incident.inputs[0].note else "batch"
        notes.append(DiagnosticNote(label, inputs_text(incident), detail=explained))
    notes += _before(incident)
    notes += [
        DiagnosticNote("probe", probe_text(probe), detail=explained and not probe.first_bad)
        for probe in incident.probes
    ]
    notes.append(DiagnosticNote("did", done_text(incident)))
    proven = cause is not None and cause.proven
    notes += [DiagnosticNote("note", visible(note), detail=proven) for note in incident.notes[:3]]
    fix = cause.fix if cause is not None else None
    others = incident.causes[1:3]
    return Diagnostic(
        code=code,
        headline=headline(incident),
        excerpt=_excerpt(incident),
        notes=tuple(notes),
        help="" if fix is None else visible(fix.words),
        advice="" if fix is None else visible(fix.advice),
        change=() if fix is None else tuple(visible_lines(fix.diff or fix.code).splitlines()),
        also=", ".join(f"{other.code} {visible(other.slug)}" for other in others),
        explain=f"nantrap explain {code}",
    )


def headline(incident: Incident) -> str:
    """The incident in one sentence; a cause that is not proven is called a guess."""
    cause = incident.causes[0] if incident.causes else None
    if cause is None:
        return what(incident)
    guess = "" if cause.proven or cause.slug == "unknown" else " (a guess: not proven)"
    return visible(cause.summary or cause.title) + guess


def one_line(incident: Incident, reason: str = "", *, alone: bool = True) -> str:
    """`step 1,204 skipped: forward: [NT203] softmax over ... in blocks.3.attn; lr 0.0001; 1 of 5 in a row`.

    Args:
        incident: what to say.
        reason: why the action was taken, or what it counts.
        alone: whether the line has to say what happened. A diagnostic that follows it says it as its headline.
    """
    done = "" if incident.during != "training" else f" {VERBS[incident.action.value]}"
    parts = [f"{when(incident)}{done}: {what(incident)}" if alone else f"{when(incident)}{done}"]
    if progress := progress_text(incident):
        parts.append(progress)
    if incident.lr:
        rates = dict.fromkeys(f"{rate:.4g}" for rate in incident.lr)  # groups with the same one are common
        parts.append("lr " + ", ".join(list(rates)[:3]))
    if reason:
        parts.append(visible(reason))
    if incident.same_as is not None:
        parts.append(f"looks like step {incident.same_as:,}")
    return "; ".join(parts)


def when(incident: Incident) -> str:
    """`step 1,204`; `evaluation after 1,204 steps`, `inference`."""
    if incident.during == "training":
        return f"step {incident.step:,}"
    return incident.during if incident.during == "inference" else f"evaluation after {counted(incident.step, 'step')}"


def fingerprint(incident: Incident) -> tuple[object, ...]:
    """What makes two incidents look the same to a reader: cause, place and kind of failure, not the step."""
    cause = incident.causes[0] if incident.causes else None
    place = (incident.source.file, incident.source.line) if incident.source is not None else (None, None)
    return (cause.slug if cause else None, incident.phase, incident.module, incident.op, incident.node, *place)


def what(incident: Incident) -> str:
    """The guilty thing in a few words: the cause if there is one, the findings otherwise."""
    module = visible(incident.module) if incident.module and incident.phase != "data" else None
    where = f" in {module}" if module else ""
    cause = incident.causes[0] if incident.causes else None
    elsewhere = f"it began on rank {origin_rank(incident)}, " if _began_elsewhere(incident) else ""
    if cause is not None and cause.slug != "unknown":
        summary = visible(cause.summary or cause.title)
        said = module in (None, "loss", incident.phase) or module in summary  # the summary names the place already
        return f"{elsewhere}{incident.phase}: [{cause.code}] {summary}{'' if said else where}"
    if seen := _seen(incident, where):
        return elsewhere + seen
    if elsewhere:
        return f"{elsewhere}in {incident.phase}{where}"
    op = f" {visible(incident.op)}" if incident.op else ""
    if incident.during != "training":
        return f"{incident.phase}:{op} the model's output is not finite{where}"
    return f"{incident.phase}:{op} the loss is {_loss(incident)}{where}"


def _seen(incident: Incident, where: str) -> str:
    """The first finding that says something, for an incident without a cause; empty if there is none."""
    terms = [finding for finding in incident.findings if finding.kind == "term"]
    if terms:
        return f"{incident.phase}: {terms_said(terms)}{where}"
    for finding in incident.findings:
        if finding.kind in _STATE_KINDS:
            described = finding.stats.describe() if finding.stats else visible(finding.note)
            return f"{incident.phase}: {_noun(finding)} {visible(finding.name)}: {described}"
        if finding.kind == "spike":
            return visible(finding.note)
        if finding.kind == "grad_norm":
            return f"{incident.phase}: {visible(finding.note)}"
    return ""


def terms_said(terms: Sequence[Finding]) -> str:
    """`loss term kl is NaN`; of terms that are finite themselves: `the gradient of loss term head3 is not finite`."""
    names = some_of([visible(finding.name) for finding in terms], 8)
    several = len(terms) > 1
    if all(finding.phase == "backward" for finding in terms):
        return f"the gradient of loss term{'s' * several} {names} is not finite"
    values = {value(math.nan if finding.value is None else finding.value) for finding in terms}
    said = values.pop() if len(values) == 1 else "not finite"
    return f"loss term{'s' * several} {names} {'are' if several else 'is'} {said}"


def evidence_texts(cause: Cause) -> list[str]:
    """The reasons to believe a cause, each with its trial."""
    return [
        visible(evidence.text) + (f" (trial {evidence.trial})" if evidence.trial is not None else "")
        for evidence in cause.evidence
    ]


def samples_text(incident: Incident) -> str:
    """`3, 7 (dataset index 1203, 88)`."""
    shown = ", ".join(str(index) for index in incident.samples[:_SHOWN])
    more = len(incident.samples) - _SHOWN
    text = shown + (f" and {more:,} more" if more > 0 else "")
    if incident.dataset_indices:
        indices = ", ".join(str(index) for index in incident.dataset_indices[:_SHOWN])
        text += f" (dataset index {indices})"
    return text


def inputs_text(incident: Incident) -> str:
    """The check of the batch: `image 6×8 float32 from -2.3 to 2.9, label 6 int64 from 0 to 4; all finite`."""
    shown = [_input_text(finding) for finding in incident.inputs[:_INPUTS]]
    more = len(incident.inputs) - len(shown)
    text = ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")
    good = all(finding.stats is None or not finding.stats.nonfinite for finding in incident.inputs)
    return f"{text}; all finite" if good else text


def _input_text(finding: Finding) -> str:
    """One tensor of the batch: its shape, its dtype, and its range or what is bad in it."""
    stats = finding.stats
    name = visible(finding.name)
    if stats is None:
        return name
    text = f"{name} {shape(stats.shape)} {visible(stats.dtype)}"
    if stats.nonfinite:
        noun = "sample" if len(finding.samples) == 1 else "samples"
        samples = f" ({noun} {some_of([str(each) for each in finding.samples])})" if finding.samples else ""
        return f"{text}: {stats.describe()}{samples}"
    if stats.min is None or stats.max is None:
        return text
    return f"{text} from {value(stats.min, 4)} to {value(stats.max, 4)}"


def probe_text(probe: Probe) -> str:
    """A probe; a bad one with everything that is known of it."""
    stats = probe.stats
    watched = "".join(f", {visible(name)} {value(number, 4)}" for name, number in probe.watch.items())
    mark = ", the first bad one" if probe.first_bad else ""
    if not stats.nonfinite:
        return f"{visible(probe.name)}: {stats.describe()}{watched}"
    return f"{visible(probe.name)}: {stats.describe()}, {tensor_text(stats)}{watched}{mark}"


def tensor_text(stats: TensorStats) -> str:
    """`shape 2×4×196, float16; finite values from -3.2 to 5.4, mean 0.01`."""
    text = f"shape {shape(stats.shape)}, {visible(stats.dtype)}"
    if stats.min is None or stats.max is None:
        return f"{text}; no finite value"
    mean = "" if stats.mean is None else f", mean {value(stats.mean, 4)}"
    return f"{text}; finite values from {value(stats.min, 4)} to {value(stats.max, 4)}{mean}"


def origin_rank(incident: Incident) -> int | None:
    """The rank where it began, if the ranks found out."""
    return _whole(incident, "origin_rank")


def _began_elsewhere(incident: Incident) -> bool:
    """Whether nothing began on the rank of this incident: it tells what another one found."""
    origin = origin_rank(incident)
    return origin is not None and origin != incident.rank and incident.rank not in incident.bad_ranks


def progress_text(incident: Incident) -> str:
    """`epoch 3, batch 118`, as far as it is known."""
    batch = "validation batch" if incident.during == "evaluation" else "batch"
    known = ((word, _whole(incident, name)) for word, name in (("epoch", "epoch"), (batch, "batch")))
    return ", ".join(f"{word} {number:,}" for word, number in known if number is not None)


def terms_text(incident: Incident) -> str:
    """All loss terms, good and bad: `recon 0.31, kl NaN`."""
    terms = dict(incident.terms)
    for finding in incident.findings:
        if finding.kind == "term" and finding.value is not None:
            terms.setdefault(finding.name, finding.value)
    return ", ".join(f"{visible(name)} {value(number)}" for name, number in terms.items())


def _whole(incident: Incident, name: str) -> int | None:
    number = getattr(incident, name, None)
    if number is None:
        number = incident.extra.get(name)
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def _where(incident: Incident) -> str:
    """Step, rank, phase, module, operation and dtype of the origin, in one line."""
    parts = [when(incident)]
    if progress := progress_text(incident):
        parts.append(progress)
    began = f"it began on rank {origin_rank(incident)}" if _began_elsewhere(incident) else f"rank {incident.rank}"
    parts += [began, incident.phase]
    if incident.module and incident.module != incident.phase:  # "data", not "data, data"
        parts.append(f"{incident.module} (call {incident.call})" if incident.call else incident.module)
    parts += [part for part in (incident.op, incident.node) if part]
    if dtype := origin_dtype(incident):
        parts.append(dtype)
    if len(incident.bad_ranks) > 1:
        parts.append("bad on ranks " + some_of([str(rank) for rank in incident.bad_ranks], 8))
    return visible(", ".join(parts))


def origin_dtype(incident: Incident) -> str:
    """The dtype in which the guilty operation ran, or nothing."""
    framed = next((frame.dtype for frame in incident.frames if frame.origin and frame.dtype), "")
    return framed or next((f.stats.dtype for f in incident.findings if f.kind == "activation" and f.stats), "")


def _found(incident: Incident, *, detail: bool) -> list[DiagnosticNote]:
    """What was found: the loss terms, and the first few tensors that are not finite."""
    notes = []
    if terms := terms_text(incident):
        notes.append(DiagnosticNote("terms", terms))
    if inside := [f for f in incident.findings if f.kind == "term" and f.phase == "backward"]:
        notes.append(DiagnosticNote("found", terms_said(inside), detail))
    stated = [f for f in incident.findings if f.kind != "activation" and f.stats is not None]
    for finding in stated[:4]:
        assert finding.stats is not None
        noun = _noun(finding)
        named = noun if finding.name == noun else f"{noun} {visible(finding.name)}"  # "batch", not "batch batch"
        notes.append(DiagnosticNote("found", f"{named}: {finding.stats.describe()}", detail))
    if len(stated) > 4:
        gradients = sum(finding.kind == "gradient" for finding in stated)
        most = f"in incident.json, which lists {gradients} gradients at most"
        where = ", all in incident.json" if gradients < MOST_GRADIENTS else f" {most}"
        notes.append(DiagnosticNote("found", f"{len(stated) - 4:,} more{where}", detail))
    return notes


def _before(incident: Incident) -> list[DiagnosticNote]:
    """How the values grew before the failure: through the last operations, and over the last steps."""
    notes = []
    sized = [frame for frame in incident.frames if frame.absmax is not None and not frame.origin]
    if len(sized) > 1:
        steps = [f"{visible(frame.op).removeprefix('aten.')} {value(frame.absmax, 3)}" for frame in sized[-5:]]
        steps.append(visible(incident.op).removeprefix("aten.") if incident.op else "?")
        notes.append(DiagnosticNote("before", " -> ".join(steps), detail=True))
    if incident.headroom:
        bits = " -> ".join(f"{left:.1f}" for left in incident.headroom.values())
        first, *_, last = [next(iter(incident.headroom)), *incident.headroom]
        text = f"{bits} bits in {visible(incident.module)}, steps {first} to {last}"
        notes.append(DiagnosticNote("headroom", text, detail=True))
    return notes


def _excerpt(incident: Incident) -> Excerpt | None:
    """The source line with the part to mark; `None` if the line is not known."""
    source = incident.source
    if source is None:
        return None
    label = next((f.stats.describe() for f in incident.findings if f.kind == "activation" and f.stats), "")
    start, end = _marked(source.text, source.column, source.end_column)
    before, marked = visible_tabs(source.text[:start]), visible_tabs(source.text[start:end])
    return Excerpt(
        file=visible(source.file),
        line=source.line,
        function=visible(source.function),
        inferred=source.inferred,
        text=before + marked + visible_tabs(source.text[end:].rstrip()),
        start=len(before),
        end=len(before) + len(marked),
        label=label,
    )


def visible_tabs(text: str) -> str:
    """Source code as it is shown: a tab is four spaces everywhere, so that marks stay under what they mark."""
    return visible(text.replace("\t", "    "))


def _marked(text: str, column: int | None, end_column: int | None) -> tuple[int, int]:
    """Characters of the guilty expression. Python counts columns in bytes of UTF-8, people in characters."""
    first, last = len(text) - len(text.lstrip()), len(text.rstrip())
    if column is None or end_column is None or not 0 <= column < end_column:
        return first, max(first, last)
    encoded = text.encode(errors="surrogatepass")
    start = len(encoded[:column].decode(errors="ignore"))
    end = len(encoded[:end_column].decode(errors="ignore"))
    return (start, min(end, last)) if start < min(end, last) else (first, max(first, last))


def _noun(finding: Finding) -> str:
    return finding.kind.replace("_", " ")


def _loss(incident: Incident) -> str:
    return value(float("nan") if incident.loss is None else incident.loss)
