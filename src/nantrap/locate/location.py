"""`Location`: where a failure began, with the live material from which causes are derived."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from nantrap.finite import any_nonfinite, bad_places, first_nonfinite_index, readable, size_in_bytes, tensor_stats
from nantrap.incident import Finding, Frame, Phase, Probe, Source
from nantrap.incident.wording import NO_MEMORY, is_out_of_memory
from nantrap.locate.batch import samples_in, tensors_of
from nantrap.locate.failure import Failure
from nantrap.locate.replay.replay import compiled_code_ran
from nantrap.locate.replay.samples import Samples
from nantrap.locate.trace import OUTSIDE, Capture, External, Op, Trace
from nantrap.locate.trace.origin import Replay
from nantrap.locate.twoline.autopsy import GraphEvidence
from nantrap.locate.twoline.caller import batch_of_caller, find_in_batch, is_batch_of_loop, name_in_program

_FRAMES = 10
_PATH_ENDS = 24
_LONGEST_PATH = 256
_MUCH_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Location:
    """Where a failure began, and the live material from which causes are derived."""

    phase: Phase
    module: str | None = None
    op: str | None = None
    node: str | None = None
    source: Source | None = None
    call: int | None = None
    findings: tuple[Finding, ...] = ()
    frames: tuple[Frame, ...] = ()
    path: tuple[Frame, ...] = ()
    probes: tuple[Probe, ...] = ()
    samples: Samples = field(default_factory=Samples)
    exact: bool | None = None
    notes: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    capture: Capture | None = None
    external: External | None = None
    also_external: tuple[External, ...] = ()
    """Other tensors of the batch that were bad before the step and whose values reached the loss as well."""
    constant: tuple[str, Tensor] | None = None
    """A bad tensor that only the program knows and that the guilty operation read, with its name, if that is known."""
    entered: tuple[str, ...] = ()
    """How that tensor came into a loop that ran under a trace: no operation made it. The first words are its name."""
    beside: tuple[str, ...] = ()
    """A bad value of the program that was made without a graph, where nothing shows what the loss read: its name, and
    how it came there."""
    replay: Replay | None = None
    witnesses: tuple[Capture, ...] = ()
    unwritten: bool = False
    """The operation left memory unwritten that was read. `replay` is a re-run with fresh memory filled with NaN."""

    def bad_rows(self, size: int) -> tuple[frozenset[int], frozenset[int]]:
        """The rows with bad values in what the operation gave, and in what any operation gave that made some.

        Only results with so many rows count. Where the batch itself is bad, its bad samples are the rows.
        """
        if self.capture is None and self.phase == "data":
            given = frozenset(index for finding in self.findings for index in finding.samples)
            return given, frozenset()  # another sample may fail for another reason
        others = () if self.replay is None else self.replay.trace.captures.values()
        own = frozenset().union(*() if self.capture is None else (_bad_rows(self.capture, size),))
        return own, own.union(*(_bad_rows(each, size) for each in others))

    def noting(self, *notes: str) -> Location:
        """Adds notes after those that the place has."""
        return replace(self, notes=(*self.notes, *notes))


def _bad_rows(capture: Capture, size: int) -> frozenset[int]:
    """The rows with bad values in the results of an operation that have so many rows."""
    found: set[int] = set()
    for tensor in capture.outputs:
        if tensor.dim() and len(tensor) == size and tensor.layout == torch.strided:
            found.update(bad_places(tensor).reshape(size, -1).any(dim=1).nonzero().flatten().tolist())
    return frozenset(found)


FINITE_REPLAY = "the replay is finite"
"""How the note begins that a failure does not repeat."""


def location_of(replay: Replay, *, fallback: Phase, batch: object = None) -> Location:
    """Where a replay says that it began, with notes on how the replay differed from the step.

    Args:
        replay: the replay.
        fallback: the phase, if the replay shows none.
        batch: what the step was given, if that is known.
    """
    location = Location(
        phase=fallback, replay=replay, exact=replay.exact, sinks=replay.sinks, notes=tuple(_notes_on(replay))
    )
    if replay.origin is None:
        return location
    if replay.origin < 0:
        external = replay.trace.externals[replay.origin]
        path: tuple[Frame, ...] = ()
        if external.first_reader is not None and external.first_reader < len(replay.trace.ops):
            path = frames_after(replay, replay.trace.ops[external.first_reader], included=True)
        others = [replay.trace.externals[each] for each in replay.candidates if each < 0 and each != replay.origin]
        others = [each for each in others if each.kind == external.kind == "batch" and not each.mask]
        location = replace(location, path=path, also_external=tuple(others))
        return _external_location(location, external, replay.trace, batch=batch)
    return _operation_location(location, replay, replay.trace.ops[replay.origin])


def _notes_on(replay: Replay) -> Iterator[str]:
    """How a replay differed from the step, what it held, and how it ended."""
    shown = replay.differences if replay.failed else replay.differences[:1]
    yield from (f"the replay differs: {text}" for text in shown)
    held = captured_bytes(replay.trace)
    if held > _MUCH_BYTES:
        yield f"the diagnosis held {held / 2**20:,.0f} MB of tensors in addition to those of the step"
    if is_out_of_memory(replay.error):
        yield f"the replay was given up: {NO_MEMORY}"
    elif replay.error is not None:
        said = "".join(f": {line}" for line in str(replay.error).splitlines()[:1])  # some errors say nothing
        yield f"the replay ended with {type(replay.error).__name__}{said}"
    elif replay.origin is None and not replay.failed:
        how = "without compilation " if compiled_code_ran() else ""
        yield f"{FINITE_REPLAY}: {how}the failure does not repeat in it"


def _operation_location(location: Location, replay: Replay, op: Op) -> Location:
    """The operation that made it, with its operands and the operations around it."""
    capture = replay.trace.captures.get(op.index)
    constant = _constant_read(replay, op)
    outputs = capture.outputs if capture is not None else []
    return replace(
        location,
        phase=op.phase,
        module=op.module,
        call=op.call,
        op=op.name,
        node=op.node,
        source=op.place.source() if op.place else None,
        capture=capture,
        constant=constant,
        notes=(*location.notes, *_constant_note(op.name, constant)),
        frames=frames_before(replay.trace, op),
        path=frames_after(replay, op),
        findings=tuple(
            finding("activation", op.name, output, op.phase)
            for output in outputs
            if output.is_floating_point() and any_nonfinite([output])
        ),
    )


def _constant_read(replay: Replay, op: Op) -> tuple[str, Tensor] | None:
    """The tensor that only the program knows and that brought it in, where the guilty operation made nothing."""
    constants = [e for e in replay.trace.externals.values() if e.kind == "constant" and not e.mask]
    if op.made is not None or not constants:
        return None
    return name_in_program(constants[0].tensor), constants[0].tensor


def _constant_note(op: str, constant: tuple[str, Tensor] | None) -> list[str]:
    """The note about such a tensor, with its name if the program has one for it; none without one."""
    if constant is None:
        return []
    name, tensor = constant
    known = f", as in {name} of the program" if name else ""
    return [
        (
            f"{op} reads a tensor that is no parameter or buffer of the model and no part of the batch (a cached "
            f"table, a closure): {tensor_stats(tensor).describe()}{known}. It was made before the replay, so what made "
            "it is not known"
        )
    ]


def as_step_data(location: Location, batch: object) -> Location:
    """Where the loss function is given no batch and reads one itself: the tensor it read is the batch of the step.

    A closure, a partial or an object holds it. It is the batch if the loop around the step took it from its data, or
    made it in every round together with another tensor that has as many rows. A table stays what it is.
    """
    if location.constant is None or any(True for _ in tensors_of(batch)):
        return location
    name, tensor = location.constant
    if not is_batch_of_loop(name, tensor):
        return location
    found = finding("batch", name, tensor, "data")
    return replace(
        location,
        phase="data",
        module="data",
        external=External("batch", name, tensor),
        constant=None,
        findings=(found,),
        notes=tuple(note for note in location.notes if note not in _constant_note(location.op or "", (name, tensor))),
    )


def captured_bytes(trace: Trace) -> int:
    """The memory that a trace's captures keep alive."""
    seen = {}
    for capture in (*trace.captures.values(), *trace.witnesses.values()):
        for tensor in (*capture.inputs(), *capture.outputs):
            seen[id(tensor)] = size_in_bytes(tensor)
    return sum(seen.values())


def evidence_location(evidence: GraphEvidence, failed: Failure, *, replay: Replay | None = None) -> Location:
    """What the live graph showed. Modules and lines come from a finite replay of the same step, node by node."""
    op = evidence.op
    location = Location(
        phase=op.phase, module=op.module or None, op=op.name, node=op.node, replay=replay, notes=evidence.notes
    )
    names = {id(parameter): name for name, parameter in failed.parameters.items()}
    if evidence.external is not None:
        return _outside_the_graph(location, evidence, names, repeatable=failed.repeatable)
    if evidence.inside and replay is not None and replay.last_sequence is not None:
        last = evidence.last_sequence if failed.repeatable else evidence.model_last_sequence
        location = _as_in_replay(location, op, replay, op.sequence - last + replay.last_sequence)
    if evidence.inside or failed.root_call is None:
        owners = [_reader_of(names[id(p)], failed.root) for p in evidence.parameters if id(p) in names]
        if owners and location.module in (None, OUTSIDE):
            location = replace(location, module=owners[0])
    if evidence.capture is None:
        return location
    found = tuple(finding("activation", op.name, t, op.phase) for t in evidence.capture.outputs)
    return replace(location, capture=evidence.capture, findings=found)


def _as_in_replay(location: Location, op: Op, replay: Replay, sequence: int) -> Location:
    """The location with module and line of the same operation in a replay, where its node has this number."""
    twin = replay.trace.op_of_node(sequence)
    if twin is not None and twin.name == op.name:
        return replace(location, module=twin.module, call=twin.call, source=twin.place.source() if twin.place else None)
    if replay.error is None:  # the model's calls do not hold it: the code around them does
        return replace(location, module=location.module or OUTSIDE)
    return location


def _reader_of(name: str, root: nn.Module) -> str:
    """The module that computes with a parameter: its owner, or the one parametrization of a parametrized weight."""
    owner = owner_of(name)
    holder = dict(root.named_modules()).get(owner)
    return f"{owner}.0" if isinstance(holder, ParametrizationList) and len(holder) == 1 else owner


def _outside_the_graph(
    location: Location, evidence: GraphEvidence, names: dict[int, str], *, repeatable: bool
) -> Location:
    """A bad tensor that entered without gradient: a parameter, a part of the batch, or something made from it."""
    external = evidence.external
    assert external is not None
    if external.kind == "parameter":
        external = replace(external, name=names.get(id(external.tensor), ""))
        found = finding("parameter", external.name, external.tensor, "state")
        return replace(location, module=owner_of(external.name), external=external, findings=(found,))
    location = replace(location, node=None)
    known = find_in_batch(external.tensor if evidence.seen else None)
    name = name_in_program(external.tensor) if known is None and evidence.seen else ""
    if known is not None:
        external = replace(external, name=known[0], tensor=known[1])
    elif name:
        external = replace(external, name=name)
    elif not evidence.seen or batch_of_caller():
        # everything the caller holds is finite: the loss function made it, without a graph that could show how
        return replace(location, op=None).noting(
            f"an operand of {location.op} ({external.name}) is not finite and needs no gradient. It was computed "
            "outside the graph, so the operation that made it is not known"
            + ("" if repeatable else "; guard.attempt(fn, batch) would show it")
        )
    found = finding("batch", external.name, external.tensor, "data")
    if known is None and not name:  # that of the argument ("self") would be taken for one of the program's
        external = replace(external, name=f"an operand of {location.op}")
        found = replace(found, name=external.name, samples=())  # its rows may be no samples at all
    return replace(location, phase="data", module="data", external=external, findings=(found,))


def _external_location(location: Location, external: External, trace: Trace, *, batch: object) -> Location:
    """A tensor that was bad before the step; `op` is the first operation that read it."""
    name, tensor = external.name, external.tensor
    reader = external.first_reader
    op = trace.ops[reader] if reader is not None and reader < len(trace.ops) else None
    location = replace(location, external=external)
    if op is not None:
        location = replace(location, op=op.name, source=op.place.source() if op.place else None)
    if external.kind == "batch":
        bad = (external, *location.also_external)
        findings = tuple(finding("batch", each.name, each.tensor, "data", batch=batch) for each in bad)
        return replace(location, phase="data", module="data", findings=findings)
    if external.kind == "optimizer_state":
        found = finding("optimizer_state", name, tensor, "state")
        return replace(location, phase="state", module="optimizer", findings=(found,))
    if external.kind == "overwritten":
        found = finding("activation", "a value written by no operation", tensor, "forward")
        if op is None:
            return replace(location, phase="forward", findings=(found,))
        return replace(location, phase=op.phase, module=op.module, findings=(found,))
    location = replace(location, phase="state", module=owner_of(name))
    if not any_nonfinite([tensor]):  # what was written inside the step is restored by now
        return location
    kind = "buffer" if external.kind == "buffer" else "parameter"
    return replace(location, findings=(finding(kind, name, tensor, "state"),))


def weight_location(failed: Failure) -> Location | None:
    """The first parameter of which this rank holds a non-finite part; for a trace that does not follow it, since it
    was gathered from all ranks before it was used."""
    for name, parameter in failed.parameters.items():
        if any_nonfinite([parameter]) and (own := readable(parameter)) is not None:
            found = finding("parameter", name, own, "state")
            external = External("parameter", name, own)
            return Location(phase="state", module=owner_of(name), external=external, findings=(found,))
    return None


def frames_before(trace: Trace, origin: Op) -> tuple[Frame, ...]:
    """The last operations whose values flowed into the origin, so that one sees them grow."""
    frames: list[Frame] = []
    path = _data_path(trace, origin)
    for op in reversed(trace.ops[: origin.index + 1]):
        if op.index in path and (op.absmax is not None or op.nan or op.inf):
            frames.append(_frame(op, origin=op is origin))
        if len(frames) == _FRAMES:
            break
    return tuple(reversed(frames))


def frames_after(replay: Replay, start: Op, *, included: bool = False) -> tuple[Frame, ...]:
    """The operations that carried the bad values from the origin on; of very many, the first and the last ones.

    Args:
        replay: the traced re-run.
        start: the origin, or the first operation that read a bad tensor.
        included: whether `start` itself is one of them.
    """
    after = replay.trace.bad_between(start, replay.end)
    if included and (start.nan or start.inf):
        after.insert(0, start)
    left_out = len(after) - 2 * _PATH_ENDS
    if left_out <= 0:
        return tuple(_frame(op) for op in after)
    first, last = after[:_PATH_ENDS], after[-_PATH_ENDS:]
    return (*map(_frame, first), _frame(last[0], left_out=left_out), *map(_frame, last[1:]))


def _frame(op: Op, *, origin: bool = False, left_out: int = 0) -> Frame:
    """One operation of the path, as the incident shows it."""
    return Frame(
        op=op.name,
        module=op.module,
        dtype=op.dtype,
        absmax=op.absmax,
        nonfinite=int(op.nan or op.inf),
        phase=op.phase,
        line=op.place.line if op.place else None,
        origin=origin,
        share=op.bad / op.values if op.bad else None,
        left_out=left_out,
    )


def _data_path(trace: Trace, origin: Op) -> set[int]:
    """The operations whose results flowed into the origin, in the phase it belongs to, a few hundred at most."""
    path = {origin.index}
    stack = [origin]
    while stack and len(path) < _LONGEST_PATH:
        for index in stack.pop(0).sources:
            if index >= 0 and index not in path and trace.ops[index].phase == origin.phase:
                path.add(index)
                stack.append(trace.ops[index])
    return path


def finding(kind: str, name: str, tensor: Tensor, phase: Phase, *, batch: object = None) -> Finding:
    """A finding about one tensor with exact statistics, its first bad place and, for a batch, the bad samples.

    Args:
        kind: what the tensor is.
        name: what to call it.
        tensor: the tensor.
        phase: when it was found bad.
        batch: what the tensor came with, if it is part of a batch and that is known.
    """
    samples: tuple[int, ...] = ()
    if kind == "batch" and tensor.layout == torch.strided:  # a sparse one is mostly a graph between the samples
        samples = samples_in(tensor if batch is None else batch, tensor, bad_places(tensor))
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
    return [
        finding("batch", path, tensor, "data", batch=batch)
        for path, tensor in tensors_of(batch)
        if any_nonfinite([tensor])
    ]


def owner_of(name: str) -> str:
    """The module that owns a parameter or buffer, `loss` for one of the root itself."""
    return name.rpartition(".")[0] or "loss"
