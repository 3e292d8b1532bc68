"""The failed step once more, under a trace: from the bad loss, gradient, parameter or buffer back to what began it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nantrap.finite import any_nonfinite, gradient_norm, readable
from nantrap.locate.batch import tensors_of
from nantrap.locate.step import FailedStep
from nantrap.locate.trace import Op, Registered, Trace, earliest

_SOFTMAX = ("aten._softmax", "aten._log_softmax", "aten.logsumexp", "aten._safe_softmax")
_LOGARITHMS = ("aten.log", "aten.log2", "aten.log10", "aten.log1p", "aten.log_")


@dataclass(slots=True)
class Replay:
    """A traced re-run and what it reached.

    Attributes:
        trace: the trace.
        origin: index of the origin: an operation, or negative for a tensor that was bad before the step.
        sinks: what the origin's values reached, in words: `loss`, `gradient of head.weight`.
        exact: whether the re-run gave the failed step's values, bit for bit; `None` if that cannot be said.
        differences: what differed, in words.
        failed: whether the re-run was non-finite at all.
        loss: the loss of the re-run.
        error: an exception that ended the re-run.
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
    sequence: Mapping[int, Op] = field(default_factory=dict)

    @property
    def op(self) -> Op | None:
        """The guilty operation, if it is one."""
        return self.trace.ops[self.origin] if self.origin is not None and self.origin >= 0 else None


def replay_step(failed: FailedStep) -> Replay:
    """Run forward and backward again under a trace. Needs `failed.repeatable`."""
    assert failed.forward is not None
    with failed.rewound():
        trace = Trace(failed.root, _registered(failed))
        loss: Tensor | None = None
        error: BaseException | None = None
        with trace:
            try:
                loss = failed.forward(failed.batch)
                scaled = loss if failed.loss_factor == 1.0 else loss * failed.loss_factor
                if loss.requires_grad:
                    scaled.backward()
            except Exception as exception:
                error = exception
        sinks = _sinks(failed, trace, loss)
        replay = _judge(trace, sinks)
        replay.error = error
        if loss is not None:
            replay.loss = float(loss.detach())
            replay.exact, replay.differences = _compare(failed, replay.loss)
        return replay


def replay_root(failed: FailedStep, cotangents: Any = None) -> Replay:
    """Run the root module's last call again, and its backward from `cotangents` (or ones) on its outputs."""
    call = failed.root_call
    assert call is not None
    with failed.rewound():
        trace = Trace(failed.root, _registered(failed))
        error: BaseException | None = None
        outputs: list[tuple[str, Tensor]] = []
        with trace:
            try:
                with autocast_like(call.autocast):
                    output = failed.root(*call.args, **call.kwargs)
                outputs = list(tensors_of(output))
                _backward_from(outputs, cotangents)
            except Exception as exception:
                error = exception
        sinks = [
            (
                f"output {path}" if path != "batch" else "the model's output",
                trace.origins_of(tensor),
            )
            for path, tensor in outputs
        ]
        replay = _judge(trace, [*sinks, *_sinks(failed, trace, None)])
        replay.error = error
        return replay


def replay_update(failed: FailedStep) -> Replay:
    """Run the optimizer's step again on the failed step's gradients."""
    assert failed.run_update is not None
    with failed.rewound():
        for name, parameter in failed.parameters.items():
            gradient = failed.gradients.get(name)
            parameter.grad = None if gradient is None else gradient.clone()
        trace = Trace(failed.root, _registered(failed, optimizer=True), optimizer=True)
        error: BaseException | None = None
        with trace:
            try:
                failed.run_update()
            except Exception as exception:
                error = exception
        sinks = [(f"parameter {n}", trace.origins_of(p)) for n, p in failed.parameters.items()]
        sinks += [(name, trace.origins_of(t)) for name, t in _optimizer_state(failed).items()]
        replay = _judge(trace, sinks)
        replay.error = error
        return replay


def replay_norm(failed: FailedStep) -> Replay:
    """Take the norm of the failed step's gradients again."""
    trace = Trace(failed.root, Registered())
    with trace:
        norm = gradient_norm(list(failed.gradients.values()))
    for op in trace.ops:
        op.phase = "backward"
    return _judge(trace, [("the gradient norm", trace.origins_of(norm))])


@contextlib.contextmanager
def autocast_like(state: tuple[str, torch.dtype] | None) -> Any:
    """The autocast region of the original call."""
    if state is None:
        yield
        return
    with torch.autocast(state[0], dtype=state[1]):
        yield


def _registered(failed: FailedStep, *, optimizer: bool = False) -> Registered:
    return Registered(
        parameters=dict(failed.parameters),
        buffers=dict(failed.root.named_buffers()),
        batch=dict(tensors_of(_inputs(failed))),
        optimizer_state=_optimizer_state(failed) if optimizer else {},
    )


def _inputs(failed: FailedStep) -> Any:
    if failed.forward is None and failed.root_call is not None:
        call = failed.root_call
        return {**{f"args[{i}]": value for i, value in enumerate(call.args)}, **call.kwargs}
    return failed.batch


def _optimizer_state(failed: FailedStep) -> dict[str, Tensor]:
    names = {id(parameter): name for name, parameter in failed.parameters.items()}
    return {
        f"{key} of {names.get(id(parameter), '?')}": value
        for parameter, state in failed.optimizer.state.items()
        if isinstance(state, dict)
        for key, value in state.items()
        if isinstance(value, Tensor)
    }


def _sinks(failed: FailedStep, trace: Trace, loss: Tensor | None) -> list[tuple[str, frozenset[int]]]:
    sinks: list[tuple[str, frozenset[int]]] = []
    if loss is not None:
        sinks.append(("the loss", trace.origins_of(loss)))
    for name, parameter in failed.parameters.items():
        if parameter.grad is not None:
            sinks.append((f"gradient of {name}", trace.origins_of(parameter.grad)))
    for name, buffer in failed.root.named_buffers():
        if name in failed.bad_buffers:
            sinks.append((f"buffer {name}", trace.origins_of(buffer)))
    return sinks


def _judge(trace: Trace, sinks: list[tuple[str, frozenset[int]]]) -> Replay:
    """The origin behind the first bad sink: the loss speaks before gradients, gradients before buffers."""
    reached = [(name, origins) for name, origins in sinks if origins]
    if not reached:
        return Replay(trace)
    # The first sink decides unless a later one goes back further: gradients carry what a finite loss does not show.
    everything = frozenset().union(*(origins for _, origins in reached))
    first = reached[0][1] if reached[0][0] == "the loss" else everything
    origin = _past_masks(first, trace)
    names = tuple(name for name, origins in reached if origin in origins)
    return Replay(trace, origin=origin, sinks=names, failed=True, candidates=tuple(sorted(everything)))


def _past_masks(origins: frozenset[int], trace: Trace) -> int | None:
    """The earliest origin; but log(0) that serves as a mask is not guilty of the row in which all is masked."""
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
    if capture is None:
        return False
    dense = readable(capture.outputs[0])
    return dense is not None and not bool(dense.isposinf().any()) and not bool(dense.isnan().any())


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


def _backward_from(outputs: list[tuple[str, Tensor]], cotangents: Any) -> None:
    known = dict(cotangents or {})
    roots = [(path, t) for path, t in outputs if t.requires_grad and t.is_floating_point()]
    if not roots:
        return
    gradients = []
    for path, tensor in roots:
        given = known.get(path)
        usable = given is not None and given.shape == tensor.shape and not any_nonfinite([given])
        gradients.append(given.to(tensor.dtype) if usable else torch.ones_like(tensor))
    torch.autograd.backward([t for _, t in roots], gradients)
