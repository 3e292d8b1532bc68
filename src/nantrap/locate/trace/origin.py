"""Which origin is guilty: from the bad loss, gradient, parameter or buffer of a traced step back to what began it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from torch import Tensor

from nantrap.finite import any_nonfinite
from nantrap.locate.failure import Failure
from nantrap.locate.trace import Capture, Op, Trace, earliest
from nantrap.locate.trace.operations import ARITHMETIC
from nantrap.locate.trace.storage import only_minus_inf

SOFTMAX = ("aten._softmax", "aten._log_softmax", "aten.logsumexp", "aten._safe_softmax")

_ELEMENTWISE = (
    "aten.sqrt", "aten.rsqrt", "aten.log", "aten.log2", "aten.log10", "aten.log1p", "aten.pow", "aten.acos",
    "aten.asin",
    "aten.atanh", "aten.acosh", "aten.erfinv", "aten.logit",
)  # fmt: skip

_REDUCTIONS = (
    "aten.sum", "aten.mean", "aten.nll_loss_forward", "aten.nll_loss2d_forward", "aten.mm", "aten.bmm",
    "aten.addmm", "aten.dot",
    "aten.logsumexp", "aten.amax", "aten.max", "aten.linalg_vector_norm", "aten.mse_loss", "aten.l1_loss", "aten.prod",
    "aten.cumsum",
)  # fmt: skip

_LOGARITHMS = ("aten.log", "aten.log2", "aten.log10", "aten.log1p", "aten.log_")

SinkKind = Literal["value", "gradient", "state"]


class Sink(NamedTuple):
    """Where bad values ended: a computed value (loss, output), a gradient, or state (parameter, buffer)."""

    name: str
    kind: SinkKind
    origins: frozenset[int]


@dataclass(frozen=True, slots=True)
class Replay:
    """A traced re-run and what it reached.

    Attributes:
        trace: the trace.
        origin: index of the origin: an operation, or negative for a tensor that was bad before the step.
        sinks: what the origin's values reached, in words: `loss`, `gradient of head.weight`.
        exact: whether the re-run gave the failed step's values, bit for bit; `None` if that is not known.
        differences: what differed, in words.
        failed: whether the re-run was non-finite at all.
        loss: the loss of the re-run.
        error: an exception that ended the re-run.
        candidates: every origin that reached a sink.
        last_sequence: sequence number of the last node, by which nodes of the failed pass are matched with the re-run.
        unknown: nodes that could not be run again.
        dropped: a forward operation whose NaN the forward pass threw away, and whose derivative brought it back.
        alike: whether the re-run failed in the same way as the step; `None` if that is not known.
        again: runs the same again and keeps the operands of some operations, by index.
        end: the operation that wrote the loss, or the model's output where only the model was run again.
    """

    trace: Trace
    origin: int | None = None
    sinks: tuple[str, ...] = ()
    exact: bool | None = None
    differences: tuple[str, ...] = ()
    failed: bool = False
    loss: float | None = None
    error: BaseException | None = None
    candidates: tuple[int, ...] = ()
    last_sequence: int | None = None
    unknown: tuple[Any, ...] = ()
    dropped: int | None = None
    alike: bool | None = None
    again: Callable[[frozenset[int]], Trace] | None = None
    end: Op | None = None

    @property
    def op(self) -> Op | None:
        """The guilty operation, if it is one."""
        return self.trace.ops[self.origin] if self.origin is not None and self.origin >= 0 else None


def judge_tape(failed: Failure, tape: Trace) -> Replay:
    """The origin behind what a traced step left behind. Nothing is run."""
    sinks = [] if failed.loss is None else [Sink("the loss", "value", tape.origins_of(failed.loss))]
    sinks += [Sink(f"gradient of {n}", "gradient", tape.origins_of(g)) for n, g in failed.gradients.items()]
    sinks += [Sink(name, "state", tape.origins_of(tensor)) for name, tensor in failed.bad_state()]
    return replace(judge(tape, sinks), end=None if failed.loss is None else tape.writer_of(failed.loss))


def left_sinks(failed: Failure, trace: Trace, loss: Tensor | None) -> list[Sink]:
    """What a step leaves behind, with the origins that reached it."""
    return [Sink(name, kind, trace.origins_of(tensor)) for kind, name, tensor in _left_behind(failed, loss)]


def _left_behind(failed: Failure, loss: Tensor | None) -> Iterator[tuple[SinkKind, str, Tensor]]:
    """What a step leaves behind: its loss, the gradients, and the buffers that were found bad."""
    if loss is not None:
        yield "value", "the loss", loss
    for name, parameter in failed.parameters.items():
        if parameter.grad is not None:
            yield "gradient", f"gradient of {name}", parameter.grad
    for name, tensor in failed.bad_state():
        yield "state", name, tensor


def judge(trace: Trace, sinks: list[Sink], *, last: frozenset[int] = frozenset()) -> Replay:
    """The origin behind the bad sinks: values come before state, state before gradients.

    Args:
        trace: the traced step.
        sinks: what it left behind.
        last: origins that are blamed only where no other one is left.
    """
    reached = [sink for sink in sinks if sink.origins]
    if not reached:
        return Replay(trace)
    everything = frozenset().union(*(sink.origins for sink in reached))
    only_gradients = all(sink.kind == "gradient" for sink in reached)
    if only_gradients:
        suspects = _behind_gradients(trace, everything)
    else:
        suspects = next((sink.origins for sink in reached if sink.kind == "value"), everything)
        suspects = suspects - last or suspects
    origin = _past_masks(suspects, trace)
    names = tuple(sink.name for sink in reached if origin in sink.origins)
    replay = Replay(trace, origin=origin, sinks=names, failed=True, candidates=tuple(sorted(everything)))
    return _blame_derivative(replay) if only_gradients else replay


def _behind_gradients(trace: Trace, origins: frozenset[int]) -> frozenset[int]:
    """Which origins are to blame where only gradients are bad.

    Inf that the forward pass dropped again (`where`, a mask) did no harm there: what its derivative did is guilty. An
    overflow in half precision is different: it is a fault in itself.
    """
    ops = {i: trace.ops[i] for i in origins if i >= 0}
    guilty = {i for i, op in ops.items() if op.phase == "forward" and op.made == "inf" and op.dtype == "float16"}
    guilty = guilty or {i for i, op in ops.items() if op.phase == "backward"}
    outside = {i for i in origins if i < 0}
    return frozenset(guilty | outside) if guilty else origins


def judge_step(failed: Failure, trace: Trace, sinks: list[Sink], loss: Tensor | None) -> Replay:
    """The origin behind the bad sinks of a whole step, or the constant of the program that reached what it left."""
    deliberate = [i for i, e in trace.externals.items() if e.kind == "buffer" and e.name in failed.deliberate]
    replay = judge(trace, sinks, last=frozenset(deliberate))
    if not replay.failed or _loss_from_constant(trace, sinks, loss):
        reached = next((left for left in _left_behind(failed, loss) if any_nonfinite([left[2]])), None)
        replay = _constant_reached(trace, *reached) if reached is not None else replay
    return replay


def _blame_derivative(replay: Replay) -> Replay:
    """An elementwise function outside its domain (sqrt of a negative) whose NaN the forward pass dropped.

    The loss never saw it. Its derivative was multiplied by a gradient of 0 there, and 0 · NaN put it into the
    gradients: the failure began in the backward of that call. A softmax row, in contrast, is wrong in the forward pass
    already.
    """
    op = replay.op
    if op is None or op.phase != "forward" or op.made != "nan" or op.name.rstrip("_") not in _ELEMENTWISE:
        return replay
    for later in reversed(replay.trace.ops[op.index :]):  # the product with the gradient comes last in a node
        if later.phase == "backward" and later.sequence == op.sequence and (later.nan or later.inf):
            return replace(replay, dropped=op.index, origin=later.index)
    return replay


def _loss_from_constant(trace: Trace, sinks: list[Sink], loss: Tensor | None) -> bool:
    """Whether the loss is bad because of an Inf of the program's own (a table, a mask): what backward makes of it is no
    origin."""
    if loss is None or not any_nonfinite([loss]):
        return False
    return not any(sink.origins for sink in sinks if sink.kind == "value")


def _constant_reached(trace: Trace, kind: SinkKind, name: str, tensor: Tensor) -> Replay:
    """Nothing made it: a constant of the program (a mask, a table in a closure) got there. The guilty operation is the
    one that reduced it into the loss, or the first operation that read it.
    """
    chain = trace.bad_ancestors(tensor)
    masks = all(e.mask for e in trace.externals.values() if e.kind == "constant")
    reductions = [op for op in chain if op.name in _REDUCTIONS] if kind == "value" and masks else []
    numbers = [op for op in chain[:1] if op.name in ARITHMETIC and not all(map(math.isfinite, op.scalars))]
    guilty = numbers or reductions or chain
    origin = guilty[0].index if guilty else None
    return Replay(trace, origin=origin, sinks=(name,), failed=True)


def _past_masks(origins: frozenset[int], trace: Trace) -> int | None:
    """The earliest origin that is guilty; negative for a tensor that was bad before the step."""
    index = earliest(origins, trace)
    if index is None or index < 0:
        return index
    later = sorted(each for each in origins if each >= index)
    return later[guilty_of([(trace.ops[each], trace.captures.get(each)) for each in later])]


def guilty_of(origins: Sequence[tuple[Op, Capture | None]]) -> int:
    """Which of these origins, in order of time: the first; but log(0) that serves as a mask is not guilty if a whole
    row is masked.

    A softmax that was given +Inf failed by that: -log(0), as in Gumbel noise, masks nothing.
    """
    first = 0
    while True:
        op, capture = origins[first]
        later = range(first + 1, len(origins))
        masked = [i for i in later if origins[i][0].name in SOFTMAX and _was_given_masks(origins[i][1])]
        if not (op.name in _LOGARITHMS and masked and op.made == "inf" and capture is not None):
            return first
        if not only_minus_inf(capture.outputs[0]):
            return first
        first = masked[0]


def _was_given_masks(softmax: Capture | None) -> bool:
    return softmax is None or all(only_minus_inf(tensor) for tensor in softmax.inputs()[:1])
