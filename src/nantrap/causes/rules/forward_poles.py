"""NT2xx, at a pole: softmax of nothing, log of zero, zero times infinity, the deviation of one value."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nantrap.causes.claim import Claim
from nantrap.causes.facts import all_finite, share
from nantrap.causes.registry import rule

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case
    from nantrap.incident import Trial

_LOGARITHMS = {"log": 0.0, "log2": 0.0, "log10": 0.0, "log1p": -1.0, "special_entr": 0.0, "logit": 0.0}


@rule("softmax_fully_masked_row")
def softmax_fully_masked_row(case: Case) -> Claim | None:
    """Softmax over a row in which every position is masked.

    A row of attention scores was -inf everywhere: a sequence of padding only, a query that may see no key, a state
    without a legal action. The softmax of such a row is 0/0, so the whole row is NaN, and so is everything computed
    from it.

    Example:
        import torch
        from torch import nn

        model = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        padding = [torch.tensor([[0, 0, 1], [0, 1, 1]]).bool(), torch.tensor([[0, 0, 1], [1, 1, 1]]).bool()]
        batches = [(torch.randn(2, 3, 8), mask) for mask in padding]  # the last sample is padding only

        def loss_fn(batch):
            x, mask = batch
            scores = model(x) @ x.transpose(1, 2)
            scores = scores.masked_fill(mask[:, None, :], float("-inf"))
            return (scores.softmax(-1) @ x).square().mean()

    Why:
        softmax(x) = exp(x - max x) / Σ exp(x - max x). With max x = -inf the difference is -inf - (-inf) = NaN. A row
        with one finite score is fine: the others give exp(-inf) = 0, which is what the mask is for.

    Fix:
        Give the row one valid key, drop the empty sample, or use a softmax that defines the empty row as zeros:

            - weights = scores.masked_fill(mask, float("-inf")).softmax(-1)
            + weights = nantrap.ops.masked_softmax(scores, ~mask)

        `weights.nan_to_num(0)` repairs the forward pass only: the backward of softmax multiplies by its own output,
        which is NaN, and where the mask was added, not filled in, the gradient of the scores is NaN. Filling with
        `finfo.min` instead of -inf makes the row uniform, an attention to padding, and overflows when something is
        added to it (NT403).

    Proof:
        The rows that are NaN in the output are exactly the rows that are -inf everywhere in the input: a measurement.
        The call is then replaced by a masked softmax at its own line, and the step must be finite.
    """
    capture = case.capture
    if capture is None or case.op not in ("softmax", "log_softmax", "safe_softmax", "logsumexp"):
        return None
    scores, dim = capture.args[0], int(capture.args[1]) if isinstance(capture.args[1], int) else -1
    bad_rows = case.output.isnan().any(dim=dim) if case.output is not None else None
    masked_rows = (scores == -math.inf).all(dim=dim)
    if bad_rows is None or not bool(masked_rows.any()) or not bool((bad_rows == masked_rows).all()):
        return None
    count = int(masked_rows.sum())
    samples = case.location.samples
    which = f", from sample {', '.join(map(str, samples.guilty[:4]))}" if samples.guilty else ""
    return Claim(
        "measured",
        "softmax over a row in which every position is masked gave NaN" + which,
        (
            f"{count:,} of {masked_rows.numel():,} rows are -inf everywhere, and exactly those rows are NaN",
            "softmax of such a row is 0/0: exp(-inf - max) with max = -inf",
        ),
        trial=case.try_replacement("softmax", "nantrap.ops.masked_softmax"),
        shows="with a masked softmax the step is finite",
        help="give the row one valid key, or use nantrap.ops.masked_softmax(scores, mask), which gives zeros there "
        "(nan_to_num afterwards leaves NaN in the gradient of an added mask)",
        patch=True,
    )


@rule("log_of_zero")
def log_of_zero(case: Case) -> Claim | None:
    """The logarithm of zero gave -Inf.

    A probability underflowed to exactly 0, or reached exactly 1 in log(1 - p), and its logarithm is -Inf. Usually it
    is log(softmax(x)) or log(sigmoid(x)) written as two calls: the first rounds to 0 what the second still needs.

    Example:
        import torch
        from torch import nn

        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [torch.randn(8, 4), torch.randn(8, 4) * 500]  # larger inputs make the model very sure

        def loss_fn(batch):
            probability = model(batch).softmax(-1)
            return -probability.log().mean()

    Why:
        exp(-104) is already 0 in float32, so a logit that lies 104 below the largest has the probability 0, and log 0
        = -Inf. In log space the same number is simply -104.

    Fix:
        Stay in log space:

            - loss = -model(x).softmax(-1).log()
            + loss = -model(x).log_softmax(-1)

            - loss = -(y * p.log() + (1 - y) * (1 - p).log())
            + loss = nn.functional.binary_cross_entropy_with_logits(logits, y)

        Where there are no logits, `nantrap.ops.safe_log(p)` has a floor. `p.clamp(min=1e-8).log()` is finite as well,
        but without a gradient below the floor, and 1e-8 is 0 in float16 (NT404). `nan_to_num` after the log does not
        help: the derivative 1/p is infinite and NaN · 0 is NaN.

    Proof:
        The argument of the logarithm is exactly at its pole at the bad places, in float32: a measurement. The call is
        then replaced by a logarithm with a floor at its own line, and the step must be finite.
    """
    if case.capture is None or case.op not in _LOGARITHMS or not case.inputs or case.output is None:
        return None
    if (case.phase != "forward" and not case.in_users_backward) or case.half:
        return None  # in half precision it is a question of precision: see eps_underflow_half
    x, pole = case.inputs[0], _LOGARITHMS[case.op]
    at_pole = (x == 0) | (x == 1) if case.op == "logit" else x == pole
    bad = ~case.output.isfinite()
    if not bool(at_pole.any()) or (bad.shape == at_pole.shape and not bool(at_pole[bad].all())):
        return None  # below the pole it is a domain error
    trial, advice = _log_remedy(case)
    exactly = "0 or 1" if case.op == "logit" else f"{pole:g}"
    return Claim(
        "measured",
        f"the logarithm of zero gave {'±Inf' if case.op == 'logit' else '-Inf'} in {case.place}",
        (f"{case.location.op} was given exactly {exactly} at {share(at_pole)}",),
        trial=trial,
        shows=f"with {trial.change} the step is finite" if trial is not None else "",
        help=advice,
        patch=trial is not None and trial.name.startswith("replaced"),
    )


def _log_remedy(case: Case) -> tuple[Trial | None, str]:
    """Stay in log space where the argument was a probability; a floor for everything else. Each is tried."""
    assert case.capture is not None
    behind = " ".join(op.name for op in case.source_ops(case.capture.op, 0)[:4])
    together = {
        "softmax": ("log_softmax(x) instead of log(softmax(x))", "log_softmax(x) instead of log(softmax(x))"),
        "sigmoid": (
            "logsigmoid(x) instead of log(sigmoid(x))",
            "logsigmoid(x), or binary_cross_entropy_with_logits, instead of the logarithm of a sigmoid",
        ),
    }
    found = next((texts for word, texts in together.items() if word in behind), None)
    if found is not None:
        trial = case.lab.in_log_space(found[0]) if case.failed.repeatable else None
        if trial is None or trial.finite:
            return trial, f"{found[1]}, which stays finite; or nantrap.ops.safe_log(x)"
    floored = case.try_replacement("log", "nantrap.ops.safe_log")
    advice = "nantrap.ops.safe_log(x), or an argument that is kept from 0 where it is made"
    return floored, advice if found is None else f"{found[1]}; or nantrap.ops.safe_log(x)"


@rule("zero_times_inf")
def zero_times_inf(case: Case) -> Claim | None:
    """Zero times infinity gave NaN.

    An Inf that was put there on purpose, mostly a mask, was multiplied by a 0 that was meant to remove it. A product
    does not remove an Inf: 0 · Inf is NaN. The entropy p·log p of masked logits, soft labels on masked classes and a
    mask multiplied onto a masked matrix are the usual places.

    Example:
        import torch

        model = torch.nn.Linear(6, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        legal = torch.tensor([True, True, False, True])
        batches = [torch.randn(5, 6) for _ in range(2)]

        def loss_fn(batch):
            log_p = model(batch).masked_fill(~legal, float("-inf")).log_softmax(-1)
            entropy = -(log_p.exp() * log_p).sum(-1)
            return -entropy.mean()

    Why:
        The limit of p·log p is 0 for p towards 0, but the processor does not take limits: it multiplies 0 by -Inf.

    Fix:
        Select instead of multiplying, before the product:

            - entropy = -(p * log_p).sum(-1)
            + entropy = -nantrap.ops.xlogx(p).sum(-1)

            - loss = loss_per_class * mask
            + loss = torch.where(mask, loss_per_class, 0.0)

        `torch.where` after the product repairs the forward pass only: the backward of the product multiplies the 0 by
        the Inf again. For p·log p choose the argument first: `p * torch.where(p > 0, log_p, 0.0)`. `nan_to_num` on
        the result has the same gradient problem.

    Proof:
        At every bad place one factor is 0 and the other Inf, and that Inf was there before: a measurement.
    """
    if (
        case.phase == "forward"
        and case.capture is None
        and case.external is None
        and case.location.sinks == ("the loss",)
        and _only_masks_came_in(case)
    ):
        return _constant_in_loss(case)
    if case.made != "nan" or case.phase != "forward" or not case.inputs or case.output is None or case.capture is None:
        return None
    bad = case.output.isnan()
    if case.op in ("mul", "addcmul") and len(case.inputs) > 1:
        a, b = case.inputs[-2].expand_as(bad)[bad], case.inputs[-1].expand_as(bad)[bad]
        if not bool((((a == 0) & b.isinf()) | ((b == 0) & a.isinf())).all()):
            return None
        text = f"at all {int(bad.sum()):,} bad places one factor is 0 and the other Inf"
    elif case.op == "mul" and 0.0 in case.capture.op.scalars and bool(case.inputs[0].isinf().any()):
        text = f"a plain number that is exactly 0 was multiplied by Inf at {share(case.inputs[0].isinf())}"
    elif case.op in ("mm", "bmm", "addmm", "baddbmm", "mv", "dot", "matmul") and len(case.inputs) > 1:
        if not any(bool(t.isinf().any()) for t in case.inputs) or not any(bool((t == 0).any()) for t in case.inputs):
            return None
        text = "one matrix holds Inf where the other holds 0"
    else:
        return None
    return Claim(
        "measured" if case.op in ("mul", "addcmul") else "hint",
        "zero times infinity gave NaN: a product with 0 does not remove an Inf",
        (text, *_where_inf_came_from(case)),
        help="select instead of multiplying: torch.where(mask, x, 0) before the product, or leave out a term whose "
        "weight "
        "is 0; nantrap.ops.xlogx(p) for p·log p",
    )


def _where_inf_came_from(case: Case) -> tuple[str, ...]:
    """Said only where the whole step was traced: no operation before this one made a non-finite value."""
    trace, capture = case.trace, case.capture
    if trace is None or capture is None or trace.captures.get(capture.op.index) is not capture:
        return ()
    if any(op.made is not None for op in trace.ops[: capture.op.index]):
        return ()
    return ("no operation before it made an Inf: it came in with a constant of the program (a mask)",)


def _only_masks_came_in(case: Case) -> bool:
    """Whether all bad constants of the step are masks: 0 or any number, and -Inf at some places."""
    known = [] if case.trace is None else [e for e in case.trace.externals.values() if e.kind == "constant"]
    return all(external.mask for external in known)


def _constant_in_loss(case: Case) -> Claim:
    """No operation made the Inf: it was written on purpose, and a reduction took it into the loss."""
    return Claim(
        "hint",
        f"an Inf that was put there on purpose (a mask) reached the loss through {case.location.op}",
        (
            "every Inf in the step comes from a constant of the program; no operation made one",
            "label smoothing and soft targets give masked classes a weight, and any weight times Inf is Inf or NaN",
        ),
        help="leave masked classes out of the sum (torch.where(mask, 0, term)), or mask with a large finite value",
    )


@rule("std_of_one_element")
def std_of_one_element(case: Case) -> Claim | None:
    """An unbiased standard deviation of a single element.

    `torch.std` and `torch.var` divide by n - 1. With one element that is 0/0. It happens in the last batch of an
    epoch (`len(dataset) % batch_size == 1`), in a group of one, in a sequence of length one.

    Example:
        import torch

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [(torch.randn(n, 3), torch.randn(n)) for n in (8, 8, 1)]  # 17 samples, batch size 8

        def loss_fn(batch):
            x, reward = batch
            advantage = (reward - reward.mean()) / (reward.std() + 1e-8)
            return -(model(x).squeeze(-1) * advantage).mean()

    Why:
        The unbiased estimate is √(Σ (x - mean)² / (n - 1)). For n = 1 both are 0. An eps added to the result does not
        change it, since NaN + eps is NaN.

    Fix:
        Drop the ragged batch, or use the biased estimate, which is 0 for one element:

            - loader = DataLoader(dataset, batch_size=8)
            + loader = DataLoader(dataset, batch_size=8, drop_last=True)

            - spread = x.std()
            + spread = x.std(correction=0)

        `nantrap.ops.safe_std(x)` keeps the correction and is 0, with a gradient of 0, for one element and for equal
        ones. `(x.var() + eps).sqrt()` does not help: var is 0/0 as well.

    Proof:
        The number of elements in each group, minus the correction, is 0 or less: a measurement. The call is then
        replaced by a safe deviation at its own line, and the step must be finite.
    """
    if case.op not in ("std", "var", "var_mean", "std_mean") or case.made != "nan" or case.output is None:
        return None
    count = case.inputs[0].numel() // max(1, case.output.numel())
    if count > 1:
        return None
    return Claim(
        "measured",
        "an unbiased standard deviation over one element is 0/0",
        (
            (
                f"each group holds {count} element{'s' * (count != 1)}: the unbiased estimate divides by "
                f"{count} - 1 = {count - 1}"
            ),
        ),
        trial=case.try_replacement("std", "nantrap.ops.safe_std"),
        shows="with a deviation that is 0 for one element the step is finite",
        help="correction=0, drop_last=True in the DataLoader, or nantrap.ops.safe_std(x)",
        patch=True,
    )


@rule("domain_error")
def domain_error(case: Case) -> Claim | None:
    """A function was given an argument for which it is not defined.

    The square root or logarithm of a negative number, a fractional power of one, acos beyond ±1: the result is NaN
    although every input is finite. Often the argument is negative by rounding only: E[x²] - E[x]², 1 - x² next to 1, a
    distance built from differences of large numbers.

    Example:
        import torch

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batches = [torch.tensor([[3.0, 4.0, 5.0]]), torch.tensor([[1.0, 2.0, 4.0]])]  # the second is no triangle

        def loss_fn(batch):
            half = batch.sum(-1, keepdim=True) / 2
            area = (half * (half - batch).prod(-1, keepdim=True)).sqrt()  # the root of a negative number
            return (model(batch) * area).mean()

    Why:
        Over the real numbers those functions have no value there. In floating point a difference of nearly equal
        numbers keeps only the rounding errors of both, whose sign is arbitrary.

    Fix:
        Compute the argument in a form that cannot be negative, or bound it:

            - variance = (x * x).mean(-1) - x.mean(-1) ** 2
            + variance = x.var(-1, correction=0)

            - length = (squared_a - squared_b).sqrt()
            + length = (squared_a - squared_b).clamp(min=0).sqrt()

        At exactly 0 the slope of sqrt is infinite (NT301), so bound it a little above. `nan_to_num` after it leaves NaN
        in the gradient.

    Proof:
        At all bad places the argument lies outside the domain of the function, and every input is finite: a
        measurement. The call is then replaced at its own line by one whose argument is kept inside, and the step must
        be finite.
    """
    if case.capture is None or case.made != "nan" or not case.inputs or case.output is None:
        return None
    if case.phase != "forward" and not case.in_users_backward:
        return None
    x = case.inputs[-1 if case.op in ("xlogy", "xlog1py") else 0]
    outside = _outside_domain(case, x)
    if outside is None or not bool(outside.any()):
        return None
    bad = case.output.isnan()
    if bad.shape == outside.shape and not bool(outside[bad].all()):
        return None
    values = x[outside] if x.shape == outside.shape else x
    return Claim(
        "tried",  # the labels or the data may have moved the argument there: only the remedy decides
        f"{case.op} was given {float(values.double().flatten()[0]):.4g}, for which it is not defined, in {case.place}",
        (
            (
                f"{case.location.op} was given values outside its domain at {share(outside)}, from "
                f"{float(values.double().min()):.4g} to {float(values.double().max()):.4g}{all_finite(case.inputs)}"
            ),
        ),
        trial=case.try_replacement("domain", "an argument kept inside the domain"),
        shows="with the argument kept inside the domain the step is finite",
        help="compute the argument in a form that cannot leave the domain (var instead of E[x²] - E[x]²), or bound "
        "it a "
        "little inside: x.clamp(min=1e-12)",
    )


def _outside_domain(case: Case, x: Tensor) -> Tensor | None:
    """The places at which an argument lies outside the domain of the guilty function."""
    assert case.capture is not None
    if case.op in ("sqrt", "rsqrt", "log", "log2", "log10", "special_entr", "xlogy"):
        return x < 0
    if case.op in ("log1p", "xlog1py"):
        return x < -1
    if case.op in ("acos", "asin", "erfinv", "atanh"):
        return x.abs() > 1
    if case.op == "acosh":
        return x < 1
    if case.op == "logit":
        return (x < 0) | (x > 1)
    if case.op == "pow" and len(case.capture.args) > 1:
        exponent = case.capture.args[1]
        if isinstance(exponent, (int, float)):
            return x < 0 if exponent != int(exponent) else None
        return (x < 0).expand_as(case.output) if case.output is not None else None
    return None
