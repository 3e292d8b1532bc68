"""NT4xx: half precision, in the forward pass, in the loss, in masks and constants, and in the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap.explain.facts import absmax, limit, share
from nantrap.explain.proofs import add_proof, fix_for
from nantrap.explain.registry import rule
from nantrap.incident import Cause, Evidence, Fix

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.explain.case import Case

_REDUCING_LOSSES = (
    "sum", "mean", "nll_loss_forward", "nll_loss2d_forward", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "pow", "mul", "square", "linalg_vector_norm", "dot", "norm",
)  # fmt: skip
_ZERO_POLES = ("div", "true_divide", "log", "log2", "log10", "log1p", "rsqrt", "reciprocal", "logit", "pow")


@rule("mask_overflow")
def mask_overflow(case: Case) -> Cause | None:
    """A mask value near the dtype's limit overflowed when something was added."""
    if case.op not in ("add", "sub", "rsub") or case.made != "inf" or case.output is None:
        return None
    top = limit(case.output)
    extreme = [t for t in case.inputs if _is_mask(t, 0.5 * top)]
    scalars = [abs(number) for number in (case.capture.op.scalars if case.capture else ()) if abs(number) >= 0.5 * top]
    if not (extreme or scalars) or not bool(case.output.isneginf().any()):
        return None
    value = max([absmax(t) for t in extreme] + scalars)
    evidence = [
        Evidence(
            f"{case.location.op} adds to a mask of -{value:.4g}; the limit of {case.dtype} is {top:.4g}, so the sum is -Inf"
        ),
    ]
    if case.half:
        trial = case.lab.single_precision()
        add_proof(evidence, trial, "in float32 the step is finite")
    return Cause(
        "mask_overflow",
        proven=True,
        confidence=0.96,
        summary=f"a mask of finfo.min plus something is -Inf in {case.dtype}",
        evidence=tuple(evidence),
        fix=Fix(
            text="mask with masked_fill on a boolean mask once, or with finfo(dtype).min / 2; never add two such masks"
        ),
    )


@rule("fp16_loss_overflow")
def fp16_loss_overflow(case: Case) -> Cause | None:
    """The loss was reduced in half precision and overflowed."""
    if case.phase != "forward" or case.dtype != "float16" or case.made != "inf" or case.capture is None:
        return None
    if case.location.module != "loss" or case.capture.op.inside or case.op not in _REDUCING_LOSSES:
        return None
    wide = _recomputed(case)
    if wide is None:
        return None
    evidence = [
        Evidence(
            f"{case.location.op} runs in float16 outside the model; its float32 result is {wide:.4g}, the limit is 65504"
        ),
        Evidence("the model's output is finite"),
    ]
    trial = case.lab.single_precision()
    add_proof(evidence, trial, "with the loss in float32 the step is finite")
    return Cause(
        "fp16_loss_overflow",
        proven=True,
        confidence=0.95,
        summary=f"the loss was reduced in float16 and overflowed: {wide:.4g} > 65504",
        evidence=tuple(evidence),
        fix=fix_for(case, "compute the loss in float32: logits.float() before it", trial),
    )


@rule("fp16_forward_overflow")
def fp16_forward_overflow(case: Case) -> Cause | None:
    """An activation exceeded the range of float16."""
    if case.phase != "forward" or case.dtype != "float16" or case.made != "inf" or case.capture is None:
        return None
    wide = _recomputed(case)
    trial = case.lab.single_precision()
    evidence = []
    if wide is not None:
        evidence.append(
            Evidence(f"the float32 result of {case.location.op} is {wide:.5g}, above float16's limit of 65504")
        )
    finite = add_proof(evidence, trial, "the same step in float32 is finite")
    if trial.finite is False:
        case.refute("fp16_forward_overflow", trial, "the step is as bad in float32")
        return None
    if wide is None and not finite:
        return None
    return Cause(
        "fp16_forward_overflow",
        proven=True,
        confidence=0.92,
        summary=f"{case.location.module} exceeded the range of float16"
        + (f": {wide:.5g} > 65504" if wide is not None else ""),
        evidence=tuple(evidence),
        fix=fix_for(
            case,
            f"run {case.location.module} in float32 (torch.autocast(enabled=False) around it) or train in bfloat16",
            trial,
        ),
    )


@rule("eps_underflow_half")
def eps_underflow_half(case: Case) -> Cause | None:
    """An epsilon is zero in the precision in which it is used."""
    if case.phase != "forward" or not case.half or case.op not in _ZERO_POLES or case.output is None:
        return None
    argument = case.inputs[-1] if case.op in ("div", "true_divide") else case.inputs[0]
    pole = -1.0 if case.op == "log1p" else 0.0
    zero = argument == pole
    if not bool(zero.any()):
        return None
    trial = case.lab.single_precision()
    constants = _tiny_constants(case)
    evidence = [Evidence(f"the argument of {case.location.op} is exactly {pole:g} at {share(zero)} in {case.dtype}")]
    if constants:
        text = ", ".join(f"{value:g} is {_rounded(value, case.output):g}" for value in constants[:2])
        evidence.append(Evidence(f"in {case.dtype} {text}"))
    finite = add_proof(evidence, trial, "the same step in float32 is finite")
    if trial.finite is False:
        case.refute("eps_underflow_half", trial, "the step is as bad in float32")
        return None
    if not finite and not constants:
        return None
    return Cause(
        "eps_underflow_half",
        proven=finite,
        confidence=0.94 if finite else 0.5,
        summary=f"an epsilon has no effect in {case.dtype}: the argument of {case.op} is exactly {pole:g}",
        evidence=tuple(evidence),
        fix=fix_for(case, "compute this part in float32, or use an eps the dtype can hold (1e-4 for float16)", trial),
    )


@rule("adam_eps_underflow_half")
def adam_eps_underflow_half(case: Case) -> Cause | None:
    """Adam's eps is zero in the precision of its state."""
    if case.phase != "optimizer" or case.op not in ("addcdiv", "div") or not case.half or case.capture is None:
        return None
    denominator = case.inputs[-1]
    if denominator.numel() <= 1 or not bool((denominator == 0).any()):
        return None
    trial = case.lab.update_in_single_precision()
    eps = [group["eps"] for group in case.failed.optimizer.param_groups if "eps" in group]
    evidence = [
        Evidence(
            f"√v + eps is exactly 0 at {share(denominator == 0)} in {case.dtype}; gradients and weights are finite"
        )
    ]
    if eps:
        evidence.append(Evidence(f"eps = {eps[0]:g} is {_rounded(eps[0], denominator):g} in {case.dtype}"))
    finite = add_proof(evidence, trial, "the same update in float32 is finite")
    return Cause(
        "adam_eps_underflow_half",
        proven=finite,
        confidence=0.95 if finite else 0.6,
        summary=f"the optimizer's eps is 0 in {case.dtype}, so it divides by zero",
        evidence=tuple(evidence),
        fix=fix_for(
            case,
            "keep the weights in float32 and use autocast (or a float32 master copy); eps=1e-4 holds in float16",
            trial,
        ),
    )


@rule("optimizer_constant_rounding")
def optimizer_constant_rounding(case: Case) -> Cause | None:
    """An optimizer constant rounds to one in its precision."""
    if case.phase != "optimizer" or case.op not in ("div", "reciprocal", "addcdiv", "rsqrt") or case.capture is None:
        return None
    divisors = [t for t in case.inputs if t.numel() == 1 and bool((t == 0).all())]
    scalar_zero = any(number == 0.0 for number in case.capture.op.scalars)
    if not divisors and not scalar_zero:
        return None
    dtype = str(divisors[0].dtype).removeprefix("torch.") if divisors else case.dtype
    trial = case.lab.update_in_single_precision()
    return Cause(
        "optimizer_constant_rounding",
        proven=trial.finite is not True,
        confidence=0.95 if trial.finite is not True else 0.6,
        summary=f"a bias correction 1 - beta^t is exactly 0: the constant rounds to 1 in {dtype}",
        evidence=(
            Evidence(
                f"{case.location.op} divides by a single value that is exactly 0, in {dtype}; 0.999 is 1.0 in bfloat16"
            ),
            Evidence("weights, gradients and state in float32 do not clear it", kind="trial", trial=trial.number),
        ),
        fix=Fix(text="keep the optimizer's constants as Python floats or float32 tensors"),
    )


@rule("loss_scale_misuse")
def loss_scale_misuse(case: Case) -> Cause | None:
    """The loss scale overflowed, collapsed or was applied in the wrong order."""
    if case.phase != "backward" or case.trace is None or not case.any_half:
        return None
    scale = case.scale if case.scale and case.scale > 1 else _scale_by_hand(case)
    if scale is None:
        return None
    trial = case.lab.loss_scale_one(scale)
    evidence = [
        Evidence(
            f"the loss is multiplied by {scale:g} before backward, and {case.location.op} overflows in {case.dtype}"
        )
    ]
    finite = add_proof(evidence, trial, "with a scale of 1 the gradients are finite")
    if not finite:
        if trial.finite is False:
            case.refute("loss_scale_misuse", trial, "a loss scale of 1 does not help")
        return None
    return Cause(
        "loss_scale_misuse",
        proven=True,
        confidence=0.95,
        summary=f"a loss scale of {scale:g} overflows the gradients",
        evidence=tuple(evidence),
        fix=fix_for(
            case, "use torch.amp.GradScaler, which lowers the scale by itself, and give it to the guard", trial
        ),
    )


# ---- measurements


def _recomputed(case: Case) -> float | None:
    """The guilty operation on its recorded inputs in float32: its magnitude, if that is finite and above the limit."""
    from nantrap.explain.reference import recomputed

    result = recomputed(case, "float32")
    if result is None or not bool(result.isfinite().all()):
        return None
    value = absmax(result)
    return value if value > 65504 else None


def _is_mask(tensor: Tensor, extreme: float) -> bool:
    """Whether the tensor's extreme values are one and the same constant: written by a person, not grown."""
    values = tensor.detach()[tensor.detach() <= -extreme]
    return values.numel() > 0 and bool((values == values[0]).all()) and not bool((tensor >= extreme).any())


def _tiny_constants(case: Case) -> list[float]:
    """Constants near the origin that the dtype cannot tell from 0 or from 1."""
    assert case.trace is not None and case.capture is not None and case.output is not None
    before = case.trace.ops[max(0, case.capture.op.index - 30) : case.capture.op.index + 1]
    found = []
    for op in before:
        for number in op.scalars:
            rounded = _rounded(number, case.output)
            if number != rounded and (rounded in (0.0, 1.0)):
                found.append(number)
    return found


def _rounded(value: float, like: Tensor) -> float:
    return float(like.new_tensor(value))


def _scale_by_hand(case: Case) -> float | None:
    """A constant above 100 by which the loss was multiplied last, outside the model."""
    assert case.trace is not None
    forward = [op for op in case.trace.ops if op.phase == "forward" and not op.inside]
    for op in reversed(forward[-6:]):
        if op.name == "aten.mul":
            large = [number for number in op.scalars if number >= 100]
            if large:
                return large[0]
            if op.absmax is not None and op.sources and op.sources[0] >= 0:
                before = case.trace.ops[op.sources[0]].absmax
                if before and op.absmax / before >= 100:
                    return op.absmax / before
    return None
