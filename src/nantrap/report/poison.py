"""The path of the poison: what was healthy, where it began, how far it went, and where it was stopped."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from nantrap.incident import Action, Finding, Frame, Incident
from nantrap.incident.wording import counted, percent, some_of, value
from nantrap.report.diagnostics import DECIDERS

Kind = Literal["healthy", "harmless", "origin", "bad", "gate", "kept", "spread"]
_HEALTHY_SHOWN = 4
_BAD_SHOWN = 4
_GROUPS_AT_ENDS = 3
_OPS_IN_GROUP = 4


@dataclass(frozen=True, slots=True)
class Stop:
    """One stop on the way. `share` is the part of its values that is not finite, from 0 to 1, where it is known."""

    kind: Kind
    name: str
    where: str = ""
    text: str = ""
    share: float | None = None


def path_of_poison(incident: Incident) -> tuple[Stop, ...]:
    """The stops of one incident, in the order in which the step ran."""
    origin = _origin(incident)
    loss = _loss(incident)
    gradients = _gradients(incident)
    frames = [frame for frame in incident.frames if not frame.origin]
    before = [_frame(frame) for frame in frames[-_HEALTHY_SHOWN:]]
    after = _carried(incident)
    if incident.phase == "backward":
        stops = [*before, *loss, origin, *after, *gradients]
    elif incident.phase == "optimizer":
        stops = [*loss, *before, origin, *after]
    elif incident.phase in ("data", "state"):
        stops = [origin, *before, *after, *_probes(incident), *loss, *gradients]
    else:
        stops = [*before, origin, *after, *_probes(incident), *loss, *gradients]
    return (*stops, *_end(incident))


def path_note(incident: Incident) -> str:
    """What the picture does not show, in a sentence; empty where it shows everything."""
    if incident.path:
        return ""
    if incident.phase == "forward" and incident.loss is not None and not math.isfinite(incident.loss):
        return "The operations between the origin and the loss were not recorded."
    return ""


def _origin(incident: Incident) -> Stop:
    """The stop at which the first bad values appeared, with how many of them there were."""
    found = _origin_finding(incident)
    frame = next((frame for frame in incident.frames if frame.origin), None)
    line = frame.line if frame is not None else incident.source.line if incident.source is not None else None
    where = ", ".join(part for part in (incident.module or "", f"line {line}" if line else "") if part)
    if incident.phase in ("data", "state") and found is not None:
        name = f"{found.kind.replace('_', ' ')} {found.name}"
    else:
        name = incident.node if incident.phase == "backward" and incident.node else incident.op or incident.phase
    stats = found.stats if found is not None else None
    if stats is not None and stats.nonfinite:
        return Stop("origin", name, where, stats.describe(), stats.nonfinite / max(1, stats.numel))
    note = found.note if found is not None else ""
    return Stop("origin", name, where, note or "the first values that are not finite")


def _origin_finding(incident: Incident) -> Finding | None:
    """The finding that shows the origin; which kind of tensor that is depends on the phase."""
    if incident.phase == "data":
        kinds: tuple[str, ...] = ("batch",)
    elif incident.phase == "state":
        kinds = ("parameter", "buffer", "optimizer_state", "ema")
    elif incident.phase == "optimizer":
        kinds = ("optimizer_state", "parameter", "activation")
    else:
        kinds = ("activation",)
    return next((finding for finding in incident.findings if finding.kind in kinds), None)


def _frame(frame: Frame) -> Stop:
    line = f"line {frame.line}" if frame.line else ""
    where = ", ".join(part for part in (_module(frame.module or ""), line) if part)
    name = frame.op.removeprefix("aten.")
    if frame.nonfinite:
        return Stop("harmless", name, where, "not finite here, and not where it began")
    return Stop("healthy", name, where, f"largest {value(frame.absmax, 3)}" if frame.absmax is not None else "finite")


def _module(name: str) -> str:
    """A part of a sequence has a number for its name."""
    return f"module {name}" if name.isdecimal() else name


@dataclass(slots=True)
class _Group:
    """Neighbours on the way that belong to one module, with how many were left out before them."""

    module: str
    frames: list[Frame]
    left_out: int = 0


def _carried(incident: Incident) -> list[Stop]:
    """The operations that carried the bad values on: those of one module together, of many the first and the last."""
    groups: list[_Group] = []
    for frame in incident.path:
        if groups and groups[-1].module == (frame.module or "") and not frame.left_out:
            groups[-1].frames.append(frame)
        else:
            groups.append(_Group(frame.module or "", [frame], frame.left_out))
    ends = _GROUPS_AT_ENDS if len(groups) > 2 * _GROUPS_AT_ENDS + 1 else len(groups)
    shown, hidden, last = groups[:ends], groups[ends:-ends], groups[ends:][-ends:]
    stops = [stop for group in shown for stop in _group(group)]
    if hidden:
        number = sum(len(group.frames) + group.left_out for group in hidden) + last[0].left_out
        last[0].left_out = 0
        names = list(dict.fromkeys(group.module for group in hidden if group.module))
        stops.append(Stop("bad", counted(number, "more operation"), some_of(names), "not finite either"))
    return [*stops, *(stop for group in last for stop in _group(group))]


def _group(group: _Group) -> list[Stop]:
    """The operations of one module as a single stop; before it, how many operations were left out."""
    names = [frame.op.removeprefix("aten.") for frame in group.frames]
    if len(names) > _OPS_IN_GROUP:
        names = [*names[: _OPS_IN_GROUP - 2], f"{len(names) - _OPS_IN_GROUP + 1} more", names[-1]]
    lines = sorted({frame.line for frame in group.frames if frame.line})
    words = f"line {lines[0]}" if len(lines) == 1 else f"lines {lines[0]} to {lines[-1]}" if lines else ""
    where = ", ".join(part for part in (_module(group.module), words) if part)
    share = group.frames[-1].share
    text = "not finite" if share is None else "every value" if share == 1.0 else "a part of its values"
    stop = Stop("bad", " → ".join(names), where, text, share)
    left_out = Stop("bad", counted(group.left_out, "more operation"), "", "not finite either")
    return [left_out, stop] if group.left_out else [stop]


def _probes(incident: Incident) -> list[Stop]:
    """The user's own probes that held bad values."""
    bad = [probe for probe in incident.probes if probe.stats.nonfinite]
    shown = [
        Stop("bad", probe.name, "probe", probe.stats.describe(), probe.stats.nonfinite / max(1, probe.stats.numel))
        for probe in bad[:_BAD_SHOWN]
    ]
    if len(bad) > _BAD_SHOWN:
        shown.append(Stop("bad", counted(len(bad) - _BAD_SHOWN, "more probe"), "", "not finite either"))
    return shown


def _loss(incident: Incident) -> list[Stop]:
    """The loss as a stop, bad or not, with the names of its bad terms."""
    if incident.loss is None:
        return []
    bad = [name for name, number in incident.terms.items() if not math.isfinite(number)]
    bad += [f.name for f in incident.findings if f.kind == "term" and f.name not in bad]
    where = "terms " + ", ".join(bad[:4]) if bad else ""
    if math.isfinite(incident.loss):
        return [Stop("healthy", "loss", where, value(incident.loss))]
    return [Stop("bad", "loss", where, value(incident.loss), 1.0)]


def _gradients(incident: Incident) -> list[Stop]:
    """All bad gradients as one stop: how many tensors, and how much of them."""
    found = [finding for finding in incident.findings if finding.kind == "gradient" and finding.stats is not None]
    if not found:
        return []
    bad = sum(finding.stats.nonfinite for finding in found if finding.stats)
    whole = sum(finding.stats.numel for finding in found if finding.stats)
    first = f"first {found[0].name}"
    text = f"{bad:,} of {whole:,} values not finite ({percent(bad, whole)})"
    return [Stop("bad", f"{counted(len(found), 'gradient')} with bad values", first, text, bad / max(1, whole))]


def _end(incident: Incident) -> list[Stop]:
    """The last stop: where the guard stopped the bad values, and whether the state is as before."""
    if incident.action is Action.APPLY:
        return [Stop("spread", "the step was applied", "", "look at the weights: nantrap audit")]
    gate = {
        Action.SKIP: f"{DECIDERS.get(incident.decided_by, 'nantrap')} stopped it here: no optimizer step",
        Action.ROLLBACK: "nantrap stopped it here and rolled back",
        Action.STOP: "nantrap stopped the run here",
    }[incident.action]
    if incident.decided_by == "exception":
        gate = "an exception ended the step here"
    state = "weights, optimizer state, buffers"
    if incident.restored is False:
        return [Stop("gate", gate), Stop("spread", state, "", "not everything was restored")]
    kept = f"as before step {incident.step:,}"
    if incident.action is Action.ROLLBACK:
        back = incident.restored_step
        kept = "as in the last good state" if back is None else f"as in the state of step {back:,}"
    return [Stop("gate", gate), Stop("kept", state, "", kept)]
