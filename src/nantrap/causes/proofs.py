"""From a trial to evidence and to a verified fix: the same few lines for every rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap.causes.patch import diff_for
from nantrap.incident import Evidence, Fix, Trial

if TYPE_CHECKING:
    from nantrap.causes.case import Case


def try_replacement(case: Case, family: str, instead: str) -> Trial | None:
    """Replace the guilty call at its own line by its stable form, if line and step can be run again."""
    source = case.location.source
    if source is None or not case.failed.repeatable:
        return None
    return case.lab.replaced(source, family, instead)


def add_proof(evidence: list[Evidence], trial: Trial | None, text: str) -> bool:
    """Add what a finite trial shows to the evidence. Whether it was finite."""
    if trial is None or not trial.finite:
        return False
    evidence.append(Evidence(text, kind="trial", trial=trial.number))
    return True


def fix_for(case: Case, text: str, trial: Trial | None = None, *, patch: bool = False) -> Fix:
    """The help text; verified only if `trial` made the step finite. `patch` adds a diff of the user's own line."""
    if trial is None or not trial.finite:
        return Fix(text=text)
    diff = diff_for(case.location.source, case.op) if patch else ""
    return Fix(text=text, diff=diff, verified=True, trial=trial.number)
