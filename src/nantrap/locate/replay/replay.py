"""The failed step once more, under a trace: forward and backward, the model's calls alone, or the update."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nantrap.finite import any_nonfinite, gradient_norm, readable
from nantrap.locate.batch import tensors_of
from nantrap.locate.failure import Failure, Part, without_warnings
from nantrap.locate.replay.root_call import RootCall
from nantrap.locate.source import is_boundary
from nantrap.locate.torch_private import sequence_of
from nantrap.locate.trace import Registered, Trace
from nantrap.locate.trace.origin import Replay, Sink, judge, judge_step, left_sinks
from nantrap.locate.trace.shadow import Shadowed
from nantrap.locate.twoline.caller import by_program_names
from nantrap.locate.wrapping import arguments_by_name, states_of


def fails_alike(failed: Failure, loss: float, bad: Iterable[str]) -> bool:
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
    failed: Failure,
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
                    failed.backward(scaled)
            except Exception as exception:
                error = exception
        sinks = left_sinks(failed, trace, loss)
        if error is not None:
            sinks.append(Sink("the exception", "value", trace.recent))
        again = functools.partial(_again, failed, replay_step)
        replay = replace(judge_step(failed, trace, sinks, loss), error=error, again=again)
        return replay if loss is None else _with_loss(failed, replay, loss)


def loss_with(failed: Failure, value: float, origins: Callable[[int], bool]) -> float:
    """The loss of the step with a number in the place of the non-finite values that some origins made.

    Args:
        failed: the failed step, which must be repeatable.
        value: the number.
        origins: whether an origin is one of those, by its index in the replay.
    """
    assert failed.forward is not None
    with failed.rewound():
        trace = Shadowed(failed.root, registered(failed), origins, value)
        with eagerly(), trace:
            loss = failed.forward(failed.batch)
        return float(trace.shadow_of(loss).detach())


def _with_loss(failed: Failure, replay: Replay, loss: Tensor) -> Replay:
    """The replay, with its loss and gradients compared with those of the step."""
    value = float(loss.detach())
    exact, differences = _compare(failed, value)
    return replace(
        replay,
        loss=value,
        exact=exact,
        differences=differences,
        alike=fails_alike(failed, value, bad_gradients(failed)),
        last_sequence=None if loss.grad_fn is None else sequence_of(loss.grad_fn),
        end=replay.trace.writer_of(loss),
    )


def bad_gradients(failed: Failure) -> list[str]:
    """The parameters whose gradients are non-finite now."""
    return [n for n, p in failed.parameters.items() if p.grad is not None and any_nonfinite([p.grad])]


def _again(failed: Failure, run: Callable[..., Replay], wanted: frozenset[int]) -> Trace:
    """Repeats a replay and keeps the operands of the wanted operations."""
    return run(failed, wanted=wanted).trace


@is_boundary
def replay_calls(failed: Failure, *, wanted: frozenset[int] = frozenset()) -> Replay:
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
                    with autocast_like(call.autocast), call.as_made(failed.root):
                        output = called_again(call, failed)(*call.args, **call.kwargs)
                    outputs += [(call, path, tensor) for path, tensor in tensors_of(output)]
                if math.isfinite(failed.loss_value):
                    backward_from(failed, outputs)
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
        return replace(
            judge(trace, [*sinks, *left_sinks(failed, trace, None)]),
            error=error,
            alike=_outputs_alike(calls, outputs),
            last_sequence=max((sequence_of(t.grad_fn) for *_, t in outputs if t.grad_fn is not None), default=None),
            end=next((trace.writer_of(t) for *_, t in outputs if trace.origins_of(t)), None),
            again=functools.partial(_again, failed, replay_calls),
        )


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


def replay_update(failed: Failure) -> Replay:
    """Run the optimizer's step again on the failed step's gradients.

    It takes one tensor after the other, as on a CPU, so that an operation on one tensor is found and not one on a list
    of all; where that shows nothing, it is made as in the failed step.
    """
    replay = _update_again(failed, _one_by_one(failed))
    return replay if replay.origin is not None else _update_again(failed, contextlib.nullcontext())


@contextlib.contextmanager
def _one_by_one(failed: Failure) -> Iterator[None]:
    """The optimizer uses neither lists of tensors nor fused kernels."""
    groups = failed.optimizer.param_groups
    kept = [(group, name, group[name]) for group in groups for name in ("foreach", "fused") if name in group]
    try:
        for group, name, _ in kept:
            group[name] = False
        yield
    finally:
        for group, name, before in kept:
            group[name] = before


def _update_again(failed: Failure, way: contextlib.AbstractContextManager[None]) -> Replay:
    """The update once more, with the gradients and the state of before it, seen operation by operation."""
    with failed.rewound():
        for name, parameter in failed.parameters.items():
            gradient = failed.gradients.get(name)
            parameter.grad = None if gradient is None else gradient.clone()
        trace = Trace(failed.root, registered(failed, optimizer=True), optimizer=True)
        error: BaseException | None = None
        with way, trace:  # the options of the groups were restored by now
            try:
                failed.update()
            except Exception as exception:
                error = exception
        sinks = [Sink(f"parameter {n}", "state", trace.origins_of(p)) for n, p in failed.parameters.items()]
        sinks += [Sink(name, "state", trace.origins_of(t)) for name, t in _optimizer_state(failed).items()]
        sinks += [Sink(name, "state", trace.origins_of(tensor)) for name, tensor in failed.bad_state()]
        return replace(judge(trace, sinks), error=error)


def replay_norm(failed: Failure) -> Replay:
    """Take the norm of the failed step's gradients again."""
    trace = Trace(failed.root, Registered())
    with trace:
        norm = gradient_norm(list(failed.gradients.values()))
    trace.revise(lambda op: op._replace(phase="backward"))
    return judge(trace, [Sink("the gradient norm", "gradient", trace.origins_of(norm))])


def called_again(call: RootCall, failed: Failure) -> Any:
    """The module to call again: the root instead of a wrapper around it (compiled, distributed)."""
    inside = call.module is not None and any(module is call.module for module in failed.root.modules())
    return call.module if inside else failed.root


def given_to(call: RootCall, failed: Failure) -> dict[str, Any]:
    """What a call of the model was given, by name."""
    return by_program_names(arguments_by_name(called_again(call, failed), call.args, call.kwargs))


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
    # warnings are about hooks on compiled modules, which are the trace's own
    with without_warnings(), torch.compiler.set_stance("force_eager"):
        yield


@contextlib.contextmanager
def autocast_like(state: tuple[str, torch.dtype] | None) -> Iterator[None]:
    """The autocast region of the original call."""
    if state is None:
        yield
        return
    with torch.autocast(state[0], dtype=state[1]):
        yield


def registered(failed: Failure, *, optimizer: bool = False) -> Registered:
    return Registered(
        parameters=dict(failed.parameters),
        buffers=dict(failed.root.named_buffers()),
        batch=dict(tensors_of(_inputs(failed))),
        optimizer_state=_optimizer_state(failed) if optimizer else {},
    )


def _inputs(failed: Failure) -> Any:
    """What the step was given, by name: its batch, or the arguments of the model's calls."""
    if failed.forward is not None or failed.root_call is None:
        return failed.batch
    named = [given_to(call, failed) for call in failed.calls]
    if len(named) == 1:
        return named[0]
    # what one call passes to the next was computed in this step: it is not data
    return {
        f"{path} of call {number} of {len(named)}": tensor
        for number, inputs in enumerate(named, start=1)
        for path, tensor in tensors_of(inputs)
        if tensor.grad_fn is None
    }


def _optimizer_state(failed: Failure) -> dict[str, Tensor]:
    """The tensors of the optimizer's state, named like `exp_avg of head.weight`."""
    names = {id(parameter): name for name, parameter in failed.parameters.items()}
    return {
        f"{key} of {names.get(id(parameter), '?')}": value
        for parameter, state in states_of(failed.optimizer)
        for key, value in state.items()
        if isinstance(value, Tensor)
    }


def _compare(failed: Failure, loss: float) -> tuple[bool | None, tuple[str, ...]]:
    """Whether loss and gradients of the replay are those of the step bit for bit, and what differs, in words."""
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


def backward_from(failed: Failure, outputs: list[tuple[RootCall, str, Tensor]]) -> None:
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
        failed.backward(roots, gradients)


def forward_and_backward(failed: Failure, batch: Any, *, seed: float | None = None, stop_early: bool = True) -> Part:
    """Run the step on a batch. Call it inside `failed.rewound()`.

    Args:
        failed: the failed step, which must be repeatable.
        batch: the batch.
        seed: what the loss is multiplied by, if not as in the failed step.
        stop_early: leave out the backward pass of a bad loss. Several ranks never do: each has its own loss.
    """
    assert failed.forward is not None
    if failed.rng is not None:
        failed.rng.restore()
    for parameter in failed.parameters.values():
        parameter.grad = None
    bad_before = {name for name, buffer in failed.root.named_buffers() if any_nonfinite([buffer])}
    loss = failed.forward(batch)
    value = float(loss.detach())
    if not math.isfinite(value) and (stop_early or not loss.requires_grad):
        return Part(False, value)
    factor = failed.loss_factor if seed is None else seed
    if failed.during == "training":
        failed.backward(loss, [torch.full_like(loss, factor)])
    gradients = {n: p.grad for n, p in failed.parameters.items() if p.grad is not None}
    bad = tuple(name for name, gradient in gradients.items() if any_nonfinite([gradient]))
    finite = math.isfinite(value) and not bad and _left_finite(failed, list(gradients.values()), bad_before)
    return Part(finite, value, bad)


def _left_finite(failed: Failure, gradients: list[Tensor], bad_before: set[str]) -> bool:
    """Whether the norm of finite gradients, the buffers and the parameters are finite after a run.

    Args:
        failed: the failed step.
        gradients: the gradients of the run. Their norm counts only where it was the failure.
        bad_before: names of buffers that were non-finite before the run.
    """
    if failed.norm_overflowed and not math.isfinite(float(gradient_norm(gradients))):
        return False
    if any_nonfinite([b for n, b in failed.root.named_buffers() if n not in bad_before]):
        return False
    return not any_nonfinite(failed.parameters.values())  # a forward pass may write them
