"""`nantrap.explain` and `nantrap explain`: the page of a code or a slug of any command. Needs no torch.

Three commands report codes: the guard names causes (NT203), `nantrap doctor` checks (NT851), `nantrap data` rules
(NT151). A user who reads a code need not know which one it was.
"""

from __future__ import annotations

from nantrap.causes import Page, page
from nantrap.doctor.data.findings import RULES, Rule, rule_of
from nantrap.doctor.pages import CheckPage, check_page
from nantrap.errors import UsageError


def explain(code_or_slug: str) -> str:
    """The page of a cause, of a check of `nantrap doctor` or of a rule of `nantrap data`, as text.

    Args:
        code_or_slug: `NT203` or `softmax_fully_masked_row`, `NT851` or `isnan_misses_inf`, `NT153` or `outlier`; case
            and `-` for `_` do not matter. A slug that a cause and a rule of `nantrap data` share means the cause.

    Raises:
        UsageError: There is no such code or slug; the message names those that are spelt alike.

    Example:
        >>> import nantrap
        >>> print(nantrap.explain("NT203").splitlines()[0])
        NT203 softmax_fully_masked_row: Softmax over a row in which every position is masked
        >>> print(nantrap.explain("NT851").splitlines()[0])
        NT851 isnan_misses_inf: A loop skips bad steps by isnan, which lets Inf through
    """
    return find_page(code_or_slug).text()


def find_page(code_or_slug: str) -> Page | CheckPage | Rule:
    """The page behind a code or a slug. Raises `UsageError` if there is none."""
    found = rule_of(code_or_slug) or check_page(code_or_slug)
    if found is not None:
        return found
    try:
        return page(code_or_slug)
    except UsageError:
        rule = RULES.get(code_or_slug.strip().lower().replace("-", "_"))
        if rule is None:
            raise
        return rule
