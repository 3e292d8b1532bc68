"""Why: rules propose causes, trials prove them."""

from nantrap.explain.engine import Case, Explanation, explain_case

__all__ = ["Case", "Explanation", "explain_case"]
