"""The registry of rules: one small function per cause. Its docstring is the page of `nantrap explain`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nantrap.incident import BY_SLUG, Code

if TYPE_CHECKING:
    from nantrap.causes.case import Case
    from nantrap.causes.claim import Claim

RuleFunction = Callable[["Case"], "Claim | None"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A cause that can be recognised. Rules are asked in the order in which they were registered."""

    code: Code
    ask: RuleFunction

    @property
    def page(self) -> str:
        """What it is, minimal code that shows it, why, the fix, how it is proven."""
        return self.ask.__doc__ or ""


RULES: dict[str, Rule] = {}


def rule(slug: str) -> Callable[[RuleFunction], RuleFunction]:
    """Register the function that recognises `slug`."""

    def register(function: RuleFunction) -> RuleFunction:
        assert slug not in RULES, f"two rules for {slug}"
        RULES[slug] = Rule(BY_SLUG[slug], function)
        return function

    return register
