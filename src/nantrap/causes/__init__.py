"""Why a step failed: rules propose causes, trials prove them. The rules need torch when they are asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap._lazy import lazy_names
from nantrap.causes.case import Case

if TYPE_CHECKING:
    from nantrap.causes.earlier_steps import repeated_magnitudes
    from nantrap.causes.engine import Explanation, explain_case
    from nantrap.causes.rules import RULES

__all__ = ["RULES", "Case", "Explanation", "explain_case", "repeated_magnitudes"]

__getattr__ = lazy_names(
    __name__,
    {"earlier_steps": ["repeated_magnitudes"], "engine": ["Explanation", "explain_case"], "rules": ["RULES"]},
)
