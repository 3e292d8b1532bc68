"""NT5xx: the rate, the gradients, the initialisation. These look at the steps before the failure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nantrap.explain.proofs import add_proof, fix_for
from nantrap.explain.registry import rule
from nantrap.incident import Cause, Evidence, Fix

if TYPE_CHECKING:
    from nantrap.explain.case import Case

_GROWTH = 8.0


@rule("lr_too_high")
def lr_too_high(case: Case) -> Cause | None:
    """The learning rate is beyond the stability limit."""
    if case.phase not in ("forward", "backward", "optimizer") or case.growth < _GROWTH or rate_jump(case) is not None:
        return None
    records = case.history.applied()[-6:]
    shown = " -> ".join(f"{record.loss:.3g}" for record in records)
    rate = records[-1].lr[0] if records and records[-1].lr else math.nan
    evidence = [Evidence(f"the loss went {shown} before it overflowed", kind="history")]
    trial = case.lab.rate("tenth_of_rate", "a tenth of the rate from an older state on", lambda _, lr: lr / 10)
    proven = add_proof(evidence, trial, "the same batches with a tenth of the rate stay finite")
    if trial.finite is False:
        case.refute("lr_too_high", trial, "a tenth of the rate does not help")
        return None
    return Cause(
        "lr_too_high",
        proven=proven,
        confidence=0.955 if proven else 0.55,
        summary=f"a rate of {rate:.4g} is beyond the stability limit: the loss grew until it overflowed",
        evidence=tuple(evidence),
        fix=fix_for(
            case, f"lower the rate (a tenth, {rate / 10:.3g}, is stable here), warm it up, or clip the gradients", trial
        ),
    )


@rule("resume_lr_jump")
def resume_lr_jump(case: Case) -> Cause | None:
    """Restored state changed the learning rate."""
    jump = rate_jump(case)
    if jump is None:
        return None
    step, before, after = jump
    evidence = [Evidence(f"the rate jumped from {before:.4g} to {after:.4g} at step {step:,}", kind="history")]
    trial = case.lab.rate("rate_before", "the rate before the jump", lambda s, lr: before if s >= step else lr)
    proven = add_proof(evidence, trial, "with the rate before the jump the same steps stay finite")
    if trial.finite is False:
        case.refute("resume_lr_jump", trial, "the rate before the jump does not help")
        return None
    return Cause(
        "resume_lr_jump",
        proven=proven,
        confidence=0.965 if proven else 0.7,
        summary=f"the rate jumped from {before:.4g} to {after:.4g} at step {step:,}: restored state overrode it",
        evidence=tuple(evidence),
        fix=fix_for(
            case,
            "after load_state_dict set the rate again in every param group (and the scheduler's base_lrs), or do not restore "
            "the scheduler",
            trial,
        ),
    )


def rate_jump(case: Case) -> tuple[int, float, float] | None:
    """The step at which the rate rose fivefold at once in the recent steps, and both rates. A warm-up is no jump."""
    records = [record for record in case.history if record.lr and record.lr[0] > 0]
    rates = [(record.step, record.lr[0]) for record in records]
    if case.incident.lr:
        rates.append((case.incident.step, case.incident.lr[0]))
    for (_, before), (step, after) in reversed(list(zip(rates, rates[1:], strict=False))):
        if before > 0 and after / before >= 5:
            return step, before, after
    return None


@rule("grad_norm_overflow")
def grad_norm_overflow(case: Case) -> Cause | None:
    """The norm of finite gradients overflowed."""
    finding = next((f for f in case.incident.findings if f.kind == "grad_norm"), None)
    if finding is None:
        return None
    return Cause(
        "grad_norm_overflow",
        proven=True,
        confidence=0.97,
        summary="every gradient is finite, but their norm overflows: clipping would silently zero the update",
        evidence=(Evidence(finding.note),),
        fix=Fix(
            text="bring loss and targets to a sensible scale (gradients above 1e19 are never meant), or take the norm in float32 "
            "for half-precision gradients"
        ),
    )


@rule("exploding_gradient")
def exploding_gradient(case: Case) -> Cause | None:
    """The gradients grew step by step until they overflowed."""
    if case.phase != "backward" or case.made not in ("inf", "nan"):
        return None
    norms = [record.grad_norm for record in case.history.applied()[-8:]]
    if len(norms) < 2 or not norms[0] > 0 or norms[-1] / min(norms) < 1e3:
        return None
    if case.op in ("div", "rsqrt", "reciprocal", "log"):
        return None
    shown = " -> ".join(f"{value:.3g}" for value in norms[-5:])
    losses = [record.loss for record in case.history.applied()[-8:]]
    evidence = [
        Evidence(f"the gradient norm went {shown} -> {case.incident.grad_norm:.3g}", kind="history"),
        Evidence(
            f"the loss stayed between {min(losses):.3g} and {max(losses):.3g}: the forward pass is bounded",
            kind="history",
        ),
    ]
    trial = case.lab.rate("tenth_of_rate", "a tenth of the rate from an older state on", lambda _, lr: lr / 10)
    if trial.finite is False:
        evidence.append(Evidence("a tenth of the rate does not help", kind="trial", trial=trial.number))
    return Cause(
        "exploding_gradient",
        proven=trial.finite is False,
        confidence=0.9 if trial.finite is False else 0.5,
        summary=f"the gradients exploded in {case.location.module} while the loss stayed bounded",
        evidence=tuple(evidence),
        fix=Fix(
            text=f"clip the gradients (max_grad_norm=1.0), and bound what {case.location.module} multiplies in each round"
        ),
    )


@rule("bad_initialisation")
def bad_initialisation(case: Case) -> Cause | None:
    """The first forward pass is already far outside any useful range."""
    if not case.first_step or case.phase not in ("forward", "backward") or case.half or case.trace is None:
        return None
    suspects = _oversized(case)
    if not suspects:
        return None
    name, gain = max(suspects.items(), key=lambda item: item[1])

    def rescale() -> None:
        for key, factor in suspects.items():
            case.failed.parameters[key].div_(factor)

    trial = case.lab.with_weights("rescaled", "the oversized weights divided by their gain", rescale)
    evidence = [
        Evidence(f"{len(suspects)} weights multiply the scale of their input by more than 4; {name} by {gain:.3g}")
    ]
    grown = [f.absmax for f in case.location.frames if f.absmax is not None]
    if len(grown) > 2:
        evidence.append(Evidence("magnitudes on the way: " + " -> ".join(f"{value:.3g}" for value in grown[-5:])))
    proven = add_proof(evidence, trial, "with those weights rescaled the step is finite")
    if trial.finite is False:
        case.refute("bad_initialisation", trial, "the step stays bad with rescaled weights")
        return None
    return Cause(
        "bad_initialisation",
        proven=proven,
        confidence=0.9 if proven else 0.5,
        summary=f"the weights are initialised far too large: {name} multiplies by about {gain:.3g}",
        evidence=tuple(evidence),
        fix=fix_for(case, "initialise with a gain near 1 (nn.init.kaiming_normal_, std = 1/√fan_in)", trial),
    )


def _oversized(case: Case) -> dict[str, float]:
    """Weights with a gain (std · √fan_in) above 4, and by how much. Embeddings count by their standard deviation."""
    found = {}
    embeddings = {
        f"{name}.weight" for name, module in case.failed.root.named_modules() if type(module).__name__ == "Embedding"
    }
    for name, parameter in case.failed.parameters.items():
        if parameter.dim() < 2 or not parameter.is_floating_point() or parameter.numel() < 2:
            continue
        fan_in = 1 if name in embeddings else parameter[0].numel()
        gain = float(parameter.detach().double().std()) * math.sqrt(fan_in)
        if math.isfinite(gain) and gain > 4:
            found[name] = gain
    return found
