"""NT2xx, beyond the range: exponentials, and what one forward pass multiplies again and again."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nantrap.causes.claim import Claim, Remedy, rule
from nantrap.causes.facts import BESSEL, EXPONENTIALS, absmax, all_finite, among_samples, limit, listed
from nantrap.causes.rounds import Rounds, growing_rounds
from nantrap.thresholds import is_large

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case
    from nantrap.incident import Trial

_MANY_FACTORS = 8
"""A product of fewer factors overflows by the size of one of them."""
_BETWEEN_STEPS = 10.0
"""A loss or norm that grew by more than this may have brought the loop to its overflow: older weights are tried."""
_ALMOST = 0.999
"""A power is beyond the range where its logarithm reaches this part of the limit: the logarithms are rounded."""


@rule("exp_overflow", ops=EXPONENTIALS, made="inf")
def exp_overflow(case: Case) -> Claim | None:
    """Exp of a finite value exceeded the range of its dtype."""
    if not case.inputs or case.output is None:
        return None
    x = case.inputs[0]
    top = absmax(x) if case.op in ("cosh", "sinh", *BESSEL) else float(x.max())
    bound = math.log(limit(case.output)) / (math.log(2) if case.op == "exp2" else 1.0)
    bound += math.log(2) if case.op in ("cosh", "sinh") else 0.0  # (e^x + e^-x) / 2
    ends = "" if case.op in BESSEL and case.half else f"; in {case.dtype} it overflows above {bound:.4g}"
    facts = [f"{case.location.op} was given {top:.4g}{ends}"]
    samples = case.location.samples
    reach = among_samples(~case.output.isfinite(), samples)
    if reach and samples.rest_is_finite:
        facts.append(
            f"only sample {reach[0]} reaches it" if len(reach) == 1 else f"only samples {listed(reach)} reach it"
        )
    trial, remedies = _bounded_or_in_log_space(case)
    return Claim(
        "measured",
        f"{case.op} of {top:.4g} exceeds the range of {case.dtype} in {case.place}",
        tuple(facts),
        trial=trial,
        shows=f"with {trial.change} the step is finite" if trial is not None else "",
        remedies=remedies,
        help=""
        if case.op in BESSEL or (trial is not None and trial.name == "log_space")
        else "stay in log space with logsumexp",
    )


def _bounded_or_in_log_space(case: Case) -> tuple[Trial | None, tuple[Remedy, ...]]:
    """Log space where a logarithm follows, else a bound on the argument; the last trial, and what was tried."""
    if case.op in BESSEL:
        name = case.op.removeprefix("special_")
        scaled = f"{name}e(x), which is {name}(x) · exp(-|x|): log {name}(x) = log {name}e(x) + |x|"
        return None, (Remedy(f"torch.special.{scaled}"),)
    if case.failure.repeatable and case.feeds_a_logarithm and (trial := case.lab.in_log_space()).finite:
        return trial, (Remedy(trial.change, trial),)
    bounded = case.try_replacement("exp")
    remedies = [case.remedy("exp", bounded)]
    if bounded is not None and not bounded.finite and case.op == "exp":  # a sum of them that are all 0 is divided by
        bounded = case.try_replacement("exp_both") or bounded
        remedies.append(case.remedy("exp_both", bounded))
    return bounded, tuple(remedies)


@rule("exp_overflow", ops=("pow",), made="inf")
def power_overflow(case: Case) -> Claim | None:
    """gamma ** t: an exponential in base gamma. A fixed power of something that grew is no such thing."""
    if case.capture is None or case.output is None or len(case.capture.args) < 2:
        return None
    base, exponent = case.capture.args[:2]
    if not hasattr(exponent, "isfinite"):
        return None
    bad = ~case.output.isfinite()
    powers = exponent.detach().double().expand_as(bad)[bad]
    bases = base.detach().double().expand_as(bad)[bad] if hasattr(base, "isfinite") else powers * 0 + base
    needed = powers * bases.abs().log()
    bound = math.log(limit(case.output))
    if not bool((needed.isfinite() & (needed >= _ALMOST * bound)).all()):
        return None
    worst = int(needed.argmax())
    trial = case.try_replacement("power")
    return Claim(
        "measured",
        f"{float(bases[worst]):,.6g} to the power of {float(powers[worst]):,.6g} exceeds the range of {case.dtype} in "
        f"{case.place}",
        (
            (
                f"{case.location.op}: at all {int(bad.sum()):,} bad places power · log|base| is above {bound:.4g}, "
                f"where {case.dtype} ends"
            ),
        ),
        trial=trial,
        shows="with a bounded power the step is finite",
        remedies=(case.remedy("power", trial),),
        help="a base below 1 (a discount of 0.99, not 1.01)",
    )


@rule("exploding_recurrence", phase="forward")
def exploding_recurrence(case: Case) -> Claim | None:
    """One forward pass multiplied its values again and again."""
    if case.trace is None or case.capture is None or case.half:
        return None
    if case.op in ("prod", "cumprod"):
        return _long_product(case)
    if case.op in EXPONENTIALS or (case.made == "nan" and not case.op.endswith(("norm", "mm"))):
        return None
    rounds = growing_rounds(case.trace, case.capture.op)
    if rounds is None or _are_layers(case, rounds):
        return None
    shown = " -> ".join(f"{value:.3g}" for value in rounds.values[-5:])
    within = case.growth < _BETWEEN_STEPS
    older = None if within else case.lab.older_weights()
    older = older if older is not None and older.finite is False else None
    return Claim(
        "measured" if within or older is not None else "hint",
        f"{case.place} multiplied its values by {rounds.growth} in each of {len(rounds.values)} rounds",
        (
            f"{rounds.op.name} at the same line gave {shown} -> Inf within one forward pass",
            f"the factor per round is {rounds.size}: growth inside the step"
            + (", not between steps" if within else ""),
            *(() if older is None else (f"with {older.change} the step fails at the same operation",)),
        ),
        help="normalise or gate the state in each round (LayerNorm, a spectral bound below 1, tanh), or run fewer "
        "rounds",
    )


def _are_layers(case: Case, rounds: Rounds) -> bool:
    """Whether two rounds have other weights: layers of a model beside the guarded one, called at one line."""
    if rounds.op.module != "loss":
        return False  # the model's own layers are known by their names
    kept = [case.operands_of(index) for index in rounds.last]
    leaves = [
        [tensor for tensor, source in zip(one.inputs(), one.op.sources, strict=False) if source < 0]
        for one in kept
        if one is not None
    ]
    if len(leaves) < len(rounds.last) or not all(leaves):
        return False
    return any(a.shape != b.shape or not bool((a == b).all()) for a, b in zip(*leaves, strict=False))


def _long_product(case: Case) -> Claim | None:
    """A product over many factors of more than 1."""
    if case.made != "inf" or case.output is None or not case.inputs:
        return None
    above = _factors_above_one(case, case.output)
    if above.numel() < _MANY_FACTORS or is_large(float(above.max())):
        return None  # a few huge factors: it is their size, not their number
    typical = float(above.log().mean().exp())
    return Claim(
        "measured",
        f"{case.op} multiplies {above.numel():,} factors above 1 with each other in {case.place}",
        (
            (
                f"these factors are {typical:.3g} on average, {float(above.max()):.3g} at most, "
                f"and {case.dtype} ends at {limit(case.output):.3g}{all_finite(case.inputs)}"
            ),
        ),
        help="add logarithms instead of multiplying (x.log().sum()), or keep the factors below 1",
    )


def _factors_above_one(case: Case, output: Tensor) -> Tensor:
    """The magnitudes above 1 that are multiplied with each other in one product: of those that overflowed, the one with
    the most of them."""
    assert case.capture is not None
    factors, dim = case.inputs[0].abs().double(), case.capture.args[1] if len(case.capture.args) > 1 else None
    if not isinstance(dim, int) or not factors.dim():
        return factors[factors > 1]
    rows = factors.movedim(dim, -1).reshape(-1, factors.shape[dim])
    bad = ~output.isfinite()
    whole = bad.movedim(dim, -1).reshape(rows.shape).any(1) if bad.shape == factors.shape else bad.reshape(-1)
    overflowed = rows[whole]
    row = overflowed[(overflowed > 1).sum(1).argmax()]
    return row[row > 1]
