"""From claims to causes: the one place that decides what is proven, and which cause comes first.

A proof has three parts. The *observation* is a measured fact about the operands of the operation at which it began.
The *counterfactual* is a trial with exactly one thing changed; a trial counts only after its control, the unchanged
step in the same harness, failed in the same way (see `trials`). The *competition* is decided here: of several causes
that could be proven, one remains, the first in `PRECEDENCE`; the others are listed below it, not as proven.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from nantrap.causes.patch import diff_for
from nantrap.incident import Cause, Evidence, Fix

if TYPE_CHECKING:
    from nantrap.causes.case import Case
    from nantrap.causes.claim import Claim

PRECEDENCE: Final = (
    # what was bad before the step, or was written by other code
    "rank_divergence", "bad_input_data", "uninitialised_memory", "corrupt_checkpoint", "corrupt_optimizer_state",
    "ema_poisoned", "state_overwritten", "compiler_bug",
    # exact arithmetic on what an operation was given
    "softmax_fully_masked_row", "ctc_infeasible_alignment", "std_of_one_element", "empty_reduction",
    "label_out_of_range", "input_out_of_scale",
    # a buffer that the forward pass spoiled: after what was wrong with its input
    "bn_buffers_poisoned",
    # precision: decided by the exact result against the limit of the dtype, or by a constant that was rounded
    "mask_overflow", "fp16_loss_overflow", "adam_eps_underflow_half", "optimizer_constant_rounding",
    "eps_underflow_half", "loss_scale_misuse", "fp16_forward_overflow",
    # the steps before: the operation that overflowed is only where it shows
    "resume_lr_jump", "grad_norm_overflow", "lr_too_high",
    # mathematics of one operation
    "where_unselected_branch", "arccos_boundary", "log_of_zero", "degenerate_linalg_backward", "zero_times_inf",
    "division_by_zero", "singular_gradient_at_zero", "bad_initialisation", "exploding_recurrence", "exp_overflow",
    "domain_error", "exploding_gradient",
    # the platform: only when nothing else explains it
    "hardware_fault", "backend_or_kernel_bug", "dead_training", "unknown",
)  # fmt: skip
"""Which cause is named first when two are equally well supported: the earlier one in the chain of events."""

_STRENGTH: Final = {"measured": 2, "tried": 1, "hint": 0}
_RISK: Final = {
    "high": (
        "corrupt_checkpoint", "corrupt_optimizer_state", "uninitialised_memory", "hardware_fault", "rank_divergence",
        "lr_too_high", "resume_lr_jump", "bad_initialisation", "bn_buffers_poisoned", "ema_poisoned",
        "state_overwritten", "adam_eps_underflow_half", "optimizer_constant_rounding", "compiler_bug",
        "backend_or_kernel_bug", "label_out_of_range", "exploding_gradient", "dead_training",
    ),
    "low": ("empty_reduction", "std_of_one_element", "ctc_infeasible_alignment"),
}  # fmt: skip
"""What follows if nothing is done. High: it happens in every step, or it destroys the weights or the run silently. Low:
single batches are lost. Medium: everything between."""


def risk_of(slug: str) -> str:
    """`high`, `medium` or `low`: what follows if nothing is done about a cause."""
    return next((risk for risk, slugs in _RISK.items() if slug in slugs), "medium")


def cause_of(case: Case, slug: str, claim: Claim) -> Cause:
    """One cause from a claim."""
    proven = _is_proven(case, claim)
    evidence = [Evidence(text) for text in claim.facts]
    evidence += [Evidence(text, kind="history") for text in claim.history]
    for trial, text in ((claim.trial, claim.shows), *claim.also):
        if trial is not None and trial.finite and text:
            evidence.append(Evidence(text, kind="trial", trial=trial.number))
    if claim.has != "hint" and not (case.faithful or claim.compares):
        evidence.append(Evidence("measured in a replay that did not fail as the step did, so it proves nothing"))
    return Cause(
        slug,
        proven=proven,
        confidence=1.0 if proven else 0.2 + 0.2 * _STRENGTH[claim.has],
        risk=risk_of(slug),
        summary=claim.summary,
        evidence=tuple(evidence),
        fix=_fix(case, claim) if claim.help else None,
    )


def _is_proven(case: Case, claim: Claim) -> bool:
    """`measured`: by the fact itself, unless its remedy failed. `tried`: by a finite trial. `hint`: never."""
    if claim.has == "hint" or not (case.faithful or claim.compares):
        return False
    tried = None if claim.trial is None else claim.trial.finite
    return tried is True if claim.has == "tried" else tried is not False


def _fix(case: Case, claim: Claim) -> Fix:
    """The help; verified only if the trial put exactly that in place and the step was finite."""
    verified = claim.verifies and claim.trial is not None and claim.trial.finite is True
    diff = diff_for(case.location.source, case.op) if verified and claim.patch else ""
    number = claim.trial.number if verified and claim.trial is not None else None
    return Fix(text=claim.help, code=claim.code, diff=diff, verified=verified, trial=number)


def ranked(causes: list[tuple[Cause, Claim]]) -> tuple[Cause, ...]:
    """Best first. At most one remains proven: two different proofs of one failure prove that a rule is wrong."""
    order = {slug: index for index, slug in enumerate(PRECEDENCE)}
    causes = _contested(causes, order)

    def key(entry: tuple[Cause, Claim]) -> tuple[bool, int, int]:
        cause, claim = entry
        return not cause.proven, -_STRENGTH[claim.has] if not cause.proven else 0, order[cause.slug]

    best, *others = [cause for cause, _ in sorted(causes, key=key)]
    return (best, *(_beside(best, cause) for cause in others))


def _contested(causes: list[tuple[Cause, Claim]], order: dict[str, int]) -> list[tuple[Cause, Claim]]:
    """The causes, where one that comes earlier and was not decided keeps the later ones from being called proven."""
    rivals = [cause for cause, claim in causes if claim.contests and not cause.proven]
    if not rivals:
        return causes
    first = min(rivals, key=lambda cause: order[cause.slug])
    doubt = Evidence(f"not decided against {first.slug}, which comes earlier")

    def doubted(cause: Cause) -> Cause:
        if not cause.proven or order[cause.slug] < order[first.slug]:
            return cause
        return dataclasses.replace(cause, proven=False, confidence=0.5, evidence=(*cause.evidence, doubt))

    return [
        (doubted(cause), dataclasses.replace(claim, has="measured") if cause is first else claim)
        for cause, claim in causes
    ]


def _beside(best: Cause, cause: Cause) -> Cause:
    """A cause that holds as well, below the one that comes first."""
    if not (best.proven and cause.proven):
        return cause
    reason = Evidence(f"holds as well; {best.slug} comes earlier or is more exact, and is named first")
    return dataclasses.replace(cause, proven=False, confidence=0.6, evidence=(*cause.evidence, reason))
