"""Calls whose slope is infinite somewhere: their autograd nodes, and their safe forms."""

from __future__ import annotations

import re

SINGULAR = {
    "Sqrt": ("sqrt", "sqrt", "nantrap.ops.safe_sqrt(x)"),
    "Rsqrt": ("sqrt", "rsqrt", "nantrap.ops.safe_divide(1, nantrap.ops.safe_sqrt(x))"),
    "Pow": ("pow", "x ** a with a < 1", "nantrap.ops.safe_pow(x, a)"),
    "Log": ("log", "log", "nantrap.ops.safe_log(x)"),
    "Log2": ("log", "log2", "nantrap.ops.safe_log(x)"),
    "Log10": ("log", "log10", "nantrap.ops.safe_log(x)"),
    "Log1P": ("log", "log1p", "nantrap.ops.safe_log(1 + x)"),
    "Xlogy": ("log", "x log y", "x * nantrap.ops.safe_log(y)"),
    "SpecialEntr": ("log", "entr", "-nantrap.ops.xlogx(x)"),
    "Div": ("div", "a / b", "nantrap.ops.safe_divide(a, b)"),
    "Reciprocal": ("div", "1 / x", "nantrap.ops.safe_divide(1, x)"),
    "Exp": ("exp", "exp", "an argument bounded before exp"),
    "Exp2": ("exp", "exp2", "an argument bounded before exp2"),
    "Expm1": ("exp", "expm1", "an argument bounded before expm1"),
    "LinalgVectorNorm": ("norm", "norm", "nantrap.ops.safe_norm(x)"),
    "Norm": ("norm", "norm", "nantrap.ops.safe_norm(x)"),
    "Std": ("std", "std", "nantrap.ops.safe_std(x)"),
    "StdMean": ("std", "std", "nantrap.ops.safe_std(x)"),
    "Var": ("std", "var", "nantrap.ops.safe_var(x)"),
    "VarMean": ("std", "var", "nantrap.ops.safe_var(x)"),
    "Acos": ("acos", "acos", "nantrap.ops.safe_acos(x)"),
    "Asin": ("acos", "asin", "nantrap.ops.safe_asin(x)"),
    "Hypot": ("sqrt", "hypot", "nantrap.ops.safe_sqrt(a * a + b * b)"),
    "Cdist": ("norm", "cdist", "a distance with an eps under its root"),
}


_NODE = re.compile(r"(\w+?)Backward\d+")
"""A node of PyTorch's own. One of a function that the user wrote has no number."""


def family_of(node: str) -> tuple[str, tuple[str, str, str]]:
    """A node's name in `SINGULAR`, and its entry there; an empty name and general words for any other node.

    The whole name counts: Logsumexp and Logit are no logarithm, and Acosh is no acos.
    """
    name = found.group(1) if (found := _NODE.fullmatch(node)) else ""
    if name in SINGULAR:
        return name, SINGULAR[name]
    return "", ("sqrt", node.removesuffix("Backward0") or "the operation", "a form that is safe on both branches")
