"""Names that say what a value is: a loss, a norm, a gradient."""

from __future__ import annotations

import ast
import re
from typing import Final

from nantrap.doctor.configuration.constants import dotted
from nantrap.doctor.source.module import Function, Module

_NOT_A_LOSS: Final = re.compile(
    r"mask|weight|scale|meter|metric|history|^val_|^eval_|^test_|^best_|_best|log_var|coef|lambda|name|type|count|_fn$|_func$|"
    r"lossless|closs|glossary"
)
_CRITERION: Final = re.compile(r"loss|criterion|cross_entropy|nll|mse|kl_div|bce|objective", re.IGNORECASE)


def name_of(node: ast.AST | None) -> str:
    """The last name of a chain, the key of a subscript: `losses["total_loss"]` is `total_loss`."""
    if isinstance(node, ast.Subscript):
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            return node.slice.value
        return name_of(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Name):
        return node.id
    return ""


def core(node: ast.AST | None) -> ast.AST | None:
    """The tensor of `loss.item()`, `loss.detach().cpu()`, `loss.data`, `float(loss)`, `loss.mean()`."""
    while True:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr
            in (
                "item",
                "detach",
                "cpu",
                "float",
                "mean",
                "sum",
                "any",
                "all",
                "data",
                "double",
                "numpy",
                "abs",
                "cuda",
                "norm",
                "max",
            )
        ):
            node = node.func.value
        elif isinstance(node, ast.Attribute) and node.attr == "data":
            node = node.value
        elif isinstance(node, ast.Call) and dotted(node.func) in ("float", "abs") and node.args:
            node = node.args[0]
        else:
            return node


def is_loss(node: ast.AST | None) -> bool:
    """Whether an expression is called a loss."""
    name = name_of(core(node)).lower()
    return "loss" in name and not _NOT_A_LOSS.search(name)


def is_norm(module: Module, node: ast.AST | None, function: Function) -> bool:
    """Whether an expression is called a gradient norm, or is what clipping returned."""
    inner = core(node)
    name = name_of(inner).lower()
    if name in ("norm", "gnorm") or (
        "norm" in name and any(word in name for word in ("grad", "total", "clip", "gnorm"))
    ):
        return True
    value = function.latest(dotted(inner), getattr(inner, "lineno", 0)) if inner is not None and dotted(inner) else None
    return isinstance(value, ast.Call) and "clip_grad" in (dotted(value.func) or name_of(value.func))


def is_gradient(node: ast.AST | None) -> bool:
    """`p.grad`, `p.grad.data`."""
    while isinstance(node, (ast.Subscript,)) or (isinstance(node, ast.Attribute) and node.attr == "data"):
        node = node.value
    return isinstance(node, ast.Attribute) and node.attr == "grad"


def computes_loss(node: ast.AST | None) -> bool:
    """Whether a call computes a loss: `F.cross_entropy(...)`, `self.criterion(...)`."""
    return isinstance(node, ast.Call) and bool(_CRITERION.search(dotted(node.func) or name_of(node.func)))
