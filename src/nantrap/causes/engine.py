"""The engine: asks every rule, builds causes from what they claim, and ranks them."""

from __future__ import annotations

import math
import traceback
from dataclasses import dataclass

from nantrap.causes.case import Case
from nantrap.causes.claim import Claim
from nantrap.causes.rules import RULES
from nantrap.causes.settings import with_setting
from nantrap.causes.trials import Laboratory
from nantrap.causes.usual import unusual_inputs
from nantrap.causes.verdict import cause_of, ranked
from nantrap.incident import Cause, Evidence, Fix, Trial
from nantrap.incident.wording import NO_MEMORY, counted, is_out_of_memory
from nantrap.locate.budget import Budget
from nantrap.locate.failure import without_printed_warnings

_LONGEST_ERROR = 200


@dataclass(frozen=True, slots=True)
class Explanation:
    """The causes, best first; what trials refuted; the trials, their controls; whether other ranks could try more."""

    causes: tuple[Cause, ...] = ()
    refuted: tuple[Cause, ...] = ()
    trials: tuple[Trial, ...] = ()
    notes: tuple[str, ...] = ()
    wants_others: bool = False
    controls: tuple[Trial, ...] = ()


@without_printed_warnings
def explain_case(case: Case, *, budget: Budget | None = None) -> Explanation:
    """Explain one failure. Never raises: a rule that fails is noted and skipped.

    Args:
        case: the failure.
        budget: how long trials may take; `None` for no trials at all.
    """
    case.lab = Laboratory(case, budget=budget)
    causes: list[tuple[Cause, Claim]] = []
    notes: list[str] = []
    not_examined = 0
    for slug, ask in RULES.items():
        try:
            claim = ask(case)
            if claim is not None:
                causes.append((cause_of(case, slug, claim), claim))
        except Exception as error:
            if is_out_of_memory(error):
                not_examined += 1
                continue
            last = traceback.extract_tb(error.__traceback__)[-1]
            said = (str(error).splitlines() or [""])[0][:_LONGEST_ERROR]  # some of torch's take pages
            notes.append(
                f"the rule for {slug} failed: {type(error).__name__}: {said} ({last.name}, line {last.lineno})"
            )
    if not_examined:
        notes.append(f"{counted(not_examined, 'cause')} could not be examined: {NO_MEMORY}")
    notes += [*case.lab.notes, *case.lab.not_tried()]
    if not {cause.slug for cause, _ in causes} & {"bad_input_data", "input_out_of_scale"}:
        notes += [f"the batch is far outside its usual range: {one.words}" for one in unusual_inputs(case)[:1]]
    found = ranked(causes) if causes else (_unknown(case),)
    found = (with_setting(case, found[0]), *found[1:])
    lab = case.lab
    return Explanation(found, tuple(case.refuted), lab.trials, tuple(notes), lab.wants_others, lab.controls)


def _unknown(case: Case) -> Cause:
    """No rule fits: report that, with what was measured and what would decide it."""
    if case.bad_number is not None:
        return _plain_number(case, case.bad_number)
    if not case.failure.repeatable:
        needs = "guard.attempt(fn, batch) would allow a replay and trials"
    elif case.location.replay is None or case.location.replay.origin is None:
        needs = "the failure did not repeat, so nothing could be tried on it"
    elif case.location.constant is not None:
        needs = "the place is known; the tensor that was read there was bad before, and what made it is not known"
    elif case.capture is None:
        needs = "the place is known, but the inputs of the operation are not"
    else:
        needs = "no rule of nantrap fits the inputs of this operation"
    return Cause("unknown", summary="no cause could be established", evidence=(Evidence(needs),))


def _plain_number(case: Case, number: float) -> Cause:
    """The operation is innocent: it was given a number that was bad, and what computed that number was not seen."""
    word = "NaN" if math.isnan(number) else "Inf" if number > 0 else "-Inf"
    return Cause(
        "unknown",
        summary=f"{case.location.op} was given a Python number that is {word}",
        evidence=(
            Evidence("where the number was computed was not seen: in Python, in NumPy, or by .item() of a tensor"),
        ),
        fix=Fix(
            text="check the code that computes this number: NumPy divides by 0 and averages nothing without an error"
        ),
    )
