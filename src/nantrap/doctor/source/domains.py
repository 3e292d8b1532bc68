"""Whether a condition really keeps the argument of a logarithm, root or division inside its domain.

`where(x > 0, log(x), 0)` hides log(0); `where(x < -0.69, log1p(-exp(x)), log(-expm1(x)))` hides nothing. The condition
and the argument are computed for numbers on both sides of every limit, as far as they depend on one name.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any, Final

from nantrap.doctor.source.expressions import dotted, operation
from nantrap.doctor.source.module import Function

_SAMPLES: Final = tuple(
    sign * size for size in (0.0, 1e-9, 1e-3, 0.1, 0.5, 0.9, 1.0, 2.0, 10.0, 80.0, 1e3) for sign in (1, -1)
)
_CLOSE: Final = 1e-2
"""A limit this close to where the domain ends is a floor with a margin: `x > 1e-3`."""
_COMPARISONS: Final[dict[type, Callable[[Any, Any], bool]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_BINARY: Final[dict[str, Callable[[float, float], float]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "pow": operator.pow,
}
_FUNCTIONS: Final[dict[str, Callable[[float], float]]] = {
    "exp": math.exp,
    "expm1": math.expm1,
    "log": math.log,
    "log1p": math.log1p,
    "sqrt": math.sqrt,
    "abs": abs,
    "square": lambda x: x * x,
    "tanh": math.tanh,
    "sin": math.sin,
    "cos": math.cos,
    "relu": lambda x: max(x, 0.0),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "float": float,
}


class _UnknownError(Exception):
    """The expression depends on more than one name, or on an operation that is not in the table."""


def leaves_domain(
    function: Function, name: str, argument: ast.expr, condition: ast.expr, *, chosen: bool
) -> bool | None:
    """Whether an argument leaves its domain where its branch is not chosen; None if that cannot be computed.

    Args:
        function: where the expression is.
        name: the operation: `log`, `sqrt`, `div`, ...
        argument: what the operation is applied to, or divides by.
        condition: of the `where`.
        chosen: the value of the condition for which the branch is chosen.
    """
    if not isinstance(condition, ast.Compare) or len(condition.ops) != 1:
        return None
    compare = _COMPARISONS.get(type(condition.ops[0]))
    if compare is None:
        return None
    limit = function.value(condition.comparators[0])
    around = (limit, limit + 1e-3, limit - 1e-3) if isinstance(limit, (int, float)) else ()
    tried = False
    for x in (*_SAMPLES, *around):
        try:
            left = _computed(function, condition.left, x)
            right = _computed(function, condition.comparators[0], x)
            if _free_names(function, condition, argument) != 1:
                return None
            if compare(left, right) == chosen:
                continue
            tried = True
            if _outside(name, _computed(function, argument, x)):
                return True
        except (ArithmeticError, ValueError):
            continue  # another operation of the expression has no value there
        except _UnknownError:
            return None
    return False if tried else None


def keeps_from_elsewhere(function: Function, name: str, argument: ast.expr, condition: ast.expr) -> bool:
    """Whether a condition that tests a limit is about something else than the domain of an argument.

    `where(norm > 0.999, x / norm, x)` rescales large values; that the norm may be 0 is not what it expects. The limit
    is that of the domain if the argument leaves it there, or close by.
    """
    if not isinstance(condition, ast.Compare) or len(condition.ops) != 1:
        return False
    limit = function.value(condition.comparators[0])
    if not isinstance(limit, (int, float)) or isinstance(limit, bool) or not dotted(condition.left):
        return False
    if _free_names(function, condition, argument) != 1:
        return False
    for x in (limit, limit - _CLOSE, limit + _CLOSE, *(x for x in _SAMPLES if abs(x - limit) <= _CLOSE)):
        try:
            if _outside(name, _computed(function, argument, x)):
                return False
        except (ArithmeticError, ValueError):
            return False
        except _UnknownError:
            return False
    return True


def _outside(name: str, value: float) -> bool:
    if name in ("acos", "asin"):
        return abs(value) >= 1
    return value == 0 if name in ("div", "reciprocal") else value <= 0


def _free_names(function: Function, *nodes: ast.AST) -> int:
    """How many names of some expressions have no constant value."""
    found: set[str] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        name = dotted(node)
        if name and not isinstance(function.value(node), (int, float)):
            found.add(name)
        elif not name and isinstance(node, ast.Call):
            applied = operation(function, node)
            stack += [applied.operand, *applied.arguments] if applied is not None else node.args
        elif not name:
            stack.extend(ast.iter_child_nodes(node))
    return len(found)


def _computed(function: Function, node: ast.AST, x: float) -> float:
    """The value of an expression where its only free name is x."""
    value = function.value(node)
    if isinstance(value, (int, float)):
        return float(value)
    if dotted(node):
        return x
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_computed(function, node.operand, x)
    if isinstance(node, ast.Call) and dotted(node.func) == "abs" and len(node.args) == 1:
        return abs(_computed(function, node.args[0], x))
    applied = operation(function, node)
    if applied is not None and applied.name in _BINARY and len(applied.arguments) == 1:
        both = _computed(function, applied.operand, x), _computed(function, applied.arguments[0], x)
        result = _BINARY[applied.name](*both)
        if isinstance(result, complex):
            raise ValueError("a root of a negative number")
        return result
    if applied is not None and not applied.arguments and applied.name in _FUNCTIONS:
        return float(_FUNCTIONS[applied.name](_computed(function, applied.operand, x)))
    raise _UnknownError
