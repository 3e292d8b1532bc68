"""`Claim`: what a rule says about a failure, before it is decided whether it is proven; and the decorator of the rules.

A rule is one function for each way in which a cause shows itself; its row stands in `incident/codes.py`, its page in
`pages/`. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from nantrap.incident.codes import BY_SLUG

if TYPE_CHECKING:
    from nantrap.causes.case import Case
    from nantrap.incident import Trial

Has = Literal["measured", "tried", "hint"]


class Remedy(NamedTuple):
    """One thing to do, and the trial that did exactly that; `None` where it was not tried."""

    text: str
    trial: Trial | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A cause as its rule sees it.

    Attributes:
        has: what the rule has. `measured`: a fact about the recorded operands that allows no other explanation; it is
            still dropped when the remedy was tried and the step failed again. `tried`: the facts allow another
            explanation, and the trial decides. `hint`: worth showing, never proven.
        summary: the cause in this incident, in one line.
        facts: what was measured.
        history: what the steps before show.
        trial: the step with exactly one thing changed.
        shows: what is reported if the trial was finite.
        remedies: what to do about it, each with the trial that did exactly that. One whose trial was finite is called
            verified, with a diff of the lines that were replaced where they can be written.
        help: what else to do, in words; never called verified.
        note: a remark on them that is no advice.
        also: further trials that support it, each with what it shows if it was finite.
        code: what to write instead, as code.
        compares: it compares runs with each other, so a replay that does not fail as the step did is its finding.
        precedence: its place in the chain of events, where what was measured gives it another than the table has.
        contests: what was measured makes it at least as likely as what comes after it in the chain of events; while no
            trial has decided between them, none of those is called proven, and this one is named first.
    """

    has: Has
    summary: str
    facts: tuple[str, ...]
    history: tuple[str, ...] = ()
    trial: Trial | None = None
    shows: str = ""
    remedies: tuple[Remedy, ...] = ()
    help: str = ""
    note: str = ""
    also: tuple[tuple[Trial, str], ...] = ()
    code: str = ""
    compares: bool = False
    contests: bool = False
    precedence: int | None = None


RuleFunction = Callable[["Case"], "Claim | None"]

REGISTERED: Final[dict[str, RuleFunction]] = {}
"""The rules by slug, as their modules were imported; `causes/rules` has them in the order in which they are asked."""


def rule(
    slug: str, *, phase: str = "", ops: Collection[str] = (), made: str = "", dtype: str | tuple[str, ...] = ""
) -> Callable[[RuleFunction], RuleFunction]:
    """Register a function that recognises `slug`. It is asked only where the origin is as described here.

    A cause that shows itself in two ways, in the forward and in the backward pass for example, has a function for each:
    they are asked in the order in which they are written, up to the first claim.

    Args:
        slug: of the cause.
        phase: in which it began.
        ops: the guilty operation is one of these, as `Case.op` spells it.
        made: `nan` or `inf`: what the guilty operation made of better inputs.
        dtype: how the dtype of the bad output begins, or several of these.
    """
    assert slug in BY_SLUG, f"{slug} has no row in incident/codes.py"

    def fits(case: Case) -> bool:
        if (phase and case.phase != phase) or (ops and case.op not in ops):
            return False
        return (not made or case.made == made) and case.dtype.startswith(dtype)

    def register(function: RuleFunction) -> RuleFunction:
        """Put the function behind those that the cause has already; the function itself stays as it is."""
        before = REGISTERED.get(slug)

        def asked(case: Case) -> Claim | None:
            claim = None if before is None else before(case)
            return function(case) if claim is None and fits(case) else claim

        REGISTERED[slug] = asked
        return function

    return register
