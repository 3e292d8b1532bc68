"""NT2xx, beyond the range: exponentials, and what one forward pass multiplies again and again."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from nantrap.causes.facts import absmax, limit
from nantrap.causes.proofs import add_proof, fix_for, try_replacement
from nantrap.causes.registry import rule
from nantrap.incident import Cause, Evidence, Fix

if TYPE_CHECKING:
    from nantrap.causes.case import Case
    from nantrap.locate.trace import Op

_EXPONENTIALS = ("exp", "expm1", "exp2", "cosh", "sinh")


@rule("exp_overflow")
def exp_overflow(case: Case) -> Cause | None:
    """Exp of a finite value exceeded the range of its dtype.

    exp, expm1, sinh or cosh was given a number that is finite but too large. Log-variances, log-ratios of a policy,
    scales of a normalising flow and losses such as log cosh are the places where a network hands an unbounded number
    to exp.

    Example:
        import torch

        model = torch.nn.Linear(3, 4)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        batches = [torch.randn(8, 3), torch.randn(8, 3) * 400]  # an outlier far from the training data

        def loss_fn(batch):
            mean, log_variance = model(batch).chunk(2, dim=-1)
            return 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).mean()

    Why:
        exp(x) exceeds the largest number at x = 88.7 in float32 and bfloat16, at 11.09 in float16 and at 709.8 in
        float64. One step further, Inf - Inf or Inf / Inf is NaN.

    Fix:
        Bound the argument where it is made, or stay in log space:

            - variance = log_variance.exp()
            + variance = log_variance.clamp(-30, 20).exp()

            - value = (a.exp() + b.exp()).log()
            + value = torch.logaddexp(a, b)

        `softplus` grows linearly where exp explodes. Clamping after exp is too late: the derivative of exp is exp
        itself, and 0 · Inf is NaN. Gradient clipping does not help either, a norm of NaN scales everything to NaN.

    Proof:
        The largest argument is above the limit of the dtype and the result is Inf: a measurement. The call is then
        replaced at its own line by one with a bounded argument, and the step must be finite.
    """
    if case.op not in _EXPONENTIALS or case.made != "inf" or not case.inputs or case.output is None:
        return None
    x = case.inputs[0]
    top = absmax(x) if case.op in ("cosh", "sinh") else float(x.max())
    bound = math.log(limit(case.output)) / (math.log(2) if case.op == "exp2" else 1.0)
    evidence = [Evidence(f"{case.location.op} was given {top:.4g}; in {case.dtype} it overflows above {bound:.4g}")]
    trial = try_replacement(case, "exp", "an argument bounded from above")
    add_proof(evidence, trial, "with a bounded argument the step is finite")
    samples = case.location.samples
    if samples.guilty and samples.rest_is_finite:
        evidence.append(Evidence(f"only sample {', '.join(map(str, samples.guilty[:4]))} reaches it"))
    return Cause(
        "exp_overflow",
        proven=True,
        confidence=0.9,
        summary=f"exp of {top:.4g} exceeds the range of {case.dtype} in {case.place}",
        evidence=tuple(evidence),
        fix=fix_for(
            case, "bound the argument (log-variances to [-30, 20]), or stay in log space with logsumexp", trial
        ),
    )


@rule("exploding_recurrence")
def exploding_recurrence(case: Case) -> Cause | None:
    """One forward pass multiplied its values again and again.

    A recurrence, an iterated refinement or an unrolled solver multiplies its state by more than 1 in each round.
    Short inputs are fine; at some length the state leaves the range of the dtype inside a single forward pass. The
    weights need not have changed at all.

    Example:
        import torch
        from torch import nn

        model = nn.Linear(4, 4, bias=False)
        nn.init.eye_(model.weight).data.mul_(2.0)  # a spectral radius of 2
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        batches = [(torch.randn(2, 4), rounds) for rounds in (3, 5, 200)]

        def loss_fn(batch):
            state, rounds = batch
            for _ in range(rounds):
                state = model(state)
            return (state / (1 + state.detach().abs().max())).square().mean()

    Why:
        After T rounds a state is about ρ^T times its beginning, with ρ the spectral radius of what is applied. 2^128
        is the limit of float32: 128 rounds of doubling, or 1,340 rounds of 1.07.

    Fix:
        Bound what one round can do:

            - state = cell(state)
            + state = torch.tanh(cell(state))

        A LayerNorm in the loop, a gate (GRU, LSTM) or `nn.utils.parametrizations.spectral_norm(cell)` do the same.
        Fewer rounds help for inputs of known length. Gradient clipping and a lower rate do not: nothing grew between
        the steps.

    Proof:
        The results of one and the same operation, at one line, grow by a steady factor within the failed forward pass
        until Inf: the series is measured and shown.
    """
    if case.trace is None or case.capture is None or case.phase != "forward" or case.made != "inf" or case.half:
        return None
    origin = case.capture.op
    same_line = [
        op.absmax
        for op in case.trace.ops[: origin.index]
        if op.name == origin.name
        and op.phase == "forward"
        and op.absmax is not None
        and op.module == origin.module
        and _same_place(op, origin)
    ]
    if len(same_line) < 4 or min(same_line) <= 0:
        return None
    tail = same_line[-8:]
    ratios = [b / a for a, b in itertools.pairwise(tail)]
    typical = sorted(ratios)[len(ratios) // 2]
    if typical < 1.3 or tail[-1] / tail[0] < 10:
        return None
    shown = " -> ".join(f"{value:.3g}" for value in tail[-5:])
    return Cause(
        "exploding_recurrence",
        proven=True,
        confidence=0.9 if case.growth < 10 else 0.75,
        summary=f"{case.place} multiplied its values by about {typical:.3g} in each of {len(same_line) + 1} rounds",
        evidence=(
            Evidence(f"{origin.name} at the same line gave {shown} -> Inf within one forward pass"),
            Evidence(f"the factor a round is {typical:.3g}: growth inside the step, not between steps"),
        ),
        fix=Fix(
            text="normalise or gate the state in each round (LayerNorm, a spectral bound below 1, tanh), or "
            "run fewer rounds"
        ),
    )


def _same_place(op: Op, origin: Op) -> bool:
    """The same instruction of the user's code, reached again: a round of a loop or of a recurrence."""
    if op.place is None or origin.place is None:
        return op.place is origin.place
    return (op.place.code, op.place.instruction) == (origin.place.code, origin.place.instruction)
