"""The diagnostic in the terminal: rustc's anatomy, one incident at a time.

`one_line` is what a skip prints. `render_incident` is the whole diagnostic; its plain text is the same with and without
colours, so that it can be tested, logged and searched.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

from nantrap.incident import Action, Cause, Incident

if TYPE_CHECKING:  # imported by the first diagnostic: a healthy run never needs it
    from rich.text import Text

_DONE = {
    Action.APPLY: "step applied",
    Action.SKIP: "step skipped, everything as before",
    Action.ROLLBACK: "rolled back to the last good state",
    Action.STOP: "run stopped, everything as before the step",
}


def one_line(incident: Incident, reason: str = "") -> str:
    """`step 1,204 skipped: forward, softmax over ... in blocks.3.attn; lr 0.0001; 1 of 5 in a row`."""
    verb = {"apply": "applied", "skip": "skipped", "rollback": "rolled back", "stop": "stopped"}[incident.action.value]
    parts = [f"step {incident.step:,} {verb}: {_what(incident)}"]
    if incident.lr:
        parts.append("lr " + ", ".join(f"{rate:.4g}" for rate in incident.lr[:3]))
    if reason:
        parts.append(reason)
    if incident.same_as is not None:
        parts.append(f"looks like step {incident.same_as:,}")
    return "; ".join(parts)


def render_incident(incident: Incident, *, color: bool | None = False, width: int = 120) -> str:
    """The whole diagnostic as text. `color=None` decides by the environment (`NO_COLOR`, a terminal on stderr)."""
    from rich.console import Console

    text = _diagnostic(incident)
    if color is None:
        color = not os.environ.get("NO_COLOR") and Console(stderr=True).is_terminal
    if not color:
        return text.plain
    console = Console(
        file=io.StringIO(), force_terminal=True, width=width, highlight=False, soft_wrap=True, legacy_windows=False
    )
    console.print(text)
    written = console.file
    assert isinstance(written, io.StringIO)
    return written.getvalue().rstrip("\n")


def _what(incident: Incident) -> str:
    """The guilty thing in a few words: the cause if there is one, the findings otherwise."""
    module = incident.module if incident.phase != "data" else None
    where = f" in {module}" if module else ""
    cause = incident.causes[0] if incident.causes else None
    if cause is not None and cause.slug != "unknown":
        summary = cause.summary or cause.title
        said = module is None or module == "loss" or module in summary  # the summary names the place by itself
        return f"{incident.phase}: [{cause.code}] {summary}{'' if said else where}"
    if elsewhere := next((note for note in incident.notes if note.startswith("it began on rank ")), ""):
        return elsewhere
    terms = [f.name for f in incident.findings if f.kind == "term"]
    if terms:
        return f"{incident.phase}: loss term {', '.join(terms)} is {_kind(incident)}{where}"
    for finding in incident.findings:
        if finding.kind in ("gradient", "parameter", "buffer", "optimizer_state", "batch"):
            noun = {"optimizer_state": "optimizer state"}.get(finding.kind, finding.kind)
            described = finding.stats.describe() if finding.stats else finding.note
            return f"{incident.phase}: {noun} {finding.name}: {described}"
        if finding.kind == "spike":
            return finding.note
    op = f" {incident.op}" if incident.op else ""
    return f"{incident.phase}:{op} the loss is {_kind(incident)}{where}"


def _kind(incident: Incident) -> str:
    return _value(float("nan") if incident.loss is None else incident.loss)


def _value(number: float) -> str:
    if number != number:
        return "NaN"
    return "+Inf" if number == float("inf") else "-Inf" if number == float("-inf") else f"{number:.6g}"


def _diagnostic(incident: Incident) -> Text:
    cause = incident.causes[0] if incident.causes else None
    from rich.text import Text

    text = Text()
    code = cause.code if cause else "NT000"
    headline = (cause.summary or cause.title) if cause else _what(incident)
    certainty = "" if cause is None or cause.proven or cause.slug == "unknown" else " (a guess: not proven)"
    text.append(f"error[{code}]", style="bold red").append(f": {headline}{certainty}\n", style="bold")
    _append_source(text, incident)
    _note(text, "where", _where(incident))
    terms = [f"{f.name} is {_value(f.value)}" for f in incident.findings if f.kind == "term" and f.value is not None]
    if terms:
        _note(text, "found", "loss term " + ", ".join(terms[:8]))
    for finding in incident.findings[:4]:
        if finding.kind != "activation" and finding.stats is not None:
            _note(text, "found", f"{finding.kind.replace('_', ' ')} {finding.name}: {finding.stats.describe()}")
    if cause is not None:
        _append_evidence(text, cause)
    if incident.samples:
        shown = ", ".join(str(i) for i in incident.samples[:8]) + (" ..." if len(incident.samples) > 8 else "")
        extra = f" (data set {', '.join(map(str, incident.dataset_indices[:8]))})" if incident.dataset_indices else ""
        _note(text, "sample", f"{shown}{extra}")
    if incident.frames:
        _append_frames(text, incident)
    if incident.headroom:
        shown = " -> ".join(f"{bits:.1f}" for bits in incident.headroom.values())
        first, last = next(iter(incident.headroom)), list(incident.headroom)[-1]
        _note(text, "headroom", f"{shown} bits in {incident.module}, steps {int(first):,} to {int(last):,}")
    for probe in incident.probes:
        mark = "  <- first bad" if probe.first_bad else ""
        watched = "".join(f", {k} {v:.4g}" for k, v in probe.watch.items())
        _note(text, "probe", f"{probe.name}: {probe.stats.describe()}{watched}{mark}")
    _note(text, "did", _DONE[incident.action])
    for note in incident.notes[:3]:
        _note(text, "note", note)
    if cause is not None and cause.fix is not None:
        verified = (
            f": verified, the step is finite with it (trial {cause.fix.trial})"
            if cause.fix.verified and cause.fix.trial is not None
            else ""
        )
        text.append("help", style="bold cyan").append(f": {cause.fix.text}{verified}\n")
        for line in (cause.fix.diff or cause.fix.code).splitlines():
            text.append(f"      {line}\n", style="green" if line.startswith("+") else "")
    others = incident.causes[1:3]
    if others:
        text.append("also possible", style="bold").append(": " + ", ".join(f"{c.code} {c.slug}" for c in others) + "\n")
    more = f"nantrap explain {code}"
    if incident.bundle:
        more += f" · bundle: {incident.bundle}"
    text.append("more", style="bold").append(f": {more}")
    return text


def _append_source(text: Text, incident: Incident) -> None:
    source = incident.source
    if source is None:
        return
    number = str(source.line)
    pad = " " * len(number)
    inferred = " (inferred)" if source.inferred else ""
    text.append(f"  --> {source.file}:{source.line} in {source.function}{inferred}\n", style="blue")
    if not source.text:
        return
    text.append(f"{pad} |\n{number} | ", style="blue").append(source.text + "\n")
    label = next((f.stats.describe() for f in incident.findings if f.kind == "activation" and f.stats), "")
    start, end = source.column, source.end_column
    if start is None or end is None:
        stripped = source.text.lstrip()
        start, end = len(source.text) - len(stripped), len(source.text.rstrip())
    text.append(f"{pad} | ", style="blue")
    text.append(" " * start + "^" * max(1, end - start) + (f" {label}" if label else "") + "\n", style="red")


def _where(incident: Incident) -> str:
    parts = [f"step {incident.step:,}", f"rank {incident.rank}", incident.phase]
    if incident.module:
        call = f" (call {incident.call})" if incident.call else ""
        parts.append(f"{incident.module}{call}")
    parts += [part for part in (incident.op, incident.node) if part]
    dtype = next((frame.dtype for frame in incident.frames if frame.origin), "")
    return ", ".join([*parts, dtype] if dtype else parts)


def _append_evidence(text: Text, cause: Cause) -> None:
    for evidence in cause.evidence:
        label = "proof" if cause.proven else "hint"
        trial = f" (trial {evidence.trial})" if evidence.trial is not None else ""
        _note(text, label, evidence.text + trial)


def _append_frames(text: Text, incident: Incident) -> None:
    sized = [f for f in incident.frames if f.absmax is not None and not f.origin]
    if len(sized) < 2:
        return
    shown = " -> ".join(f"{f.op.removeprefix('aten.')} {f.absmax:.3g}" for f in sized[-5:])
    _note(text, "before", f"{shown} -> {incident.op.removeprefix('aten.') if incident.op else '?'}")


def _note(text: Text, label: str, content: str) -> None:
    text.append("   = ", style="blue").append(f"{label}:", style="bold").append(f" {content}\n")
