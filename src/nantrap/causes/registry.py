"""The decorator of the rules. A rule is one function per cause; its row stands in `incident/codes.py`, its page in
`pages/`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from nantrap.incident.codes import BY_SLUG

if TYPE_CHECKING:
    from nantrap.causes.case import Case
    from nantrap.causes.claim import Claim

RuleFunction = Callable[["Case"], "Claim | None"]

REGISTERED: Final[dict[str, RuleFunction]] = {}
"""The rules by slug, as their modules were imported; `causes/rules` has them in the order in which they are asked."""


def rule(slug: str) -> Callable[[RuleFunction], RuleFunction]:
    """Register the function that recognises `slug`."""

    def register(function: RuleFunction) -> RuleFunction:
        assert slug in BY_SLUG, f"{slug} has no row in incident/codes.py"
        assert slug not in REGISTERED, f"two rules for {slug}"
        REGISTERED[slug] = function
        return function

    return register
