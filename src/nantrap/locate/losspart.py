"""The backward of the loss's own part of the graph, between the model's output and the loss, run again.

If the loss is finite but a gradient is not, the backward of just the nodes that `note_loss_part` kept is run once more
under the trace, node by node, from the loss down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nantrap.locate.kept import LossPart
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
from nantrap.locate.origin import Replay, Sink, judge
from nantrap.locate.replay import registered
from nantrap.locate.step import FailedStep
from nantrap.locate.torch_private import input_metadata_of, log_softmax_backward, sequence_of, softmax_backward
from nantrap.locate.trace import Op, Trace

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
