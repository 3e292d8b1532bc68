"""The two-line form: the loss cannot be computed again, but the model's calls can, and the graph shows the rest.

1.  A bad loss whose graph shows a guilty node above the model: that is the origin (`autopsy`).
2.  A finite loss with bad gradients: the backward of the loss's own nodes, from the tensors they saved (below).
3.  The model's calls once more under the trace, with the gradients they got (`replay`).
4.  A replay that is finite leaves what the graph of the failed pass showed inside the model.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nantrap.finite import any_nonfinite
from nantrap.locate.failure import Failure
from nantrap.locate.location import FINITE_REPLAY, Location, evidence_location, location_of
from nantrap.locate.nodes import (
    ACCUMULATE,
    call_of,
    edges,
    operand_names,
    operation_name,
    result_shape,
    saved_numbers,
    tensor_names,
)
from nantrap.locate.probes import read_probes
from nantrap.locate.replay.replay import registered, replay_calls
from nantrap.locate.replay.root_call import LossPart, RootCall
from nantrap.locate.torch_private import input_metadata_of, log_softmax_backward, sequence_of, softmax_backward
from nantrap.locate.trace import OUTSIDE, Op, Trace
from nantrap.locate.trace.origin import Replay, Sink, judge
from nantrap.locate.twoline.autopsy import GraphEvidence
from nantrap.locate.twoline.infer import infer_source

_NO_CALL = (
    "the guard saw no call of the model in this step (its parts, or a copy of it, were called), so only the graph "
    "could be read; guard.attempt(fn, batch) shows more"
)


def locate_without_function(failed: Failure) -> Location:
    """Find where a failure began without the loss function."""
    probes = read_probes()
    location = replace(_search(failed), probes=probes)
    if isinstance(failed.evidence, GraphEvidence):
        location = replace(location, witnesses=failed.evidence.witnesses)
    return location.noting(_NO_CALL) if failed.root_call is None else location


def _search(failed: Failure) -> Location:
    """Where it began without a function to run: the loss's own nodes first, then the model's calls."""
    evidence = failed.evidence
    if isinstance(evidence, GraphEvidence) and not evidence.inside and failed.root_call is not None:
        return _in_loss(evidence_location(evidence, failed), failed)
    if isinstance(evidence, LossPart) and not failed.bad_buffers:
        found = _from_loss_part(failed, evidence)
        if found is not None:
            return found
    if failed.root_call is not None:
        return _from_calls(failed, failed.root_call)
    if isinstance(evidence, GraphEvidence):
        return _in_loss(evidence_location(evidence, failed), failed)
    return Location(phase=failed.symptom)


def _from_loss_part(failed: Failure, part: LossPart) -> Location | None:
    """What the backward of the loss's own nodes shows; `None` if it shows nothing."""
    replay = replay_loss_part(failed, part)
    if replay.origin is not None:
        return _in_loss(location_of(replay, fallback="backward", batch=failed.batch), failed)
    return _by_elimination(replay, failed) if replay.unknown and _bad_cotangent(failed) else None


def _from_calls(failed: Failure, call: RootCall) -> Location:
    """What the model's calls show; where they are finite, what the graph of the failed pass showed inside them."""
    evidence = failed.evidence
    replay = replay_calls(failed)
    location = location_of(replay, fallback=failed.symptom, batch=failed.batch)
    if location.source is None and location.op is not None and call.place is not None:
        location = replace(location, source=call.place.source())  # a layer of torch's own, called by the user's line
    if replay.origin is None:
        if isinstance(evidence, GraphEvidence):
            location = evidence_location(evidence, failed, replay=replay)
        if not replay.failed and replay.error is None:
            # the graph, or the rest being finite, says that the cause is in the model; yet it is finite in the replay
            model_failed = isinstance(evidence, GraphEvidence) or not _bad_cotangent(failed)
            general = f"{FINITE_REPLAY}:"  # the same in fewer words
            location = replace(
                location,
                exact=False if model_failed and evidence is not None else None,
                notes=tuple(note for note in location.notes if not note.startswith(general)),
            ).noting(_finite_model(failed))
    return location


def _in_loss(location: Location, failed: Failure) -> Location:
    """Code outside the model leaves no frames behind; where only one line is possible, it is named, as inferred."""
    if location.module == OUTSIDE and location.source is None and location.op is not None:
        forward = operation_name(location.node) if location.node else None
        replayed = [call.module for call in failed.calls if call.module is not None]
        inferred = infer_source(forward or location.op.removeprefix("aten."), failed.root, replayed)
        if inferred is not None:
            location = replace(location, source=inferred.source, module=inferred.module or location.module)
            return location.noting("the line is inferred: the only one of its kind in the code that called the guard")
    return location


def _by_elimination(replay: Replay, failed: Failure) -> Location:
    node = replay.unknown[0]
    name = operation_name(node.name())
    op = f"aten.{name}" if name else node.name()
    location = Location(phase="backward", module=OUTSIDE, op=op, node=node.name(), replay=replay)
    note = f"found by elimination: the backward of {node.name()} could not be run again"
    return _in_loss(location.noting(note), failed)


def _bad_cotangent(failed: Failure) -> bool:
    return any(any_nonfinite(call.cotangents.values()) for call in failed.calls)


def _finite_model(failed: Failure) -> str:
    """The note for a model that is finite in a replay: what that says about the cause."""
    if math.isfinite(failed.loss_value) and _bad_cotangent(failed):
        return "the gradient that entered the model was bad already: the cause is in the loss function's backward"
    if not math.isfinite(failed.loss_value) and failed.evidence is None:
        return "the model's output is finite in a replay: the cause is in the loss function, or does not repeat"
    return (
        "what the model returns is finite in a replay: the cause is in the code around it, the model replaced the bad "
        "value itself, or the failure does not repeat with the same inputs"
    )


# ---- after a failure


def replay_loss_part(failed: Failure, part: LossPart, *, wanted: frozenset[int] = frozenset()) -> Replay:
    """Run the backward of the loss's nodes again. The sinks are the gradients that enter the model or a parameter."""
    trace = Trace(failed.root, registered(failed), wanted=wanted)
    run = _Backward(part, trace)
    with trace:
        run.go(failed.loss_factor)
    trace.revise(lambda op: op._replace(place=None))  # the frames on the stack are those of the diagnosis
    sinks = [Sink("the gradient that enters the model", "gradient", trace.origins_of(g)) for g in run.arrived]
    return replace(
        judge(trace, sinks),
        unknown=tuple(run.unknown),
        again=lambda wanted: replay_loss_part(failed, part, wanted=wanted).trace,
    )


class _Backward:
    def __init__(self, part: LossPart, trace: Trace) -> None:
        self.part = part
        self.trace = trace
        self.saved = dict(zip(part.nodes, part.saved, strict=True))
        self.incoming: dict[tuple[Any, int], Tensor] = {}
        self.arrived: list[Tensor] = []
        self.unknown: list[Any] = []

    def go(self, factor: float) -> None:
        """Run the backward pass of the loss's own nodes, one after the other, from a gradient of `factor`."""
        self.incoming[self.part.nodes[0], 0] = torch.full_like(self.part.loss, factor)
        for node in self._in_order():
            if node.name() == ACCUMULATE:
                gradient = self.incoming.get((node, 0))
                if gradient is not None:
                    self.arrived.append(gradient)
                continue
            begin = len(self.trace.ops)
            try:
                gradients = self._backward(node)
            except Exception:  # a node that cannot be run again: what comes after it starts from ones
                self.unknown.append(node)
                gradients = ()
            self.trace.revise(functools.partial(_of_node, node), since=begin)
            for edge, gradient in zip(edges(node), gradients, strict=False):
                if gradient is not None and edge.node is not None:
                    self._arrive(edge.node, edge.output, gradient)

    def _arrive(self, node: Any, output: int, gradient: Tensor) -> None:
        if node not in self.saved:
            self.arrived.append(gradient)
            return
        before = self.incoming.get((node, output))
        self.incoming[node, output] = gradient if before is None else before + gradient

    def _in_order(self) -> list[Any]:
        """Every node after all that feed it a gradient."""
        waiting = dict.fromkeys(self.saved, 0)
        for node in self.saved:
            for edge in edges(node):
                if edge.node in waiting:
                    waiting[edge.node] += 1
        ready, order = [node for node, count in waiting.items() if not count], []
        while ready:
            node = ready.pop(0)
            order.append(node)
            for edge in edges(node):
                if edge.node in waiting:
                    waiting[edge.node] -= 1
                    if not waiting[edge.node]:
                        ready.append(edge.node)
        return order

    def _given(self, node: Any, output: int = 0) -> Tensor:
        gradient = self.incoming.get((node, output))
        if gradient is not None:
            return gradient
        shape, dtype, device = result_shape(node, output)
        return torch.ones(shape, dtype=dtype, device=device)

    def _backward(self, node: Any) -> tuple[Any, ...]:
        """The gradients that a node gives, by its own function or computed again from what it saved."""
        names = tensor_names(type(node))
        if not names:
            result = node(*[self._given(node, i) for i in range(len(input_metadata_of(node)))])
            return result if isinstance(result, tuple) else (result,)
        values = self.saved[node] or ()
        saved = {n.removeprefix("_raw_saved_"): v for n, v in zip(names, values, strict=True) if v is not None}
        name = operation_name(node.name())
        formula = _BY_RESULT.get(name or "")
        if formula is not None and "result" in saved:
            return (formula(self._given(node), saved["result"], saved_numbers(node)),)
        return self._rebuilt(node, saved)

    def _rebuilt(self, node: Any, saved: dict[str, Any]) -> tuple[Any, ...]:
        """The operation once more on what its node saved, and its own backward formula from the incoming gradient."""
        operands: dict[str, Tensor] = {}
        wanted: list[str] = []
        below = edges(node)
        names = operand_names(node)
        for operand, edge in zip(names, below, strict=False):
            if edge.node is not None:
                value = saved.get(operand)
                if value is None:  # not saved, so no derivative depends on it: only its shape matters
                    shape, dtype, device = _shape_of(edge.node, edge.output)
                    value = torch.zeros(shape, dtype=dtype, device=device)
                operands[operand] = value.detach().requires_grad_()
                wanted.append(operand)
        call = call_of(node, {k: v for k, v in saved.items() if k not in operands}, operands)
        if call is None:
            raise RuntimeError("not enough was saved")
        with torch.enable_grad():
            result = call()
        results = [t for t in (result if isinstance(result, (tuple, list)) else (result,)) if t.requires_grad]
        given = [self._given(node, i).reshape(t.shape) for i, t in enumerate(results[: len(input_metadata_of(node))])]
        found = torch.autograd.grad(results[: len(given)], [operands[n] for n in wanted], given, allow_unused=True)
        by_name = dict(zip(wanted, found, strict=True))
        return tuple(by_name.get(n) if e.node is not None else None for n, e in zip(names, below, strict=False))


def _shape_of(node: Any, output: int) -> tuple[tuple[int, ...], torch.dtype, torch.device]:
    if node.name() == ACCUMULATE:
        variable = node.variable
        return tuple(variable.shape), variable.dtype, variable.device
    return result_shape(node, output)


def _of_node(node: Any, op: Op) -> Op:
    """The record of an operation as a part of a node's backward."""
    if op.node is None:
        op = op._replace(phase="backward", node=node.name())
    return op._replace(sequence=sequence_of(node))


_Formula = Callable[[Tensor, Tensor, dict[str, Any]], Tensor]


def _dim(numbers: dict[str, Any]) -> int:
    return int(numbers.get("dim", -1))


_BY_RESULT: dict[str, _Formula] = {
    # nodes that save their result and not their input, with the operations torch's own formulas use
    "sqrt": lambda g, r, _: g / (2 * r),
    "rsqrt": lambda g, r, _: -0.5 * g * r.pow(3),
    "reciprocal": lambda g, r, _: -g * (r * r),
    "exp": lambda g, r, _: g * r,
    "exp2": lambda g, r, _: g * r * 0.6931471805599453,
    "expm1": lambda g, r, _: g * (r + 1),
    "tan": lambda g, r, _: g * (1 + r.pow(2)),
    "sigmoid": lambda g, r, _: torch.ops.aten.sigmoid_backward(g, r),
    "tanh": lambda g, r, _: torch.ops.aten.tanh_backward(g, r),
    "_softmax": lambda g, r, n: softmax_backward(g, r, _dim(n), r.dtype),
    "_log_softmax": lambda g, r, n: log_softmax_backward(g, r, _dim(n), r.dtype),
}
