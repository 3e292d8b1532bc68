"""The engine: asks every rule, makes causes of what they claim, and ranks them.

Here alone it is decided what is proven, and which cause comes first. A proof has three parts. The *observation* is a
measured fact about the recorded operands of the operation at which it began. The *counterfactual* is a trial with
exactly one thing changed; a trial counts only after its control, the unchanged step in the same harness, failed in the
same way (see `trials`). The *competition*: of several causes that could be proven, one remains, the one with the first
`precedence` in the table of causes (`incident/codes.py`); the others are listed below it, not as proven.
"""

from __future__ import annotations

import dataclasses
import math
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from nantrap.causes.case import Case
from nantrap.causes.claim import Claim, Remedy
from nantrap.causes.rules import RULES
from nantrap.causes.trials import Laboratory
from nantrap.causes.usual import unusual_inputs
from nantrap.incident import BY_SLUG, Alternative, Cause, Evidence, Fix, Trial
from nantrap.incident.wording import NO_MEMORY, counted, is_out_of_memory
from nantrap.locate.budget import Budget
from nantrap.locate.failure import without_printed_warnings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nantrap.locate.trace import Op

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


# ---- what is proven, and which comes first

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


# ---- a number of the program (a temperature, a scale) that brought values out of the range of what came after

_CAUSES = frozenset(
    {"exp_overflow", "log_of_zero", "division_by_zero", "singular_gradient_at_zero", "eps_underflow_half"}
)
"""What happens to an exponential, or behind one, that was given too much."""
_BETWEEN = frozenset(
    {"exp", "expm1", "softmax", "sigmoid", "sub", "neg", "sum", "amax", "clamp", "clamp_min", "add", "masked_fill",
     "view", "unsafe_view", "unsqueeze", "index", "gather", "mul", "div", "diagonal", "squeeze", "pow", "log",
     "_to_copy", "alias", "detach", "where", "fill_diagonal", "max"}
)  # fmt: skip
_TOO_FAR = 80.0
"""exp of a number of this size leaves the range of float32, in one direction or the other."""
_HARMLESS = 20.0
_LONGEST = 12


class ScalingNumber(NamedTuple):
    """A plain number that an operation of the program multiplied or divided by."""

    op: Op
    number: float
    reached: float
    """The largest magnitude after it."""

    @property
    def divides(self) -> bool:
        """Whether values were divided by it."""
        return _plain(self.op) == "div"

    @property
    def before(self) -> float:
        """The largest magnitude without it."""
        return self.reached * abs(self.number) if self.divides else self.reached / abs(self.number)


def with_setting(case: Case, cause: Cause) -> Cause:
    """The cause, with the number of the program that brought its values so far, if there is one."""
    found = _setting(case) if cause.slug in _CAUSES else None
    if found is None:
        return cause
    line = "" if found.op.place is None else f" in line {found.op.place.line}"
    done = "divided" if found.divides else "multiplied"
    text = f"the values were {done} by {found.number:.4g}{line}: before that they stay within {found.before:.3g}"
    side = "larger" if found.divides else "smaller"
    advice = Alternative(f"a {side} number than {found.number:.4g}{line} (a temperature, a scale)")
    fix = cause.fix
    fix = Fix(advice.text) if fix is None else dataclasses.replace(fix, others=(*fix.others, advice))
    return dataclasses.replace(cause, evidence=(*cause.evidence, Evidence(text)), fix=fix)


def _setting(case: Case) -> ScalingNumber | None:
    """The nearest such number behind the guilty operation; of a derivative, behind the operation that it belongs to."""
    trace, capture = case.trace, case.capture
    if trace is None or capture is None:
        return None
    first = capture.op if case.phase == "forward" else trace.op_of_node(capture.op.sequence)
    for op in [] if first is None else _behind(case, first):
        if (found := _as_setting(op)) is not None:
            return found
    return None


def _behind(case: Case, first: Op) -> Iterator[Op]:
    """The operations that made the inputs of one, nearest first, as far as they let the size of a value through."""
    assert case.trace is not None
    waiting = list(first.sources)
    seen: set[int] = set()
    while waiting and len(seen) < _LONGEST:
        index = waiting.pop(0)
        if index < 0 or index in seen:
            continue
        seen.add(index)
        op = case.trace.ops[index]
        if _plain(op) in _BETWEEN:
            yield op
            waiting += op.sources


def _as_setting(op: Op) -> ScalingNumber | None:
    if _plain(op) not in ("mul", "div") or not op.scalars or op.absmax is None or not op.scalars[-1]:
        return None
    found = ScalingNumber(op, op.scalars[-1], op.absmax)
    return found if found.reached > _TOO_FAR and found.before < _HARMLESS else None


def _plain(op: Op) -> str:
    return op.name.removeprefix("aten.").rstrip("_").removeprefix("_")
