"""Why: rules propose causes, trials prove them. The texts open without torch; explaining a case needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nantrap.explain.case import Case
from nantrap.explain.registry import RULES, Rule

if TYPE_CHECKING:
    from nantrap.explain.engine import Explanation, explain_case

__all__ = ["RULES", "Case", "Explanation", "Rule", "explain_case"]


def __getattr__(name: str) -> Any:
    if name in ("Explanation", "explain_case"):
        from nantrap.explain import engine

        return getattr(engine, name)
    raise AttributeError(f"module 'nantrap.explain' has no attribute {name!r}")
