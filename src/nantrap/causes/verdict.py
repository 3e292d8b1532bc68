"""From claims to causes: the one place that decides what is proven, and which cause comes first.

A proof has three parts. The *observation* is a measured fact about the operands of the operation at which it began.
The *counterfactual* is a trial with exactly one thing changed; a trial counts only after its control, the unchanged
step in the same harness, failed in the same way (see `trials`). The *competition* is decided here: of several causes
that could be proven, one remains, the one with the first `precedence` in the table of causes (`incident/codes.py`); the
others are listed below it, not as proven.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from nantrap.incident import BY_SLUG, Alternative, Cause, Evidence, Fix

if TYPE_CHECKING:
    from nantrap.causes.case import Case
    from nantrap.causes.claim import Claim, Remedy

_STRENGTH: Final = {"measured": 2, "tried": 1, "hint": 0}


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
        risk=BY_SLUG[slug].risk,
        summary=claim.summary,
        evidence=tuple(evidence),
        fix=_fix(case, claim),
    )


def _is_proven(case: Case, claim: Claim) -> bool:
    """`measured`: by the fact itself, unless its remedy failed. `tried`: by a finite trial. `hint`: never."""
    if claim.has == "hint" or not (case.faithful or claim.compares):
        return False
    tried = None if claim.trial is None else claim.trial.finite
    return tried is True if claim.has == "tried" else tried is not False


def _fix(case: Case, claim: Claim) -> Fix | None:
    """What to do, what is verified first; verified is what a trial did exactly so, with a finite step."""
    every = [_alternative(remedy) for remedy in claim.remedies]
    every += [Alternative(claim.help)] if claim.help else []
    if not every:
        return None
    every.sort(key=lambda one: (not one.verified, one.trial is not None))
    first, *others = every
    diff = case.lab.diff_of(first.trial) if first.verified and first.trial is not None else ""
    return Fix(first.text, claim.code, diff, first.verified, first.trial, tuple(others), claim.note)


def _alternative(remedy: Remedy) -> Alternative:
    """A remedy with what its trial gave; one that was not run has tried nothing."""
    trial = remedy.trial
    if trial is None or trial.finite is None:
        return Alternative(remedy.text)
    return Alternative(remedy.text, trial.finite, trial.number)


def ranked(causes: list[tuple[Cause, Claim]]) -> tuple[Cause, ...]:
    """Best first. At most one remains proven: two different proofs of one failure prove that a rule is wrong."""
    causes = _contested(causes)

    def key(entry: tuple[Cause, Claim]) -> tuple[bool, int, int]:
        cause, claim = entry
        place = _precedence(cause) if claim.precedence is None else claim.precedence
        return not cause.proven, -_STRENGTH[claim.has] if not cause.proven else 0, place

    best, *others = [cause for cause, _ in sorted(causes, key=key)]
    return (best, *(_beside(best, cause) for cause in others))


def _precedence(cause: Cause) -> int:
    return BY_SLUG[cause.slug].precedence


def _contested(causes: list[tuple[Cause, Claim]]) -> list[tuple[Cause, Claim]]:
    """The causes, where one that comes earlier and was not decided keeps the later ones from being called proven."""
    rivals = [cause for cause, claim in causes if claim.contests and not cause.proven]
    if not rivals:
        return causes
    first = min(rivals, key=_precedence)
    doubt = Evidence(f"not decided against {first.slug}, which comes earlier")

    def doubted(cause: Cause) -> Cause:
        if not cause.proven or _precedence(cause) < _precedence(first):
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
