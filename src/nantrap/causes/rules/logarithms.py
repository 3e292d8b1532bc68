"""NT2xx: softmax of nothing and the logarithm of zero."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from nantrap.causes.claim import Claim
from nantrap.causes.facts import all_finite, listed, share
from nantrap.causes.registry import rule

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case
    from nantrap.incident import Trial

_LOGARITHMS: Final[dict[str, tuple[float, ...]]] = {
    "log": (0.0,), "log2": (0.0,), "log10": (0.0,), "log1p": (-1.0,), "special_entr": (0.0,), "xlogy": (0.0,),
    "special_xlog1py": (-1.0,), "logit": (0.0, 1.0), "atanh": (-1.0, 1.0),
}  # fmt: skip
"""Where each is infinite. logit(p) is log(p / (1 - p)), and atanh(x) half of log((1 + x) / (1 - x))."""
_OF_THE_SECOND: Final = ("xlogy", "special_xlog1py")
"""x · log(y): the logarithm is taken of the second argument."""


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
    which = f", from sample {listed(samples.guilty)}" if samples.guilty else ""
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
    logit, atanh, xlogy and the log-determinant of a singular matrix take the logarithm of 0 inside.

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
    if case.op == "linalg_slogdet" and case.phase == "forward":
        return _determinant_of_zero(case)
    if case.capture is None or case.op not in _LOGARITHMS or not case.inputs or case.output is None:
        return None
    if case.phase != "forward" and not case.in_users_backward:
        return None
    if case.half and not case.fails_in_float32:
        return None  # a question of precision: see eps_underflow_half
    poles = _LOGARITHMS[case.op]
    x = case.inputs[-1 if case.op in _OF_THE_SECOND else 0]
    at_pole = (x == poles[0]) | (x == poles[-1])
    bad = ~case.output.isfinite()
    if not bool(at_pole.any()) or (bad.shape == at_pole.shape and not bool(at_pole[bad].all())):
        return None  # below the pole it is a domain error
    trial, advice = _log_remedy(case)
    exactly = " or ".join(f"{pole:g}" for pole in poles if bool((x == pole).any()))
    return Claim(
        "measured",
        f"the logarithm of zero gave {_signs(case.output)}Inf in {case.place}",
        (f"{case.location.op} was given exactly {exactly} at {share(at_pole)}",),
        trial=trial,
        shows=f"with {trial.change} the step is finite" if trial is not None else "",
        help=advice,
        patch=trial is not None and trial.name == "replaced:log",
    )


def _signs(output: Tensor) -> str:
    """`-`, `+` or `±`: of the Infs in a result."""
    plus, minus = bool(output.isposinf().any()), bool(output.isneginf().any())
    return "±" if plus and minus else "+" if plus else "-"


def _determinant_of_zero(case: Case) -> Claim | None:
    """log|det A| of a matrix whose determinant is exactly 0."""
    if case.capture is None or case.output is None or len(case.capture.outputs) < 2:
        return None
    sign, logarithm = case.capture.outputs[:2]
    singular = (sign == 0) & logarithm.isneginf()
    if not bool(singular.any()) or not bool(singular[~logarithm.isfinite()].all()):
        return None
    return Claim(
        "measured",
        f"the log-determinant of a singular matrix is -Inf in {case.place}",
        (
            (
                f"{case.location.op}: the determinant is exactly 0 for {int(singular.sum()):,} of {singular.numel():,} "
                f"matri{'x' if singular.numel() == 1 else 'ces'}{all_finite(case.inputs)}"
            ),
        ),
        trial=case.try_replacement("logdet", "0.001 added on the diagonal"),
        shows="with 0.001 added on the diagonal the step is finite",
        help="keep the matrix invertible: add a small multiple of the identity, or use an LU form whose diagonal is an "
        "exp; a row that was set to 0, or two equal rows, are the usual reason",
    )


def _log_remedy(case: Case) -> tuple[Trial | None, str]:
    """Stay in log space where the argument was a probability; a floor for everything else. Each is tried."""
    assert case.capture is not None
    if len(ends := _LOGARITHMS[case.op]) > 1:
        low, high = ends
        trial = case.try_replacement("domain", f"an argument between {low:g} and {high:g}")
        return trial, f"keep the argument between {low:g} and {high:g}: x.clamp({low:g} + 1e-6, {high:g} - 1e-6)"
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
    if floored is not None and floored.finite is False:
        return (
            floored,
            "keep the argument from 0 where it is made; a floor under the logarithm alone does not help",
        )
    advice = "nantrap.ops.safe_log(x), or an argument that is kept from 0 where it is made"
    return floored, advice if found is None else f"{found[1]}; or nantrap.ops.safe_log(x)"
