"""Calls whose slope is infinite somewhere: their autograd nodes, and their safe forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

SINGULAR = {
    "Sqrt": ("sqrt", "sqrt", "nantrap.ops.safe_sqrt(x)"),
    "Rsqrt": ("sqrt", "rsqrt", "nantrap.ops.safe_sqrt(x)"),
    "Pow": ("pow", "x ** a with a < 1", "nantrap.ops.safe_pow(x, a)"),
    "Log": ("log", "log", "nantrap.ops.safe_log(x)"),
    "Xlogy": ("log", "x log y", "nantrap.ops.xlogx(x)"),
    "SpecialEntr": ("log", "entr", "nantrap.ops.xlogx(x)"),
    "Div": ("div", "a / b", "nantrap.ops.safe_divide(a, b)"),
    "Reciprocal": ("div", "1 / x", "nantrap.ops.safe_divide(1, x)"),
    "Exp": ("exp", "exp", "an argument bounded before exp"),
    "LinalgVectorNorm": ("norm", "norm", "nantrap.ops.safe_norm(x)"),
    "Norm": ("norm", "norm", "nantrap.ops.safe_norm(x)"),
    "Std": ("std", "std", "nantrap.ops.safe_std(x)"),
    "Var": ("std", "var", "nantrap.ops.safe_var(x)"),
    "Acos": ("acos", "acos", "nantrap.ops.safe_acos(x)"),
    "Asin": ("acos", "asin", "nantrap.ops.safe_asin(x)"),
    "Hypot": ("sqrt", "hypot", "nantrap.ops.safe_sqrt(a * a + b * b)"),
    "Cdist": ("norm", "cdist", "a distance with an eps under its root"),
}


def family_of(node: str) -> tuple[str, tuple[str, str, str]]:
    for name, entry in SINGULAR.items():
        if node.startswith(name) and not node.startswith("LogSoftmax"):
            return name, entry
    return "", ("sqrt", node.removesuffix("Backward0") or "the operation", "a form that is safe on both branches")
