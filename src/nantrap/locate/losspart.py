"""The loss's own part of the graph, between the model's output and the loss, and its backward run again.

In the two-line form the loss function cannot be called again, and `backward` frees what its nodes saved. So while a
step is still healthy, references to those small tensors are taken (`note_loss_part`, some microseconds). If the loss
is finite but a gradient is not, the backward of just these nodes is run once more under the trace, node by node, from
the loss down (`replay_loss_part`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

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
from nantrap.locate.replay import Replay, Sink, judge, registered
from nantrap.locate.step import FailedStep, RootCall
from nantrap.locate.torch_private import (
    input_metadata_of,
    log_softmax_backward,
    raw_tensor,
    sequence_of,
    softmax_backward,
)
from nantrap.locate.trace import Op, Trace

_MOST_NODES = 64
_LARGEST_BYTES = 4 * 2**20


_NEVER_SINGULAR = frozenset(
    {"NllLossBackward0", "NllLoss2DBackward0", "LogSoftmaxBackward0", "MseLossBackward0", "SmoothL1LossBackward0",
     "HuberLossBackward0", "BinaryCrossEntropyWithLogitsBackward0", "AbsBackward0", "MeanBackward0", "MeanBackward1",
     "SumBackward0", "SumBackward1", "AddBackward0", "SubBackward0", "NegBackward0", "ViewBackward0", "TBackward0",
     "ReshapeAliasBackward0", "UnsafeViewBackward0", "TransposeBackward0", "PermuteBackward0", "SqueezeBackward0",
     "SqueezeBackward1", "UnsqueezeBackward0", "SliceBackward0", "SelectBackward0", "CloneBackward0"}
)  # fmt: skip
"""Nodes whose derivative is finite for every finite input, in any precision the forward pass survived."""


@dataclass(slots=True)
class LossPart:
    """Nodes from the loss down to the model's outputs, breadth first, and the tensors each of them saved."""

    loss: Tensor
    nodes: list[Any]
    saved: list[tuple[Any, ...] | None]
    boundary: Any = field(default_factory=set)

    def saved_by(self, sequence: int) -> tuple[Tensor, ...]:
        """The tensors that the node with this sequence number saved."""
        for node, saved in zip(self.nodes, self.saved, strict=True):
            if saved is not None and sequence_of(node) == sequence:
                return tuple(tensor for tensor in saved if isinstance(tensor, Tensor))
        return ()


def note_loss_part(loss: Tensor, call: RootCall | None) -> LossPart | None:
    """Keep references to what the nodes between loss and model saved. Runs in every healthy two-line step, so it is
    short."""
    root = loss.grad_fn
    if root is None:
        return None
    boundary: Any = ()
    if call is not None:
        boundary = call.nodes if call.previous is None else set().union(*(one.nodes for one in call.chain()))
        if not boundary or root in boundary:  # the model computes its own loss, or its outputs cannot be recognised
            return None
    nodes: list[Any] = [root]
    seen = {root}
    singular = False
    for node in nodes:  # grows while it is walked
        singular = singular or type(node).__name__ not in _NEVER_SINGULAR
        for below, _ in node.next_functions:
            if below is not None and below not in seen and below not in boundary and len(nodes) < _MOST_NODES:
                seen.add(below)
                nodes.append(below)
    if not singular:  # the usual losses: the derivative is bounded everywhere, so there is nothing to look for later
        return None
    saved: list[tuple[Any, ...] | None] = []
    for node in nodes:
        names = tensor_names(type(node))
        saved.append(tuple([_reference(node, name) for name in names]) if names else None)
    return LossPart(loss.detach(), nodes, saved, boundary)


def _reference(node: Any, name: str) -> Any:
    """What a node saved, unless it is freed or too large to keep."""
    try:
        value = raw_tensor(node, name)
    except (RuntimeError, AttributeError):
        return None
    return None if isinstance(value, Tensor) and value.nbytes > _LARGEST_BYTES else value


# ---- after a failure


def replay_loss_part(failed: FailedStep, part: LossPart, *, wanted: frozenset[int] = frozenset()) -> Replay:
    """Run the backward of the loss's nodes again. The sinks are the gradients that enter the model or a parameter."""
    trace = Trace(failed.root, registered(failed), wanted=wanted)
    run = _Backward(part, trace)
    with trace:
        run.go(failed.loss_factor)
    for op in trace.ops:
        op.place = None  # the frames on the stack are those of the diagnosis
    sinks = [Sink("the gradient that enters the model", "gradient", trace.origins_of(g)) for g in run.arrived]
    replay = judge(trace, sinks)
    replay.unknown = tuple(run.unknown)
    replay.again = lambda wanted: replay_loss_part(failed, part, wanted=wanted).trace
    return replay


class _Backward:
    def __init__(self, part: LossPart, trace: Trace) -> None:
        self.part = part
        self.trace = trace
        self.saved = dict(zip(part.nodes, part.saved, strict=True))
        self.incoming: dict[tuple[Any, int], Tensor] = {}
        self.arrived: list[Tensor] = []
        self.unknown: list[Any] = []

    def go(self, factor: float) -> None:
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
            for op in self.trace.ops[begin:]:
                _belongs_to(op, node)
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


def _belongs_to(op: Op, node: Any) -> None:
    if op.node is None:
        op.phase, op.node = "backward", node.name()
    op.sequence = sequence_of(node)


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
