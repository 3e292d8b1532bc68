"""NT5xx: gradients that are too large (their norm, their squares, their growth), or exactly 0."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nantrap.causes.claim import Claim, rule
from nantrap.causes.facts import SECOND_MOMENTS, limit
from nantrap.causes.rounds import growing_rounds
from nantrap.causes.rules.learning_rate import updates_explain
from nantrap.thresholds import STILL_AT_A_FAILURE, has_grown

if TYPE_CHECKING:
    from nantrap.causes.case import Case

_FEWEST_ROUNDS = 8
"""A gradient that a few layers multiply is depth, not a loop."""
_EXPLODED = 1e3
"""The norms of healthy steps in a row differ by less; a warm-up or a spike reaches a factor of 100."""
_BOUNDED = 1e3
"""Values at one line that stay within this factor of their smallest did not grow on the way."""


@rule("grad_norm_overflow")
def grad_norm_overflow(case: Case) -> Claim | None:
    """The norm of finite gradients overflowed."""
    overflowed = overflowed_square(case)
    if overflowed is None:
        return None
    summary, facts, advice = overflowed
    return Claim(
        "hint" if updates_explain(case) else "measured",
        summary,
        facts,
        help=f"bring loss and targets to a sensible scale (gradients above 1e19 are never intended), or {advice}",
    )


def overflowed_square(case: Case) -> tuple[str, tuple[str, ...], str] | None:
    """That finite gradients overflowed in their norm, or as a square in the optimizer: in one line, what was measured,
    and what helps besides smaller ones. `None` if they did not."""
    finding = next((f for f in case.incident.findings if f.kind == "grad_norm"), None)
    if finding is not None:
        summary = "every gradient is finite, but their norm overflows: clipping would silently zero the update"
        return summary, (finding.note,), "take the norm in float32 for half-precision gradients"
    if (squared := _largest_squared(case)) is None:
        return None
    name, largest, end = squared
    facts = [f"the gradient of {name} reaches {largest:.4g}; its square, {largest**2:.3g}, is beyond {end:.3g}"]
    if _in_second_moment(case):
        facts.append("a second moment that is Inf divides every later update to 0: the weight would never move again")
    summary = f"a finite gradient of {largest:.3g} overflows when the optimizer squares it"
    return summary, tuple(facts), "clip the gradients (max_grad_norm=1.0)"


def _largest_squared(case: Case) -> tuple[str, float, float] | None:
    """The parameter whose finite gradient overflowed as a square in the optimizer, its size, and the dtype's limit."""
    if case.phase != "optimizer" or case.made != "inf" or case.half:
        return None
    if not (_in_second_moment(case) or _squares_a_gradient(case)):
        return None
    sizes = {n: float(g.detach().abs().max()) for n, g in case.failure.gradients.items() if g.numel()}
    if not sizes or not all(math.isfinite(size) for size in sizes.values()):
        return None
    name = max(sizes, key=lambda n: sizes[n])
    end = limit(case.failure.gradients[name])
    return (name, sizes[name], end) if sizes[name] ** 2 > end else None


def _in_second_moment(case: Case) -> bool:
    """Whether the update made a second moment of the optimizer non-finite."""
    made = [f.name for f in case.incident.findings if f.kind == "optimizer_state"]
    return any(name.startswith(tuple(f"{key} of " for key in SECOND_MOMENTS)) for name in made)


def _squares_a_gradient(case: Case) -> bool:
    """Whether the guilty operation of the update squares what it is given, and that is a gradient."""
    import torch

    scalars = () if case.capture is None else case.capture.op.scalars
    squares = case.op in ("square", "linalg_vector_norm", "norm", "dot") or (case.op == "pow" and 2.0 in scalars)
    squares = squares or (case.op == "mul" and len(case.inputs) == 2 and torch.equal(*case.inputs))
    gradients = [g for g in case.failure.gradients.values() if g.shape == case.inputs[0].shape] if case.inputs else []
    return squares and any(torch.equal(g.detach(), case.inputs[0]) for g in gradients)


@rule("exploding_gradient", phase="backward")
def exploding_gradient(case: Case) -> Claim | None:
    """The gradients grew step by step until they overflowed."""
    if not case.made or case.op in ("div", "rsqrt", "reciprocal", "log"):
        return None
    return _through_a_loop(case) or _over_the_steps(case)


def _through_a_loop(case: Case) -> Claim | None:
    """The gradient is multiplied in each round of a loop on its way back, inside this one step."""
    if case.trace is None or case.capture is None or case.half:
        return None
    rounds = growing_rounds(case.trace, case.capture.op)
    if rounds is None or len(rounds.values) < _FEWEST_ROUNDS:
        return None
    forward = [
        op.absmax for op in case.trace.ops if op.phase == "forward" and op.absmax and op.place == rounds.op.place
    ]
    bounded = bool(forward) and max(forward) < _BOUNDED * max(1.0, min(forward))
    shown = " -> ".join(f"{value:.3g}" for value in rounds.values[-5:])
    facts = [f"{rounds.op.node} at one line gave gradients of {shown} -> Inf within one backward pass"]
    if bounded:
        facts.append(f"the values at that line stay below {max(forward):.3g} in the forward pass: only the slope grows")
    return Claim(
        "measured",
        f"the gradient was multiplied by {rounds.growth} in each of {len(rounds.values)} rounds of a loop",
        tuple(facts),
        help="bound the factor of a round (tanh, a norm, a spectral bound), run fewer rounds, or cut the unroll "
        "(state.detach() every few rounds); clipping cannot help once a gradient is Inf",
    )


def _over_the_steps(case: Case) -> Claim | None:
    """The gradient norm grew from step to step, and the learning rate is not the reason."""
    norms = [record.grad_norm for record in case.run.history.applied()[-8:]]
    if len(norms) < 2 or not norms[0] > 0 or norms[-1] / min(norms) < _EXPLODED:
        return None
    shown = " -> ".join(f"{value:.3g}" for value in norms[-5:])
    losses = [record.loss for record in case.run.history.applied()[-8:]]
    trial = case.lab.tenth_of_rate()
    facts = ("a tenth of the learning rate does not help",) if trial.finite is False else ()
    bounded = not has_grown(case.loss_growth)
    return Claim(
        "measured" if trial.finite is False and bounded else "hint",
        f"the gradients exploded in {case.place}" + (" while the loss stayed in its range" if bounded else ""),
        facts,
        history=(
            f"the gradient norm went {shown} -> {case.incident.grad_norm:.3g}",
            f"the loss was between {min(losses):.3g} and {max(losses):.3g}",
        ),
        help=f"clip the gradients (max_grad_norm=1.0), and bound what {case.place} multiplies in each round",
    )


@rule("dead_training")
def dead_training(case: Case) -> Claim | None:
    """Nothing is learned: the updates are exactly zero."""
    applied = case.run.history.applied()
    still = [record for record in applied[-STILL_AT_A_FAILURE:] if record.grad_norm == 0]
    if len(applied) < STILL_AT_A_FAILURE or len(still) < STILL_AT_A_FAILURE:
        return None
    first, count = applied[-1].step, 0
    for record in reversed(applied):
        if record.grad_norm != 0:
            break
        first, count = record.step, count + 1
    return Claim(
        "hint",
        f"nothing has been learned since step {first:,}: the gradient norm is exactly 0",
        (),
        history=(f"the gradient norm is exactly 0 in each of the last {count:,} steps",),
        help="look for a detach, a frozen layer or a term without a graph between the loss and the parameters",
    )
