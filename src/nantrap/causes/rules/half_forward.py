"""NT4xx in the forward pass: activations, losses and buffers that half precision cannot hold."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from nantrap.causes.claim import Claim, Remedy, rule
from nantrap.causes.facts import absmax, recomputed
from nantrap.thresholds import FLOAT16_MAX

if TYPE_CHECKING:
    from nantrap.causes.case import Case
    from nantrap.incident import Trial
    from nantrap.locate.trace import Op

_REDUCING_LOSSES = (
    "sum", "mean", "nll_loss_forward", "nll_loss2d_forward", "mse_loss", "l1_loss", "smooth_l1_loss",
    "huber_loss", "kl_div",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "pow", "mul", "square", "linalg_vector_norm",
    "dot", "norm",
)  # fmt: skip


@rule("fp16_loss_overflow", phase="forward", ops=_REDUCING_LOSSES, made="inf", dtype="float16")
def fp16_loss_overflow(case: Case) -> Claim | None:
    """The loss was reduced in half precision and overflowed."""
    if case.capture is None or case.location.module != "loss" or case.capture.op.inside:
        return None
    if _goes_into_the_model(case):
        return None  # before the model, or between two of its parts: no loss
    wide = _above_the_limit(case)
    if wide is None:
        return None
    return Claim(
        "measured",
        f"the loss was reduced in float16 and overflowed: {wide:.4g} > {FLOAT16_MAX:g}",
        (
            (
                f"{case.location.op} runs in float16 outside the model; its float32 result is {wide:.4g}, the limit is "
                f"{FLOAT16_MAX:g}"
            ),
            "what it was given is finite",
        ),
        trial=case.lab.single_precision(),
        shows="with every operation in float32 the step is finite",
        remedies=in_float32(case, case.capture.op),
        help="logits.float() before the loss",
    )


@rule("fp16_forward_overflow", phase="forward", made="inf", dtype="float16")
def fp16_forward_overflow(case: Case) -> Claim | None:
    """An activation exceeded the range of float16."""
    if case.capture is None or case.wrong_kernel is not None:
        return None  # a kernel gave other values than its plain form, and these reached the limit
    if (written := overflowed_buffer(case)) is not None:
        summary = f"{written.name} is kept in float16, and a value beyond its range was written into it"
        return too_narrow(case, written, summary)
    wide = _above_the_limit(case)
    if wide is None and _fails_in_single_precision(case):
        return None  # a pole, not the range: 1/0 is Inf in every precision
    trial = case.lab.single_precision()
    if trial.finite is False and wide is not None:
        return _not_enough(case, wide, trial.loss)
    if trial.finite is False:
        case.refute("fp16_forward_overflow", trial, "the step is as bad in float32")
        return None
    if wide is None and not trial.finite:
        return None
    facts = () if wide is None else (_result_above(case, wide),)
    return Claim(
        "measured" if wide is not None else "tried",
        f"{_what(case)} exceeded the range of float16"
        + (f": {wide:.5g} > {FLOAT16_MAX:g}" if wide is not None else ""),
        facts,
        trial=trial,
        shows="the same step in float32 is finite",
        remedies=in_float32(case, case.capture.op),
        help="train in bfloat16",
    )


@rule("fp16_forward_overflow", phase="forward", dtype="float8")
def float8_overflow(case: Case) -> Claim | None:
    """A cast to a format of one byte: e5m2 has an Inf beyond its range, e4m3fn a NaN."""
    import torch

    end = torch.finfo(getattr(torch, case.dtype)).max
    wide = recomputed(case, "float32")
    if wide is None or not bool(wide.isfinite().all()) or absmax(wide) <= end:
        return None
    return Claim(
        "measured",
        f"{_what(case)} exceeded the range of {case.dtype}: {absmax(wide):.5g} > {end:g}",
        (f"the float32 value that {case.location.op} was given is {absmax(wide):.5g}; {case.dtype} ends at {end:g}",),
        help=f"a scale from the values that are cast, not from earlier steps, or .clamp(-{end:g}, {end:g}) before the "
        "cast",
    )


def in_float32(case: Case, op: Op | None) -> tuple[Remedy, ...]:
    """The line of an operation in float32, with the lines that made what it was given if need be; else all lines."""
    places = [] if op is None else [op.place, *(behind.place for behind in case.source_ops(op, len(op.sources) - 1))]
    known = [place for place in places if place is not None]
    if not known:
        return (Remedy("every operation in float32 (no autocast, no .half())", case.lab.single_precision()),)
    trial = case.lab.in_float32(known)
    if trial.finite:
        return (Remedy(trial.change, trial),)
    whole = case.lab.single_precision()
    if whole.finite:
        return (Remedy("every operation in float32 (no autocast, no .half())", whole),)
    return (Remedy(f"line {known[0].line} in float32: .float() on every tensor it reads"),)


def _not_enough(case: Case, wide: float, loss: float | None) -> Claim:
    """The value does not fit, and float32 alone does not make the step finite: the gradients overflow, or it fails
    further on."""
    facts = [_result_above(case, wide)]
    help_ = f"run {case.place} in float32 (torch.autocast(enabled=False) around it) or train in bfloat16"
    further = case.lab.fails_next_in_float32()
    finite = loss is not None and math.isfinite(loss)
    if finite and further is not None and _is_cast_of_a_gradient(further):
        facts.append(f"computed in float32 the loss is {loss:.5g}; the gradients of float16 weights overflow even then")
        help_ = "keep the weights in float32 (autocast instead of model.half()), or train in bfloat16"
    elif further is not None:
        line = "" if further.place is None else f" in line {further.place.line}"
        where = f"{further.phase}, {further.name}{line}"
        facts.append(f"in float32 it is finite, and the step fails further on: {where}")
        help_ += "; what fails after it must be fixed, too"
    elif finite:
        facts.append(f"computed in float32 the loss is {loss:.5g}, and the gradients are not finite")
    return Claim(
        "hint", f"{_what(case)} exceeded the range of float16: {wide:.5g} > {FLOAT16_MAX:g}", tuple(facts), help=help_
    )


def _result_above(case: Case, wide: float) -> str:
    return f"the float32 result of {case.location.op} is {wide:.5g}, above float16's limit of {FLOAT16_MAX:g}"


def _is_cast_of_a_gradient(op: Op) -> bool:
    """Whether a gradient that was computed in float32 overflowed when it was brought to the dtype of its weight."""
    return (op.phase, op.name, op.dtype) == ("backward", "aten._to_copy", "float16")


def _what(case: Case) -> str:
    """What overflowed: a module by its name, an operation of the loss or of the model's own code by both.

    Autocast casts what a module is given: that is not what the module computed.
    """
    if case.location.module == "loss":
        return f"{case.location.op} in {case.place}"
    return f"what {case.place} is given" if case.op == "to_copy" else case.place


def _goes_into_the_model(case: Case) -> bool:
    """Whether a module is given what the guilty operation made."""
    if case.trace is None or case.capture is None or case.trace.captures.get(case.capture.op.index) is not case.capture:
        return False
    reached = {case.capture.op.index}
    for op in case.trace.ops[case.capture.op.index + 1 :]:
        if op.phase == "forward" and not reached.isdisjoint(op.sources):
            if op.inside:
                return True
            reached.add(op.index)
    return False


def _above_the_limit(case: Case) -> float | None:
    """The guilty operation on its recorded inputs in float32: its magnitude, if that is finite and above the limit."""
    result = recomputed(case, "float32")
    if result is None or not bool(result.isfinite().all()):
        return None
    value = absmax(result)
    return value if value > FLOAT16_MAX else None


def _fails_in_single_precision(case: Case) -> bool:
    result = recomputed(case, "float32")
    return result is not None and not bool(result.isfinite().all())


class Overflowed(NamedTuple):
    """The buffer, and the largest finite value that was written into it."""

    name: str
    value: float


def overflowed_buffer(case: Case) -> Overflowed | None:
    """The float16 buffer into which the guilty operation wrote a finite value above the limit, if that is what it did.

    Trials in float32 do not widen memory that is written, so they say nothing about such a buffer.
    """
    import torch

    if case.phase != "forward" or case.dtype != "float16" or case.trace is None or case.capture is None:
        return None
    wide = recomputed(case, "float32")
    if wide is None or not bool(wide.isfinite().all()) or float(wide.abs().max()) <= FLOAT16_MAX:
        return None
    for name, buffer in case.failure.root.named_buffers():
        writer = case.trace.writer_of(buffer)
        if buffer.dtype == torch.float16 and writer is not None and writer.index == case.capture.op.index:
            return Overflowed(name, float(wide.abs().max()))
    return None


def too_narrow(case: Case, written: Overflowed, summary: str) -> Claim:
    """What such a buffer is called, with the value that was written, and the step with it in float32."""
    trial = _with_wide_buffer(case, written.name)
    return Claim(
        "measured",
        summary,
        (f"{case.location.op} wrote {written.value:.5g} into {written.name}; float16 ends at {FLOAT16_MAX:g}",),
        trial=trial,
        shows=f"with {written.name} in float32 the step is finite",
        remedies=(Remedy(f"keep {written.name} in float32", trial),),
    )


def _with_wide_buffer(case: Case, name: str) -> Trial | None:
    """The step with one buffer kept in float32; `None` if the step cannot be run again."""
    from nantrap.causes.harness import Rerun, run_step

    if not case.failure.repeatable:
        return None

    @contextlib.contextmanager
    def widened() -> Iterator[None]:
        """The module with the wide buffer, while the step runs."""
        path, _, last = name.rpartition(".")
        module = case.failure.root.get_submodule(path)
        kept = getattr(module, last)
        setattr(module, last, kept.float())
        try:
            yield
        finally:
            setattr(module, last, kept)

    def experiment() -> Rerun:
        return run_step(case, around=widened())

    return case.lab.run(f"wide:{name}", f"{name} kept in float32", experiment, harness="step")
