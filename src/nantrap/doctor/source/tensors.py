"""Recognising tensor operations however they are written: `torch.log(x)`, `x.log()`, `self.softmax(x)`."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from nantrap.doctor.configuration.constants import dotted
from nantrap.doctor.source.module import Function, Module

_OTHER_LIBRARIES: Final = frozenset(
    {
        "numpy",
        "np",
        "math",
        "jax",
        "jnp",
        "tensorflow",
        "tf",
        "scipy",
        "cupy",
        "paddle",
        "mindspore",
        "keras",
        "sympy",
        "pd",
        "pandas",
    }
)
_TORCH: Final = ("torch", "th", "F", "functional")
_GUARDS: Final = frozenset(
    [
        "clamp",
        "clamp_",
        "clamp_min",
        "clip",
        "clip_",
        "maximum",
        "where",
        "softplus",
        "exp",
        "relu",
        "elu",
        "masked_fill",
        "nan_to_num",
        "max",
        "abs_",
        "threshold",
        "clamp_min_",
        "sigmoid",
        "softmax",
    ]
)


class Operation(NamedTuple):
    """`name` of the operation, the tensor it is applied to, and the other arguments."""

    name: str
    operand: ast.expr | None
    arguments: list[ast.expr]
    keywords: dict[str, ast.expr]


def operation(module: Module, node: ast.AST) -> Operation | None:
    """The tensor operation of a call, or None for calls of other libraries and of unknown functions."""
    if not isinstance(node, ast.Call):
        return None
    keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
    func = node.func
    name = module.resolve(func)
    if name:
        head = name.split(".")[0]
        leaf = name.rsplit(".", 1)[-1]
        if head in _OTHER_LIBRARIES:
            return None
        if head in _TORCH or name.startswith("nn.functional"):
            operand = node.args[0] if node.args else keywords.get("input", keywords.get("x"))
            return Operation(leaf, operand, list(node.args[1:]), keywords)
        layer = module.layers.get(dotted(func))
        if layer is not None:
            return Operation(layer, node.args[0] if node.args else None, list(node.args[1:]), keywords)
    if isinstance(func, ast.Attribute):
        return Operation(func.attr, func.value, list(node.args), keywords)
    if isinstance(func, ast.Call):  # nn.Softmax(dim=-1)(x)
        made = module.resolve(func.func).rsplit(".", 1)[-1]
        if made in ("Softmax", "Sigmoid"):
            return Operation(made.lower(), node.args[0] if node.args else None, [], keywords)
    return None


def is_operation(module: Module, node: ast.AST | None, *names: str) -> Operation | None:
    """The operation of a node if it is one of these."""
    found = operation(module, node) if node is not None else None
    return found if found is not None and found.name in names else None


def peeled(module: Module, node: ast.expr) -> ast.expr:
    """The tensor inside steps that change no value: indexing, view, squeeze, gather, float, detach is not one."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
            continue
        found = is_operation(
            module,
            node,
            "view",
            "reshape",
            "squeeze",
            "unsqueeze",
            "gather",
            "float",
            "double",
            "transpose",
            "permute",
            "contiguous",
            "flatten",
            "expand",
            "t",
            "index_select",
            "to",
            "clone",
            "type_as",
            "unbind",
            "select",
            "item",
        )
        if found is None or found.operand is None:
            return node
        node = found.operand


def is_negative_infinity(module: Module, node: ast.AST | None) -> bool:
    """Whether an expression is minus infinity."""
    if node is None:
        return False
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _is_infinity(module, node.operand)
    if isinstance(node, ast.Call) and dotted(node.func) == "float" and node.args:
        given = node.args[0]
        return isinstance(given, ast.Constant) and str(given.value).strip().lower() in ("-inf", "-infinity")
    return module.resolve(node) in ("numpy.NINF", "np.NINF") or module.value(node) == -math.inf


def _is_infinity(module: Module, node: ast.AST) -> bool:
    value = module.value(node)
    if isinstance(value, float) and value == math.inf:
        return True
    return module.resolve(node).rsplit(".", 1)[-1] in ("inf", "infty", "Inf")


def names_in(node: ast.AST) -> set[str]:
    """Every name and attribute inside an expression, in lower case."""
    found: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            found.add(each.id.lower())
        elif isinstance(each, ast.Attribute):
            found.add(each.attr.lower())
        elif (
            isinstance(each, ast.Constant)
            and isinstance(each.value, str)
            and isinstance(getattr(each, "ctx", None), type(None))
        ) and each.value.isidentifier():
            found.add(each.value.lower())
    return found


def has_epsilon(module: Module, node: ast.AST, function: Function) -> bool:
    """Whether something keeps an expression away from zero: a clamp, a where, or an epsilon that is added."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            leaf = dotted(each.func).rsplit(".", 1)[-1] or (
                each.func.attr if isinstance(each.func, ast.Attribute) else ""
            )
            if leaf in _GUARDS - {"sigmoid", "softmax", "exp", "relu", "elu", "max", "masked_fill"}:
                return True
        elif (
            isinstance(each, ast.BinOp)
            and isinstance(each.op, ast.Add)
            and any(is_epsilon(module, side, function) for side in (each.left, each.right))
        ):
            return True
    return False


def is_epsilon(module: Module, node: ast.AST, function: Function) -> bool:
    """Whether a summand is a positive constant, or is called one: `1e-8`, `self.eps`, `torch.finfo(...).eps`."""
    value = module.value(node, function)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value > 0
    name = dotted(node) or (node.attr if isinstance(node, ast.Attribute) else "")
    leaf = name.rsplit(".", 1)[-1].lower()
    return any(word in leaf for word in ("eps", "tiny", "delta", "small", "floor", "jitter"))


def additions(node: ast.AST) -> Iterator[ast.expr]:
    """The summands of a sum."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from additions(node.left)
        yield from additions(node.right)
    elif isinstance(node, ast.expr):
        yield node
