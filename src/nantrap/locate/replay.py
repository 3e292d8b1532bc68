"""The failed step once more, under a trace: from the bad loss, gradient, parameter or buffer back to what began it."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from nantrap.finite import any_nonfinite, gradient_norm, readable
from nantrap.locate.batch import tensors_of
from nantrap.locate.kept import RootCall
from nantrap.locate.source import is_boundary
from nantrap.locate.step import FailedStep
from nantrap.locate.storage import only_minus_inf
from nantrap.locate.torch_private import sequence_of
from nantrap.locate.trace import Op, Registered, Trace, earliest

_SOFTMAX = ("aten._softmax", "aten._log_softmax", "aten.logsumexp", "aten._safe_softmax")
_ELEMENTWISE = (
    "aten.sqrt", "aten.rsqrt", "aten.log", "aten.log2", "aten.log10", "aten.log1p", "aten.pow", "aten.acos",
    "aten.asin",
    "aten.atanh", "aten.acosh", "aten.erfinv", "aten.logit",
)  # fmt: skip
_REDUCTIONS = (
    "aten.sum", "aten.mean", "aten.nll_loss_forward", "aten.nll_loss2d_forward", "aten.mm", "aten.bmm",
    "aten.addmm", "aten.dot",
    "aten.logsumexp", "aten.linalg_vector_norm", "aten.mse_loss", "aten.l1_loss", "aten.prod", "aten.cumsum",
)  # fmt: skip
_LOGARITHMS = ("aten.log", "aten.log2", "aten.log10", "aten.log1p", "aten.log_")

SinkKind = Literal["value", "gradient", "state"]


class Sink(NamedTuple):
    """Where bad values ended: a computed value (loss, output), a gradient, or state (parameter, buffer)."""

    name: str
    kind: SinkKind
    origins: frozenset[int]


@dataclass(slots=True)
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
        anchor: sequence number of the last node, by which nodes of the failed pass are matched with the re-run.
        unknown: nodes that could not be run again.
        dropped: a forward operation whose NaN the forward pass threw away, and whose derivative brought it back.
        alike: whether the re-run failed in the same way as the step; `None` if that is not known.
        again: runs the same again and keeps the operands of some operations, by index.
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
    anchor: int | None = None
    unknown: tuple[Any, ...] = ()
    dropped: int | None = None
    alike: bool | None = None
    again: Callable[[frozenset[int]], Trace] | None = None

    @property
    def op(self) -> Op | None:
        """The guilty operation, if it is one."""
        return self.trace.ops[self.origin] if self.origin is not None and self.origin >= 0 else None


def fails_alike(failed: FailedStep, loss: float, bad: Iterable[str]) -> bool:
    """Whether a re-run failed as the step did: the same kind of loss and, after a finite one, common bad gradients.

    Args:
        failed: the failed step.
        loss: the loss of the re-run.
        bad: the parameters whose gradients were non-finite in the re-run.
    """
    if not math.isfinite(failed.loss_value):
        return math.isnan(loss) if math.isnan(failed.loss_value) else loss == failed.loss_value
    if not math.isclose(loss, failed.loss_value, rel_tol=1e-3, abs_tol=1e-6):
        return False
    before = {name for name, gradient in failed.gradients.items() if any_nonfinite([gradient])}
    return not before or bool(before & set(bad))


def replay_step(
    failed: FailedStep,
    *,
    around: contextlib.AbstractContextManager[Any] | None = None,
    wanted: frozenset[int] = frozenset(),
) -> Replay:
    """Run forward and backward again under a trace. Needs `failed.repeatable`.

    Args:
        failed: the failed step.
        around: a mode under which the user's code runs, inside the trace.
        wanted: operations, by index, whose operands are kept.
    """
    assert failed.forward is not None
    with failed.rewound():
        trace = Trace(failed.root, registered(failed), wanted=wanted)
        loss: Tensor | None = None
        error: BaseException | None = None
        with eagerly(), trace, around or contextlib.nullcontext():
            try:
                loss = failed.forward(failed.batch)
                scaled = loss if failed.loss_factor == 1.0 else loss * failed.loss_factor
                if loss.requires_grad:
                    scaled.backward()
            except Exception as exception:
                error = exception
        sinks = left_sinks(failed, trace, loss)
        if error is not None:
            sinks.append(Sink("the exception", "value", trace.recent))
        replay = judge(trace, sinks)
        if not replay.failed or _loss_from_constant(trace, sinks, loss):
            reached = next((left for left in _left_behind(failed, loss) if any_nonfinite([left[2]])), None)
            replay = _constant_reached(trace, *reached) if reached is not None else replay
        replay.error = error
        if loss is not None:
            replay.anchor = sequence_of(loss.grad_fn) if loss.grad_fn is not None else None
            replay.loss = float(loss.detach())
            replay.exact, replay.differences = _compare(failed, replay.loss)
            bad = [n for n, p in failed.parameters.items() if p.grad is not None and any_nonfinite([p.grad])]
            replay.alike = fails_alike(failed, replay.loss, bad)
        replay.again = functools.partial(_again, failed, replay_step)
        return replay


def _again(failed: FailedStep, run: Callable[..., Replay], wanted: frozenset[int]) -> Trace:
    """The same replay once more, with the operands of the wanted operations kept."""
    return run(failed, wanted=wanted).trace


@is_boundary
def replay_calls(failed: FailedStep, *, wanted: frozenset[int] = frozenset()) -> Replay:
    """Run the model's calls of the step again, and, after a finite loss, their backward from the gradients they got."""
    assert failed.root_call is not None
    calls = failed.root_call.chain()
    with failed.rewound():
        trace = Trace(failed.root, registered(failed), wanted=wanted)
        error: BaseException | None = None
        outputs: list[tuple[RootCall, str, Tensor]] = []
        with eagerly(), trace:
            try:
                for call in calls:
                    call.rng.restore()
                    with autocast_like(call.autocast):
                        output = _called(call, failed)(*call.args, **call.kwargs)
                    outputs += [(call, path, tensor) for path, tensor in tensors_of(output)]
                if math.isfinite(failed.loss_value):
                    backward_from(outputs)
            except Exception as exception:
                error = exception
        sinks = [
            Sink(f"output {path}" if path != "batch" else "the model's output", "value", trace.origins_of(tensor))
            for call, path, tensor in outputs
            if call.cotangents or not math.isfinite(failed.loss_value)
        ]
        if error is not None:
            sinks.append(Sink("the exception", "value", trace.recent))
        elif not outputs and not math.isfinite(failed.loss_value):  # an object of a user's class, with tensors inside
            sinks.append(Sink("what the model computed last", "value", trace.recent))
        replay = judge(trace, [*sinks, *left_sinks(failed, trace, None)])
        replay.error = error
        replay.anchor = max((sequence_of(t.grad_fn) for *_, t in outputs if t.grad_fn is not None), default=None)
        replay.again = functools.partial(_again, failed, replay_calls)
        replay.alike = _outputs_alike(calls, outputs)
        return replay


def _outputs_alike(calls: list[RootCall], outputs: list[tuple[RootCall, str, Tensor]]) -> bool | None:
    """Whether the model gave the outputs that it gave in the failed step; `None` where none of those were kept."""
    kept = [tensor for call in calls for tensor, _ in call.outputs.values()]
    now = [tensor.detach() for _, _, tensor in outputs if tensor.grad_fn is not None]
    if not kept or len(kept) != len(now):
        return None
    return all(
        a.shape == b.shape and bool(((a == b) | (~a.isfinite() & ~b.isfinite())).all())
        for a, b in zip(kept, now, strict=True)
    )


def replay_update(failed: FailedStep) -> Replay:
    """Run the optimizer's step again on the failed step's gradients."""
    assert failed.run_update is not None
    with failed.rewound():
        for name, parameter in failed.parameters.items():
            gradient = failed.gradients.get(name)
            parameter.grad = None if gradient is None else gradient.clone()
        trace = Trace(failed.root, registered(failed, optimizer=True), optimizer=True)
        error: BaseException | None = None
        with trace:
            try:
                failed.run_update()
            except Exception as exception:
                error = exception
        sinks = [Sink(f"parameter {n}", "state", trace.origins_of(p)) for n, p in failed.parameters.items()]
        sinks += [Sink(name, "state", trace.origins_of(t)) for name, t in _optimizer_state(failed).items()]
        sinks += [Sink(name, "state", trace.origins_of(tensor)) for name, tensor in failed.bad_state()]
        replay = judge(trace, sinks)
        replay.error = error
        return replay


def judge_tape(failed: FailedStep, tape: Trace) -> Replay:
    """The origin behind what a traced step left behind. Nothing is run."""
    sinks = [] if failed.loss is None else [Sink("the loss", "value", tape.origins_of(failed.loss))]
    sinks += [Sink(f"gradient of {n}", "gradient", tape.origins_of(g)) for n, g in failed.gradients.items()]
    sinks += [Sink(name, "state", tape.origins_of(tensor)) for name, tensor in failed.bad_state()]
    return judge(tape, sinks)


def replay_norm(failed: FailedStep) -> Replay:
    """Take the norm of the failed step's gradients again."""
    trace = Trace(failed.root, Registered())
    with trace:
        norm = gradient_norm(list(failed.gradients.values()))
    for op in trace.ops:
        op.phase = "backward"
    return judge(trace, [Sink("the gradient norm", "gradient", trace.origins_of(norm))])


def _called(call: RootCall, failed: FailedStep) -> Any:
    """The module to call again: the root instead of a wrapper around it (compiled, distributed)."""
    inside = call.module is not None and any(module is call.module for module in failed.root.modules())
    return call.module if inside else failed.root


def compiled_code_ran() -> bool:
    """Whether compiled code ran in this process."""
    return compiled_frames() > 0


def compiled_frames() -> int:
    """How many frames and graphs the compiler took over in this process so far."""
    dynamo = sys.modules.get("torch._dynamo")
    counters = getattr(getattr(dynamo, "utils", None), "counters", {})
    return int(counters.get("frames", {}).get("ok", 0) + counters.get("stats", {}).get("unique_graphs", 0))


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Compiled code runs as it was written, so that the trace sees modules and lines. Eager and compiled may differ."""
    if "torch._dynamo" not in sys.modules:  # nothing was compiled, and importing it takes a second
        yield
        return
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.simplefilter("ignore")  # about hooks on compiled modules: they are the trace's own
        yield


@contextlib.contextmanager
def autocast_like(state: tuple[str, torch.dtype] | None) -> Iterator[None]:
    """The autocast region of the original call."""
    if state is None:
        yield
        return
    with torch.autocast(state[0], dtype=state[1]):
        yield


def registered(failed: FailedStep, *, optimizer: bool = False) -> Registered:
    return Registered(
        parameters=dict(failed.parameters),
        buffers=dict(failed.root.named_buffers()),
        batch=dict(tensors_of(_inputs(failed))),
        optimizer_state=_optimizer_state(failed) if optimizer else {},
    )


def _inputs(failed: FailedStep) -> Any:
    if failed.forward is not None or failed.root_call is None:
        return failed.batch
    calls = failed.root_call.chain()
    named = [{**{f"args[{i}]": value for i, value in enumerate(call.args)}, **call.kwargs} for call in calls]
    if len(named) == 1:
        return named[0]
    # what one call passes to the next was computed in this step: it is not data
    return {
        f"call {i} {path}": tensor
        for i, inputs in enumerate(named)
        for path, tensor in tensors_of(inputs)
        if tensor.grad_fn is None
    }


def _optimizer_state(failed: FailedStep) -> dict[str, Tensor]:
    names = {id(parameter): name for name, parameter in failed.parameters.items()}
    return {
        f"{key} of {names.get(id(parameter), '?')}": value
        for parameter, state in failed.optimizer.state.items()
        if isinstance(state, dict)
        for key, value in state.items()
        if isinstance(value, Tensor)
    }


def left_sinks(failed: FailedStep, trace: Trace, loss: Tensor | None) -> list[Sink]:
    """What a step leaves behind, with the origins that reached it."""
    return [Sink(name, kind, trace.origins_of(tensor)) for kind, name, tensor in _left_behind(failed, loss)]


def _left_behind(failed: FailedStep, loss: Tensor | None) -> Iterator[tuple[SinkKind, str, Tensor]]:
    """What a step leaves behind: its loss, the gradients, and the buffers that were found bad."""
    if loss is not None:
        yield "value", "the loss", loss
    for name, parameter in failed.parameters.items():
        if parameter.grad is not None:
            yield "gradient", f"gradient of {name}", parameter.grad
    for name, tensor in failed.bad_state():
        yield "state", name, tensor


def judge(trace: Trace, sinks: list[Sink]) -> Replay:
    """The origin behind the bad sinks: values come before state, state before gradients."""
    reached = [sink for sink in sinks if sink.origins]
    if not reached:
        return Replay(trace)
    everything = frozenset().union(*(sink.origins for sink in reached))
    values = [sink for sink in reached if sink.kind == "value"]
    suspects = values[0].origins if values else everything
    if all(sink.kind == "gradient" for sink in reached):
        # Inf that the forward pass dropped again (`where`, a mask) did no harm there: what its derivative did is guilty
        # ... unless it overflowed in half precision, which is a fault in itself
        ops = {i: trace.ops[i] for i in everything if i >= 0}
        guilty = {i for i, op in ops.items() if op.phase == "forward" and op.made == "inf" and op.dtype == "float16"}
        guilty = guilty or {i for i, op in ops.items() if op.phase == "backward"}
        outside = {i for i in everything if i < 0}
        suspects = frozenset(guilty | outside) if guilty else everything
    origin = _past_masks(suspects, trace)
    names = tuple(sink.name for sink in reached if origin in sink.origins)
    replay = Replay(trace, origin=origin, sinks=names, failed=True, candidates=tuple(sorted(everything)))
    if all(sink.kind == "gradient" for sink in reached):
        _blame_derivative(replay)
    return replay


def _blame_derivative(replay: Replay) -> None:
    """An elementwise function outside its domain (sqrt of a negative) whose NaN the forward pass dropped.

    The loss never saw it. Its derivative was multiplied by a gradient of 0 there, and 0 · NaN put it into the
    gradients: the failure began in the backward of that call. A softmax row, in contrast, is wrong in the forward pass
    already.
    """
    op = replay.op
    if op is None or op.phase != "forward" or op.made != "nan" or op.name.rstrip("_") not in _ELEMENTWISE:
        return
    for later in reversed(replay.trace.ops[op.index :]):  # the product with the gradient comes last in a node
        if later.phase == "backward" and later.sequence == op.sequence and (later.nan or later.inf):
            replay.dropped, replay.origin = op.index, later.index
            return


def _loss_from_constant(trace: Trace, sinks: list[Sink], loss: Tensor | None) -> bool:
    """Whether the loss is bad because of a table of the program's own: what backward makes of it is no origin."""
    constants = [e for e in trace.externals.values() if e.kind == "constant" and not e.mask]
    if not constants or loss is None or not any_nonfinite([loss]):
        return False
    return not any(sink.origins for sink in sinks if sink.kind == "value")


def _constant_reached(trace: Trace, kind: SinkKind, name: str, tensor: Tensor) -> Replay:
    """Nothing made it: a constant of the program (a mask, a table in a closure) got there. The guilty operation is the
    one that reduced it into the loss, or the first operation that read it.
    """
    chain = trace.bad_ancestors(tensor)
    masks = all(e.mask for e in trace.externals.values() if e.kind == "constant")
    reductions = [op for op in chain if op.name in _REDUCTIONS] if kind == "value" and masks else []
    guilty = reductions or chain
    origin = guilty[0].index if guilty else None
    return Replay(trace, origin=origin, sinks=(name,), failed=True)


def _past_masks(origins: frozenset[int], trace: Trace) -> int | None:
    """The earliest origin; but log(0) that serves as a mask is not guilty if a whole row is masked."""
    index = earliest(origins, trace)
    while index is not None and index >= 0:
        op = trace.ops[index]
        later = [i for i in origins if i > index]
        masked = [i for i in later if trace.ops[i].name in _SOFTMAX]
        if not (op.name in _LOGARITHMS and masked and op.made == "inf" and _only_minus_inf(trace, index)):
            break
        origins = frozenset(later)
        index = min(masked)
    return index


def _only_minus_inf(trace: Trace, index: int) -> bool:
    capture = trace.captures.get(index)
    return capture is not None and only_minus_inf(capture.outputs[0])


def _compare(failed: FailedStep, loss: float) -> tuple[bool | None, tuple[str, ...]]:
    differences = []
    if not _same_number(loss, failed.loss_value):
        differences.append(f"the loss was {failed.loss_value:.9g} and is {loss:.9g} in the replay")
    for name, parameter in failed.parameters.items():
        before, now = failed.gradients.get(name), parameter.grad
        if before is None or now is None:
            continue
        a, b = readable(before), readable(now)
        if a is None or b is None or a.shape != b.shape:
            continue
        same = (a == b) | (~a.isfinite() & ~b.isfinite())
        if not bool(same.all()):
            count = int((~same).sum())
            differences.append(f"{count:,} of {a.numel():,} gradient values of {name} differ")
            if len(differences) >= 4:
                break
    return not differences, tuple(differences)


def _same_number(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def backward_from(outputs: list[tuple[RootCall, str, Tensor]]) -> None:
    """Backward from the gradients the outputs got in the failed step; from ones where those are unknown or bad."""
    roots: list[Tensor] = []
    gradients: list[Tensor] = []
    for call, path, tensor in outputs:
        if not (tensor.requires_grad and tensor.is_floating_point()):
            continue
        given = call.cotangents.get(path)
        if given is None and call.cotangents:
            continue  # an output the loss did not use
        usable = given is not None and given.shape == tensor.shape and not any_nonfinite([given])
        roots.append(tensor)
        gradients.append(given.to(tensor.dtype) if usable and given is not None else torch.ones_like(tensor))
    if roots:
        torch.autograd.backward(roots, gradients)
