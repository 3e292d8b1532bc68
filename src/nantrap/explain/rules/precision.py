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
    """A mask value near the dtype's limit overflowed when something was added.

    A mask filled with `finfo(dtype).min` is finite, but nothing may be added to it: with a second mask, or a negative
    bias, the sum is -Inf. For a row that is masked everywhere the softmax is then NaN (NT203), although `finfo.min`
    was chosen to avoid exactly that.

    Example:
        import torch
        from torch import nn

        model = nn.Linear(8, 8).bfloat16()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        low = torch.finfo(torch.bfloat16).min
        padding = [torch.tensor([0.0, 0.0, 0.0, low]), torch.tensor([low, low, low, low])]  # a sample of padding only
        batches = [(torch.randn(4, 8).bfloat16(), mask.bfloat16()) for mask in padding]

        def loss_fn(batch):
            x, mask = batch
            block = torch.zeros(4, 4).fill_diagonal_(low).bfloat16()
            block[2] = low  # this query belongs to no document
            scores = model(x) @ x.T + (mask + block)
            return (scores.float().softmax(-1) @ x.float()).square().mean()

    Why:
        min + min is -2·max, outside the dtype. In float16 min - 16 is enough: the spacing of numbers near 65504 is
        32.

    Fix:
        Combine masks as booleans and fill once:

            - scores = scores + padding_mask + block_mask
            + scores = scores.masked_fill(padding | block, float("-inf"))

        If the mask must be added, fill with `finfo(dtype).min / 2`. Take the dtype of the scores, not of the input:
        -1e9 is -Inf in float16. A clamp after the addition gives back finfo.min and works, but hides which mask was
        wrong.

    Proof:
        An addition with finite inputs gave -Inf, one input is a single constant within a factor 2 of the dtype's
        limit: a measurement. In half precision the step is also run in float32, where it must be finite.
    """
    if case.op not in ("add", "sub", "rsub", "baddbmm", "addmm") or case.made != "inf" or case.output is None:
        return None
    top = limit(case.output)
    addends = case.inputs[:1] if case.op in ("baddbmm", "addmm") else case.inputs
    extreme = [t for t in addends if _is_mask(t, 0.5 * top)]
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
    """The loss was reduced in half precision and overflowed.

    The model's output is finite; the loss is not. A sum of squares, a sum over tokens or the square of a difference
    was taken in float16, outside the model, where nobody thinks of precision.

    Example:
        import torch
        from torch import nn

        model = nn.Linear(8, 8).half()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        batches = [(torch.randn(16, 8).half(), torch.randn(16, 8).half() * scale) for scale in (1, 100)]

        def loss_fn(batch):
            x, target = batch
            return (model(x) - target).square().sum()

    Why:
        128 squared errors of 10,000 add up to 1,280,000, and float16 ends at 65504. A difference of 256 alone
        overflows when it is squared.

    Fix:
        Leave half precision before the loss:

            - loss = (model(x) - target).square().sum()
            + loss = (model(x).float() - target.float()).square().sum()

        Autocast does it by itself for the losses of `torch.nn.functional`, not for hand-written ones. A mean instead
        of a sum helps only against the sum. `nan_to_num(loss)` gives the constant 65504, and a constant has no
        gradient.

    Proof:
        The reduction is computed again on its recorded inputs in float32: finite and above 65504, with a finite model
        output. Then the step is run with every operation in float32 and must be finite.
    """
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
    """An activation exceeded the range of float16.

    float16 ends at 65504. A residual sum, an attention score before its scaling, a wide linear layer or a feature
    that grew over weeks passed it, and the result is Inf. bfloat16 and float32 reach 3.4e38 and would have been fine.

    Example:
        import torch
        from torch import nn

        model = nn.Linear(16, 16)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        batches = [torch.randn(4, 16), torch.randn(4, 16) * 400]

        def loss_fn(batch):
            with torch.autocast("cpu", torch.float16):
                query = model(batch)
                scores = query @ query.T  # scaled by 1/√d only afterwards
            return (scores.float() / 4).softmax(-1).square().mean()

    Why:
        float16 has 5 bits of exponent: everything above 65504 (65520 after rounding) is Inf. A dot product of 64
        terms of size 40 passes it. In softmax and normalisation Inf - Inf or Inf / Inf then becomes NaN.

    Fix:
        Scale before the product, run the one layer in float32, or train in bfloat16:

            - scores = (q @ k.T) / d**0.5
            + scores = (q / d**0.5) @ k.T

            - with torch.autocast("cuda", torch.float16):
            + with torch.autocast("cuda", torch.bfloat16):

        A GradScaler does not help: it scales the loss for the backward pass and cannot reach an activation. It will
        halve its scale for ever. Clamping to ±65504 gives a finite number without a gradient.

    Proof:
        The operation is computed again on its recorded inputs in float32: the value is finite and above 65504. Then
        the whole step is run with every operation in float32 and must be finite.
    """
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
    """An epsilon is zero in the precision in which it is used.

    The code has an eps, and yet it divides by 0 or takes log 0: in float16 everything below 6e-8 (2.98e-8 after
    rounding) is 0, and `1 - 1e-8` is 1 in every type up to float32. In bfloat16 `1 - eps` is 1 for every eps below
    0.002.

    Example:
        import torch
        from torch import nn

        model = nn.Linear(8, 3).half()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [torch.randn(4, 8).half() for _ in range(2)]
        batches[1][2] = 0.0  # a padded row

        def loss_fn(batch):
            length = batch.norm(dim=-1, keepdim=True)
            unit = batch / (length + 1e-8)
            return model(unit).float().square().mean()

    Why:
        A constant is rounded to the dtype of the tensor it meets. The smallest positive float16 is 6e-8, and near 1
        the next number below is 1 - 0.00049 (bfloat16: 1 - 0.0039).

    Fix:
        Compute this small part in float32, or take an eps that the dtype holds:

            - unit = x / (x.norm(dim=-1, keepdim=True) + 1e-8)
            + unit = (x.float() / (x.float().norm(dim=-1, keepdim=True) + 1e-8)).to(x.dtype)

        1e-4 for float16 is a usable eps; for `1 - eps` use `log1p(-p)` or `logsigmoid` instead. Moving from float16
        to bfloat16 mends an eps near 0 (bfloat16 reaches down to 1e-38) and worsens one near 1.

    Proof:
        The argument is exactly 0 (or -1 for log1p) in half precision at the bad places, the constants nearby are
        shown as the dtype rounds them, and the same step with every operation in float32 is finite.
    """
    if case.phase != "forward" or not case.half or case.op not in _ZERO_POLES or case.output is None:
        return None
    argument = case.inputs[-1] if case.op in ("div", "true_divide") else case.inputs[0]
    pole = -1.0 if case.op == "log1p" else 0.0
    zero = argument == pole
    if not bool(zero.any()) or (case.op == "pow" and not _negative_exponent(case)):
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
    """Adam's eps is zero in the precision of its state.

    The weights are float16 themselves (`model.half()`), so that the optimizer keeps its moments in float16 as well.
    The eps of 1e-8 is 0 there, the second moment of a small gradient is 0, and the update divides by exactly 0. Loss
    and gradients are finite: only the weights are NaN afterwards.

    Example:
        import torch
        from torch import nn

        model = nn.Linear(4, 2).half()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        batches = [torch.randn(8, 4).half()]
        batches[0][:, 3] = 0.0  # a feature that is off: its gradient is exactly 0

        def loss_fn(batch):
            return model(batch).float().square().mean()

    Why:
        The update is m / (√v + eps). With a gradient of 0 it is 0 / (0 + 0) = NaN; with a gradient of 1e-4, v = 1e-8
        · 0.001 is 0 in float16 and the update is Inf.

    Fix:
        Keep the weights in float32 and let autocast choose the precision of each operation:

            - model = Net().half()
            + model = Net()
            + with torch.autocast("cuda", torch.float16):
            +     loss = loss_fn(batch)

        `Adam(eps=1e-4)` holds in float16, but v still underflows and Adam becomes a plain momentum method.
        `model.bfloat16()` is finite, though small updates are lost in its 8 bits; a float32 master copy loses none.

    Proof:
        √v + eps is exactly 0 at the bad places of the update, with finite weights and gradients. The same update with
        weights, gradients and state in float32 must be finite.
    """
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
    """An optimizer constant rounds to one in its precision.

    An optimizer that keeps its betas in a low-precision tensor computes with other numbers than it was given: 0.999
    is 1.0 in bfloat16. The bias correction 1 - beta^t is then exactly 0, and the first update divides by it.

    Example:
        import torch

        class Momentum(torch.optim.Optimizer):
            def __init__(self, params, lr):
                super().__init__(params, {"lr": lr, "beta": torch.tensor(0.999, dtype=torch.bfloat16)})

            @torch.no_grad()
            def step(self, closure=None):
                for group in self.param_groups:
                    for p in group["params"]:
                        m = self.state[p].setdefault("m", torch.zeros_like(p))
                        m.mul_(0.999).add_(p.grad, alpha=0.001)
                        p.sub_(group["lr"] * m / (1 - group["beta"].float()))  # unbiased, in the first step

        model = torch.nn.Linear(3, 1)
        optimizer = Momentum(model.parameters(), lr=1e-3)
        batches = [torch.randn(8, 3)]

        def loss_fn(batch):
            return model(batch).square().mean()

    Why:
        bfloat16 has 8 bits of mantissa: between 0.996 and 1 there is no number. 0.999 is stored as 1.0, so that 1 -
        beta is 0 and stays 0, whatever the weights are. Under the second moment of Adam it is worse: g / √(v / 0) is
        0, and nothing is learned in silence.

    Fix:
        Keep hyper-parameters as Python floats or float32 tensors:

            - betas = torch.tensor([0.9, 0.999], dtype=p.dtype)
            + betas = (0.9, 0.999)

        Casting to float32 afterwards is too late, the value is gone. Training the model in float32 does not help
        either, since it is the optimizer that rounds.

    Proof:
        The update divides by a single value that is exactly 0, and the same update with weights, gradients and state
        in float32 is as bad: so it is the constant, not the state.
    """
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
    """The loss scale overflowed, collapsed or was applied in the wrong order.

    The loss is multiplied by a large number so that small gradients survive in float16. If that number is too large,
    fixed, or only ever grows, the gradients overflow instead. If gradients are clipped before they are unscaled, the
    clip sees numbers a thousand times too large and the update all but vanishes.

    Example:
        import torch
        from torch import nn

        model = nn.Linear(8, 4).half()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-8)
        batches = [(torch.randn(8, 8).half(), torch.randint(0, 4, (8,))) for _ in range(2)]

        def loss_fn(batch):
            x, label = batch
            loss = nn.functional.cross_entropy(model(x).float(), label)
            return loss * 2**20  # a static scale, never lowered

    Why:
        Backward is linear: a loss times S gives gradients times S. Every gradient on the way must stay below 65504 /
        S, at S = 2^20 below 0.06.

    Fix:
        Let a scaler search the scale, and keep its order: scale, backward, unscale, clip, step, update.

            - (loss * 2**20).backward()
            - clip_grad_norm_(model.parameters(), 1.0)
            - optimizer.step()
            + guard = nantrap.Guard(model, optimizer, scaler=torch.amp.GradScaler(), max_grad_norm=1.0)
            + guard.attempt(loss_fn, batch)

        Weights in float16 (`model.half()`) cannot be unscaled without loss; keep them in float32 under autocast.
        bfloat16 needs no scale at all. A scale that falls below 1 says that the loss itself is non-finite: look for
        that.

    Proof:
        The step is run with a scale of 1 and must be finite, while it is non-finite with the scale.
    """
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


def _negative_exponent(case: Case) -> bool:
    exponent = case.capture.args[1] if case.capture is not None and len(case.capture.args) > 1 else None
    return isinstance(exponent, (int, float)) and exponent < 0


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
