"""Why: rules propose causes, trials prove them. The texts open without torch; explaining a case needs it.

This package can be called: `nantrap.explain("NT203")` is the page of a cause as text. Importing a subpackage binds its
name in the package above it, so `nantrap.explain` is always this module, and a function of the same name would be there
or not, depending on what was imported before. So the module itself is the function; Python lets a module change its
class for that.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nantrap.explain.case import Case
from nantrap.explain.pages import Page, page, pages
from nantrap.explain.registry import RULES, Rule

if TYPE_CHECKING:
    from nantrap.explain.engine import Explanation, explain_case

__all__ = ["RULES", "Case", "Explanation", "Page", "Rule", "explain_case", "page", "pages"]


def __getattr__(name: str) -> Any:
    if name in ("Explanation", "explain_case"):
        from nantrap.explain import engine

        return getattr(engine, name)
    raise AttributeError(f"module 'nantrap.explain' has no attribute {name!r}")


def explain(code_or_slug: str) -> str:
    """The page of a cause as text: what it is, code that shows it, why, the fix, how it is proven.

    Args:
        code_or_slug: `NT203`, or `softmax_fully_masked_row`.

    Example:
        >>> import nantrap
        >>> print(nantrap.explain("NT203").splitlines()[0])
        NT203 softmax_fully_masked_row: Softmax over a row in which every position is masked
    """
    return page(code_or_slug).text()


class _CallableModule(ModuleType):
    """`nantrap.explain(...)` is `nantrap.explain.explain(...)`."""

    def __call__(self, code_or_slug: str) -> str:
        return explain(code_or_slug)


sys.modules[__name__].__class__ = _CallableModule
