"""Values of Python expressions that are known without running them: `3e-4 * 2`, `float("inf")`, `torch.float16`."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from nantrap.doctor.configuration.setting import UNKNOWN

_OPERATIONS: Final[dict[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_DTYPES: Final = frozenset({"float16", "half", "bfloat16", "float32", "float", "float64", "double"})
_LARGEST: Final = 1e300


def evaluate(node: ast.AST | None, known: Mapping[str, Any] | None = None) -> Any:
    """The value of an expression, or `UNKNOWN`.

    Args:
        node: the expression.
        known: values of names; `args.lr` is an attribute.
    """
    if node is None:
        return UNKNOWN
    if isinstance(node, ast.Constant):
        return node.value if not isinstance(node.value, (bytes, complex)) and node.value is not ... else UNKNOWN
    if isinstance(node, ast.UnaryOp):
        return _unary(node, known)
    if isinstance(node, ast.BinOp):
        return _binary(node, known)
    if isinstance(node, (ast.List, ast.Tuple)):
        return [evaluate(item, known) for item in node.elts]
    if isinstance(node, ast.Name):
        return (known or {}).get(node.id, UNKNOWN)
    if isinstance(node, ast.Attribute):
        return _attribute(node, known)
    if isinstance(node, ast.Call):
        return _call(node, known)
    if isinstance(node, ast.IfExp):
        first, second = evaluate(node.body, known), evaluate(node.orelse, known)
        return first if first is not UNKNOWN and first == second else UNKNOWN
    return UNKNOWN


def dotted(node: ast.AST) -> str:
    """`self.args.lr` of a chain of names, or nothing."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


def last_name(node: ast.AST) -> str:
    """`lr` of `self.args.lr` and of `lr`; nothing of anything else."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def defaults_of(arguments: ast.arguments) -> list[tuple[str, ast.expr]]:
    """The arguments of a function that have a default, with it."""
    positional = [*arguments.posonlyargs, *arguments.args]
    found = list(zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True))
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    found += [(argument, default) for argument, default in named if default is not None]
    return [(argument.arg, default) for argument, default in found]


def _unary(node: ast.UnaryOp, known: Mapping[str, Any] | None) -> Any:
    value = evaluate(node.operand, known)
    if isinstance(node.op, ast.Not) and isinstance(value, bool):
        return not value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return UNKNOWN
    return -value if isinstance(node.op, ast.USub) else value if isinstance(node.op, ast.UAdd) else UNKNOWN


def _binary(node: ast.BinOp, known: Mapping[str, Any] | None) -> Any:
    """The value of an operation between two known numbers or texts; unknown if it is none, or too large."""
    left, right = evaluate(node.left, known), evaluate(node.right, known)
    if isinstance(left, str) and isinstance(right, str) and isinstance(node.op, ast.Add):
        return left + right
    for value in (left, right):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > _LARGEST:
            return UNKNOWN
    try:
        if isinstance(node.op, ast.Pow):
            return left**right if abs(right) <= 64 and abs(left) <= 1e6 else UNKNOWN
        operation = _OPERATIONS.get(type(node.op))
        return UNKNOWN if operation is None else operation(left, right)
    except (ArithmeticError, ValueError):
        return UNKNOWN


def _attribute(node: ast.Attribute, known: Mapping[str, Any] | None) -> Any:
    """The value of a known attribute: infinity, a dtype, or what the caller knows."""
    name = dotted(node)
    if name in (known or {}):
        return (known or {})[name]
    if node.attr in ("inf", "Inf", "infty", "infinity") and name.split(".")[0] in ("math", "np", "numpy", "torch"):
        return math.inf
    if node.attr in _DTYPES and name.split(".")[0] in ("torch", "th"):
        return {"half": "float16", "float": "float32"}.get(node.attr, node.attr)
    return UNKNOWN


def _call(node: ast.Call, known: Mapping[str, Any] | None) -> Any:
    """The value of a call that only converts or gives a default: `float("1e-4")`, `field(default=...)`."""
    name = dotted(node.func)
    if name in ("float", "int", "str", "bool", "tuple", "list") and len(node.args) == 1 and not node.keywords:
        value = evaluate(node.args[0], known)
        try:
            if name == "float" and isinstance(value, (int, float, str)):
                return float(value)
            if name == "int" and isinstance(value, (int, float, str)):
                return int(float(value))
        except (ValueError, OverflowError):
            return UNKNOWN
        return value if name in ("tuple", "list", "str", "bool") else UNKNOWN
    if name == "field" or name.endswith(".field") or name in ("Field", "pydantic.Field"):
        for keyword in node.keywords:
            if keyword.arg == "default":
                return evaluate(keyword.value, known)
        if name.endswith("Field") and node.args:
            return evaluate(node.args[0], known)
    return UNKNOWN
