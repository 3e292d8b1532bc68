"""`Location`: where a failure began, with the live material from which causes are derived."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from nantrap.finite import any_nonfinite, first_nonfinite_index, tensor_stats
from nantrap.incident import Finding, Frame, Phase, Probe, Source
from nantrap.locate.batch import tensors_of
from nantrap.locate.replay import Replay
from nantrap.locate.samples import Samples
from nantrap.locate.trace import Capture, External, Op, Trace

_FRAMES = 10


@dataclass(slots=True)
class Location:
    """Where a failure began, and the live material from which causes are derived."""

    phase: Phase
    module: str | None = None
    op: str | None = None
    node: str | None = None
    source: Source | None = None
    call: int | None = None
    findings: list[Finding] = field(default_factory=list)
    frames: tuple[Frame, ...] = ()
    probes: tuple[Probe, ...] = ()
    samples: Samples = field(default_factory=Samples)
    exact: bool | None = None
    notes: list[str] = field(default_factory=list)
    sinks: tuple[str, ...] = ()
    capture: Capture | None = None
    external: External | None = None
    replay: Replay | None = None


def location_of(replay: Replay, *, fallback: Phase) -> Location:
    location = Location(phase=fallback, replay=replay, exact=replay.exact, sinks=replay.sinks)
    location.notes += [f"the replay differs: {text}" for text in replay.differences]
    if replay.error is not None:
        kind = type(replay.error).__name__
        location.notes.append(f"the replay ended with {kind}: {str(replay.error).splitlines()[0]}")
    if replay.origin is None:
        if not replay.failed and replay.error is None:
            location.notes.append("the replay is finite: the failure does not repeat with the same inputs")
        return location
    if replay.origin < 0:
        return external_location(location, replay.trace.externals[replay.origin], replay.trace)
    op = replay.trace.ops[replay.origin]
    location.phase, location.module, location.call = op.phase, op.module, op.call
    location.op, location.node = op.name, op.node
    location.source = op.place.source() if op.place else None
    location.capture = replay.trace.captures.get(op.index)
    location.frames = frames_before(replay.trace, op)
    if location.capture is not None:
        for output in location.capture.outputs:
            if output.is_floating_point() and any_nonfinite([output]):
                location.findings.append(finding("activation", op.name, output, op.phase))
    return location


def external_location(location: Location, external: External, trace: Trace) -> Location:
    """A tensor that was bad before the step; `op` is the first operation that read it."""
    reader = external.first_reader
    if reader is not None and reader < len(trace.ops):
        op = trace.ops[reader]
        location.op, location.source = op.name, op.place.source() if op.place else None
    location.external = external
    if external.kind == "batch":
        location.phase, location.module = "data", "data"
        location.findings.append(finding("batch", external.name, external.tensor, "data"))
    elif external.kind == "optimizer_state":
        location.phase, location.module = "optimizer", "optimizer"
        location.findings.append(finding("optimizer_state", external.name, external.tensor, "state"))
    else:
        location.phase, location.module = "state", owner_of(external.name)
        kind = "buffer" if external.kind == "buffer" else "parameter"
        location.findings.append(finding(kind, external.name, external.tensor, "state"))
    return location


def frames_before(trace: Trace, origin: Op) -> tuple[Frame, ...]:
    """The last operations up to the origin that gave floating-point values, so that one sees them grow."""
    frames: list[Frame] = []
    for op in reversed(trace.ops[: origin.index + 1]):
        if op.phase == origin.phase and (op.absmax is not None or op.nan or op.inf):
            frames.append(
                Frame(
                    op=op.name,
                    module=op.module,
                    dtype=op.dtype,
                    absmax=op.absmax,
                    nonfinite=int(op.nan or op.inf),
                    phase=op.phase,
                    line=op.place.line if op.place else None,
                    origin=op is origin,
                )
            )
        if len(frames) == _FRAMES:
            break
    return tuple(reversed(frames))


def finding(kind: str, name: str, tensor: Tensor, phase: Phase) -> Finding:
    """A finding about one tensor with exact statistics, its first bad place and, for a batch, the bad samples."""
    samples: tuple[int, ...] = ()
    if kind == "batch" and tensor.dim() > 0:
        rows = (~tensor.detach().isfinite()).reshape(tensor.shape[0], -1).any(dim=1)
        samples = tuple(int(i) for i in rows.nonzero().flatten()[:64])
    return Finding(
        kind=kind,  # type: ignore[arg-type]
        name=name,
        phase=phase,
        stats=tensor_stats(tensor),
        first_index=first_nonfinite_index(tensor),
        samples=samples,
    )


def batch_findings(batch: object) -> list[Finding]:
    """What is non-finite in a batch, by path and sample."""
    return [finding("batch", path, tensor, "data") for path, tensor in tensors_of(batch) if any_nonfinite([tensor])]


def owner_of(name: str) -> str:
    """The module that owns a parameter or buffer, `loss` for one of the root itself."""
    return name.rpartition(".")[0] or "loss"
