"""Why a step failed: rules propose causes, trials prove them. The texts can be read without torch, the rules need
it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap._lazy import lazy_names
from nantrap.causes.case import Case
from nantrap.causes.pages import Page, page, pages
from nantrap.causes.registry import RULES, Rule

if TYPE_CHECKING:
    from nantrap.causes.engine import Explanation, explain_case

__all__ = ["RULES", "Case", "Explanation", "Page", "Rule", "explain_case", "page", "pages"]

__getattr__ = lazy_names(__name__, {"engine": ["Explanation", "explain_case"]})
