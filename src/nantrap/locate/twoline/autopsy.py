"""The autograd graph of a bad loss is still alive: walk it and judge each node by its saved tensors. No replay.

From the loss down, along edges that carry non-finite values. What an edge carries is known, in this order:

1.  a parameter, a model's output that was kept, or a result the node itself saved;
2.  what the consumer saved of its input: `LogBackward0` keeps what the log was taken of;
3.  the operation run again on what its node saved and on what is known of its inputs (see `nodes`).

A node whose result is NaN though no input is, or Inf though every input is finite, is an origin, as in the trace. A
tensor that needs no gradient is no node; where it was saved (targets) it is checked, and where it was not, a sum of
finite numbers that is NaN shows that it is bad.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nantrap.finite import dtype_name
from nantrap.locate.nodes import (
    ACCUMULATE,
    Edge,
    NodeCall,
    call_of,
    edges,
    operand_names,
    operands_of,
    operation_name,
    saved_numbers,
    saved_tensors,
)
from nantrap.locate.replay.root_call import RootCall
from nantrap.locate.torch_private import sequence_of
from nantrap.locate.trace import OUTSIDE, Capture, External, Op
from nantrap.locate.trace.origin import SOFTMAX, guilty_of
from nantrap.locate.trace.storage import extremes, only_minus_inf
from nantrap.locate.twoline.caller import last_entry
from nantrap.locate.twoline.same_loss import factors_of

_MOST_NODES = 20_000
_LONGEST_CHAIN = 6
_DEEPEST = 64
_LARGEST = 1 << 24
_SELECT = ("masked_fill", "where", "clamp", "masked_scatter", "index_put")
"""They write a value that the program chose: a -Inf from them is intended."""
_WITNESSES = ("binary_cross_entropy", "kl_div", "xlogy")
"""Losses that compare with targets, and accept any."""


@dataclass(frozen=True, slots=True)
class GraphEvidence:
    """What the live graph of a bad loss showed.

    Attributes:
        op: the guilty operation; its module is `loss`, or empty where the node lies inside the model.
        capture: the operation with its arguments as far as they are known.
        external: the bad tensor that entered without gradient, if that is the cause.
        inside: the node lies inside the model.
        last_sequence: sequence number of the loss's node, by which nodes are matched with a replay of the step.
        model_last_sequence: the same of the model's last output, for a replay of the model.
        parameters: the parameters the guilty operation reads directly.
        seen: the bad tensor that entered without gradient was itself seen, not only inferred.
        notes: what is uncertain.
        witnesses: calls of losses whose targets a rule may need, guilty or not.
    """

    op: Op
    capture: Capture | None = None
    external: External | None = None
    inside: bool = False
    last_sequence: int = 0
    model_last_sequence: int = 0
    parameters: tuple[Tensor, ...] = ()
    seen: bool = True
    notes: tuple[str, ...] = ()
    witnesses: tuple[Capture, ...] = ()


@dataclass(frozen=True, slots=True)
class _Input:
    name: str
    edge: Edge | None
    value: Tensor | None


def examine(loss: Tensor, call: RootCall | None) -> GraphEvidence | None:
    """Find the guilty node of a non-finite loss. Never raises: without evidence there is none."""
    if loss.grad_fn is None:
        return None
    try:
        with torch.no_grad():
            if call is not None:
                call.factors, call.entry = factors_of(loss), last_entry()
            return _Autopsy(loss, call).verdict()
    except Exception:  # the replay does not need this evidence, and the step is lost already: any error is ignored
        return None


class _Autopsy:
    def __init__(self, loss: Tensor, call: RootCall | None) -> None:
        self.loss = loss
        self.root: Any = loss.grad_fn
        self.consumers: dict[tuple[Any, int], list[tuple[Any, int]]] = {}
        self.values: dict[tuple[Any, int], Tensor | None] = {(self.root, 0): loss.detach()}
        self.saved: dict[Any, dict[str, Any]] = {}
        self.assumed: set[tuple[Any, int]] = set()
        """Values computed with an operand that was not saved and is assumed to be finite."""
        boundary: set[Any] = set()
        for one in call.chain() if call is not None else ():
            boundary |= one.nodes
            for node, output in one.outputs.items():
                self.values.setdefault((node, output[1]), output[0])
        self.reached = reached = self._walk([self.root])
        self.boundary = boundary & reached
        # outputs that cannot be recognised (an object of a user's class): then the model is replayed first
        self.inside = self._walk(list(self.boundary)) if self.boundary or call is None else reached

    def _walk(self, roots: list[Any]) -> set[Any]:
        """All nodes below the roots, up to a limit. Notes for each output which nodes use it."""
        seen: set[Any] = set()
        stack = list(roots)
        while stack and len(seen) < _MOST_NODES:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            for index, edge in enumerate(edges(node)):
                if edge.node is not None:
                    users = self.consumers.setdefault((edge.node, edge.output), [])
                    if (node, index) not in users:
                        users.append((node, index))
                    stack.append(edge.node)
        return seen

    # ---- values

    def saved_by(self, node: Any) -> dict[str, Any]:
        if node not in self.saved:
            self.saved[node] = saved_tensors(node)
        return self.saved[node]

    def value(self, node: Any, output: int, depth: int = 0) -> Tensor | None:
        key = (node, output)
        if key not in self.values:
            self.values[key] = None  # while it is being found
            self.values[key] = self._find_value(node, output, depth)
        return self.values[key]

    def _find_value(self, node: Any, output: int, depth: int) -> Tensor | None:
        """The value of a node's output: saved by the node or by a node that uses it, else computed again; `None` if
        unknown.
        """
        if node.name() == ACCUMULATE:
            return node.variable.detach()  # type: ignore[no-any-return]
        result = self.saved_by(node).get("result") if output == 0 else None
        if isinstance(result, Tensor):
            return result
        for consumer, index in self.consumers.get((node, output), ()):
            names = operand_names(consumer)
            if index < len(names):
                kept = self.saved_by(consumer).get(names[index])
                if isinstance(kept, Tensor):
                    return kept
        if depth > _DEEPEST:
            return None
        call = self.call(node, depth + 1)
        if call is None:
            return None
        if call.assumed or any((edge.node, edge.output) in self.assumed for edge in edges(node)):
            self.assumed.add((node, output))
        return _result(call, output)

    def call(self, node: Any, depth: int = 0) -> NodeCall | None:
        """The forward call of a node, rebuilt from what the graph saved; `None` if an operand is missing."""
        operands: dict[str, Any] = {}
        names = operand_names(node)
        lists = len(set(names)) < len(names)
        for name, edge in zip(names, edges(node), strict=False):
            value = self.value(edge.node, edge.output, depth) if edge.node is not None else None
            if value is None and lists:
                return None
            if lists:
                operands.setdefault(name, []).append(value)
            elif value is not None:
                operands[name] = value
        call = call_of(node, self.saved_by(node), operands)
        if call is not None and call.name == "masked_fill" and "value" in call.assumed and self._feeds_softmax(node):
            value = call.arguments["value"]
            call.arguments["value"] = torch.full_like(value, -math.inf) if isinstance(value, Tensor) else -math.inf
        return call

    def _feeds_softmax(self, node: Any) -> bool:
        return any(f"aten.{operation_name(user.name())}" in SOFTMAX for user, _ in self.consumers.get((node, 0), ()))

    def inputs(self, node: Any) -> Iterator[_Input]:
        """Everything an operation read: its edges, and the tensors it saved that came over no edge."""
        names = operand_names(node)
        named: set[str] = {"result"}
        for index, edge in enumerate(edges(node)):
            name = names[index] if index < len(names) else f"input {index}"
            if edge.node is not None:
                named.add(name)
                yield _Input(name, edge, self.value(edge.node, edge.output))
        for name, value in self.saved_by(node).items():
            if name not in named and isinstance(value, Tensor) and not name.startswith("result"):
                yield _Input(name, None, value)

    # ---- judgement

    def verdict(self, begin: Edge | None = None, *, follow_erased: bool = True) -> GraphEvidence | None:
        """The guilty node behind an edge that carries bad values: that of the loss, unless another one is given."""
        origins = self._origins_behind((self.root, 0) if begin is None else (begin.node, begin.output))
        if not origins:
            return None
        origins.sort(key=lambda one: one.op.sequence)
        chosen = origins[guilty_of([(one.op, one.capture) for one in origins])]
        if follow_erased and chosen.capture is not None and (edge := self._erased_behind(chosen)) is not None:
            earlier = self.verdict(edge, follow_erased=False)
            if earlier is not None and earlier.capture is not None:
                chosen = earlier
        return replace(
            chosen,
            witnesses=tuple(self._witnesses()),
            last_sequence=sequence_of(self.root),
            model_last_sequence=max((sequence_of(node) for node in self.boundary), default=0),
        )

    def _origins_behind(self, begin: tuple[Any, int]) -> list[GraphEvidence]:
        """All origins behind one output of a node; where there is none, the operands that only an origin explains."""
        origins: list[GraphEvidence] = []
        hidden: list[GraphEvidence] = []
        seen: set[Any] = set()
        stack = [begin]
        while stack:
            node, output = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if node.name() == ACCUMULATE:
                if _bad(node.variable):
                    origins.append(self._state(node))
                continue
            value = self.value(node, output)
            inputs = list(self.inputs(node))
            below = [(i.edge, i.value) for i in inputs if i.edge is not None]
            stack += [
                (edge.node, edge.output)
                for edge, given in below
                if given is None or (edge.node, edge.output) in self.assumed or _bad(given)
            ]
            evidence = self._judge(node, value, inputs)
            if evidence is not None:
                origins.append(evidence)
            elif (node, output) in self.assumed and any(edge.node is None for edge in edges(node)):
                hidden.append(self._data(node, "the other one", None))
        return origins or hidden

    def _erased_behind(self, chosen: GraphEvidence) -> Edge | None:
        """The edge whose Inf arithmetic erased (x / inf = 0) before the guilty node failed at the same places."""
        assert chosen.capture is not None
        bad = ~chosen.capture.outputs[0].isfinite()
        node = next((n for n in self.reached if sequence_of(n) == chosen.op.sequence), None)
        for _ in range(_LONGEST_CHAIN):
            below = [edge for edge in edges(node) if edge.node is not None] if node is not None else []
            following: Any = None
            for edge in below:
                value = self.value(edge.node, edge.output)
                if value is None or value.shape != bad.shape or not value.is_floating_point():
                    continue
                if not bool(value[bad].isfinite().all()):
                    return edge
                if (operation_name(edge.node.name()) or "") not in (*_SELECT, "relu", "nan_to_num"):
                    following = edge.node
            node = following
        return None

    def _witnesses(self) -> Iterator[Capture]:
        for node in self.reached:
            name = operation_name(node.name())
            if name is not None and name.startswith(_WITNESSES) and (call := self.call(node)) is not None:
                args, kwargs = call.as_traced()
                yield Capture(self._op(node, name), call.run, args, kwargs, ())

    def _judge(self, node: Any, value: Tensor | None, inputs: list[_Input]) -> GraphEvidence | None:
        """The evidence if this node made bad values of good inputs, or was given bad data; `None` if it did neither."""
        if value is None:
            return None
        nan, inf, _ = extremes(value)
        if not (nan or inf):
            return None
        for one in inputs:
            if one.edge is None and one.value is not None and _is_bad_data(one.value):
                return self._data(node, one.name, one.value)
        if self._only_by_assumption(node, inputs):
            return None  # the inputs cannot have been as assumed: the cause is further back in the graph
        in_nan, in_inf = _held_by(inputs, node)
        name = operation_name(node.name()) or node.name()
        if nan and not in_nan:
            if not in_inf and _hides_operand(node, inputs):
                return self._data(node, "the other one", None)
            return self._evidence_against(node, name, "nan", value)
        if inf and not (nan or in_nan or in_inf) and name not in _SELECT:
            return self._evidence_against(node, name, "inf", value)
        return None

    def _only_by_assumption(self, node: Any, inputs: list[_Input]) -> bool:
        """Whether an operation is finite on inputs that are partly assumed: they were not so."""
        if not any(i.edge is not None and (i.edge.node, i.edge.output) in self.assumed for i in inputs):
            return False
        call = self.call(node)
        again = None if call is None else _result(call, 0)
        return again is not None and not _bad(again)

    def _op(self, node: Any, name: str) -> Op:
        inside = node in self.inside
        return Op(0, f"aten.{name}", "forward", "" if inside else OUTSIDE, 0, node.name(), sequence_of(node), None)

    def _evidence_against(self, node: Any, name: str, made: Any, value: Tensor) -> GraphEvidence:
        """The evidence against a node: its operation, and its operands as far as the graph saved them."""
        nan, inf, _ = extremes(value)
        op = self._op(node, name)._replace(
            name=name if operation_name(node.name()) is None else f"aten.{name}",
            made=made,
            nan=nan,
            inf=inf,
            dtype=dtype_name(value.dtype),
        )
        capture = None
        notes: tuple[str, ...] = ()
        call = self.call(node)
        if call is not None:
            args, kwargs = call.as_traced()
            capture = Capture(op, call.run, args, kwargs, (value,), call.assumed)
            if call.assumed:
                notes = (f"{' and '.join(call.assumed)} of {op.name} is not known: it needs no gradient",)
        return GraphEvidence(
            op, capture, inside=node in self.inside, parameters=tuple(self._parameters(node)), notes=notes
        )

    def _data(self, node: Any, name: str, value: Tensor | None) -> GraphEvidence:
        """A tensor outside the graph is bad: it came with the batch, or was made from it without autograd."""
        op = self._op(node, operation_name(node.name()) or node.name())
        external = External("batch", name, torch.full((), math.nan) if value is None else value)
        return GraphEvidence(op, None, external, inside=node in self.inside, seen=value is not None)

    def _state(self, node: Any) -> GraphEvidence:
        """A parameter was bad before the step; its name is known only where the model is."""
        reader, _ = self.consumers[node, 0][0]
        op = Op(0, f"aten.{operation_name(reader.name()) or reader.name()}", "state", "", 0, None, -1, None)
        return GraphEvidence(op, None, External("parameter", "", node.variable), inside=node in self.inside)

    def _parameters(self, node: Any) -> Iterator[Tensor]:
        """Parameters an operation reads directly or through a view, an expansion or a cast."""
        for edge in edges(node):
            source = edge.node
            for _ in range(4):
                if source is None or source.name() == ACCUMULATE or len(source.next_functions) != 1:
                    break
                if operation_name(source.name()) not in ("t", "transpose", "permute", "view", "expand", "_to_copy"):
                    break
                source = source.next_functions[0][0]
            if source is not None and source.name() == ACCUMULATE:
                yield source.variable


def _result(call: NodeCall, output: int) -> Tensor | None:
    """One output of a call that is made again; `None` if it is too large to try, or fails."""
    if any(isinstance(value, Tensor) and value.numel() > _LARGEST for value in call.arguments.values()):
        return None
    with contextlib.suppress(RuntimeError, TypeError, IndexError, ValueError, NotImplementedError):
        result = call()
        if isinstance(result, (tuple, list)):
            result = result[output]
        return result if isinstance(result, Tensor) else None
    return None


def _bad(value: Tensor) -> bool:
    nan, inf, _ = extremes(value)
    return nan or inf


def _is_bad_data(value: Tensor) -> bool:
    """Whether a tensor that entered without gradient is bad, and no mask."""
    nan, inf, _ = extremes(value)
    return nan or (inf and not only_minus_inf(value))


def _held_by(inputs: list[_Input], node: Any) -> tuple[bool, bool]:
    """Whether what an operation was given holds NaN, and Inf: its tensors as far as they are known, and its numbers."""
    found = [extremes(one.value) for one in inputs if one.value is not None]
    numbers = [number for number in saved_numbers(node).values() if isinstance(number, float)]
    nan = any(each[0] for each in found) or any(map(math.isnan, numbers))
    return nan, any(each[1] for each in found) or any(map(math.isinf, numbers))


def _hides_operand(node: Any, inputs: list[_Input]) -> bool:
    """Whether an operation has an operand of which nothing is known: it needs no gradient, and was not saved.

    What the derivative does not need is only added to the rest, or selected: finite values of it make no NaN, so that
    NaN of finite operands shows that it is bad. An operand that may be left out (a bias) was perhaps not there at all.
    """
    known = {one.name for one in inputs}
    pairs = zip(edges(node), operands_of(node), strict=False)
    wanted = [one for edge, one in pairs if edge.node is None and one.required and not one.is_optional]
    return any(one.is_list or one.name not in known for one in wanted)
