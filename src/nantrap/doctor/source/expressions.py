"""What an expression of Python says without being run.

Its name, its value if that is constant, whether it is called a loss or a norm, and the tensor operation that it is,
however it is written: `torch.log(x)`, `x.log()`, `self.softmax(x)`.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nantrap.doctor.configuration.setting import UNKNOWN

if TYPE_CHECKING:
    from nantrap.doctor.source.module import CodePlace, Function, Module

OPERATORS: Final[dict[type, str]] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
}
"""Operators by the name of the operation that they write."""

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
_NOT_A_LOSS: Final = re.compile(
    r"mask|weight|scale|meter|metric|history|^val_|^eval_|^test_|^best_|_best|log_var|coef|lambda|name|type|count|_fn$|_func$|"
    r"lossless|closs|glossary"
)
_CRITERION: Final = re.compile(r"loss|criterion|cross_entropy|nll|mse|kl_div|bce|objective", re.IGNORECASE)
_OTHER_LIBRARIES: Final = frozenset({
    "numpy", "np", "math", "jax", "jnp", "tensorflow", "tf", "scipy", "cupy", "paddle", "mindspore", "keras", "sympy",
    "pd", "pandas",
})  # fmt: skip
_TORCH: Final = ("torch", "th", "F", "functional")
_FLOORS: Final = frozenset([
    "clamp", "clamp_", "clamp_min", "clamp_min_", "clip", "clip_", "maximum", "where", "softplus", "nan_to_num",
    "abs_", "threshold",
])  # fmt: skip
"""Operations that keep a value away from zero."""
_READ: Final = (
    "item", "detach", "cpu", "float", "mean", "sum", "any", "all", "data", "double", "numpy", "abs", "cuda",
    "norm", "max",
)  # fmt: skip
"""Methods that read or sum up a loss or a norm."""
_SAME_VALUES: Final = (
    "view", "reshape", "squeeze", "unsqueeze", "gather", "float", "double", "transpose", "permute", "contiguous",
    "flatten", "expand", "t", "index_select", "to", "clone", "type_as", "unbind", "select", "item", "diagonal", "diag",
)  # fmt: skip
"""Operations whose values are those of their operand."""


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
        value = evaluate(node.operand, known)
        if isinstance(value, bool):
            return not value if isinstance(node.op, ast.Not) else UNKNOWN
        signs = {ast.USub: -1, ast.UAdd: 1}
        return signs[type(node.op)] * value if type(node.op) in signs and isinstance(value, (int, float)) else UNKNOWN
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


def shown(node: ast.AST, most: int = 60) -> str:
    """The text of an expression; of a long one the beginning, with an ellipsis where it is cut."""
    text = ast.unparse(node)
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def keyword_of(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword of a call, or None."""
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def defaults_of(arguments: ast.arguments) -> list[tuple[str, ast.expr]]:
    """The arguments of a function that have a default, with it."""
    positional = [*arguments.posonlyargs, *arguments.args]
    found = list(zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True))
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    found += [(argument, default) for argument, default in named if default is not None]
    return [(argument.arg, default) for argument, default in found]


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
        if name not in ("float", "int"):
            return value
        if not isinstance(value, (int, float, str)):
            return UNKNOWN
        try:
            return int(float(value)) if name == "int" else float(value)
        except (ValueError, OverflowError):
            return UNKNOWN
    if name.rpartition(".")[2] == "field" or name in ("Field", "pydantic.Field"):
        default = keyword_of(node, "default") or (node.args[0] if name.endswith("Field") and node.args else None)
        return evaluate(default, known)
    return UNKNOWN


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


def calls_in(node: ast.AST, *names: str) -> Iterator[ast.Call]:
    """Every call inside an expression or statement whose last name is one of these."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and name_of(each.func) in names:
            yield each


def receiver_of(node: ast.AST | None, *names: str) -> ast.expr | None:
    """`x` of a call `x.name(...)` with one of these names, or None."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names:
        return node.func.value
    return None


def used_in(node: ast.AST) -> set[str]:
    """The names and chains of names inside an expression: `self.args.lr` is also `self.args` and `self`."""
    return {dotted(each) for each in ast.walk(node)} - {""}


def core(node: ast.AST | None) -> ast.AST | None:
    """The tensor of `loss.item()`, `loss.detach().cpu()`, `loss.data`, `float(loss)`, `loss.mean()`."""
    while True:
        if (inner := receiver_of(node, *_READ)) is not None:
            node = inner
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


def is_norm(node: ast.AST | None, function: Function) -> bool:
    """Whether an expression is called a gradient norm, or is what clipping returned."""
    inner = core(node)
    name = name_of(inner).lower()
    if name in ("norm", "gnorm") or (
        "norm" in name and any(word in name for word in ("grad", "total", "clip", "gnorm"))
    ):
        return True
    value = function.given(inner)
    return isinstance(value, ast.Call) and "clip_grad" in (dotted(value.func) or name_of(value.func))


def is_gradient(node: ast.AST | None) -> bool:
    """`p.grad`, `p.grad.data`."""
    while isinstance(node, (ast.Subscript,)) or (isinstance(node, ast.Attribute) and node.attr == "data"):
        node = node.value
    return isinstance(node, ast.Attribute) and node.attr == "grad"


def computes_loss(node: ast.AST | None) -> bool:
    """Whether a call computes a loss: `F.cross_entropy(...)`, `self.criterion(...)`."""
    return isinstance(node, ast.Call) and bool(_CRITERION.search(dotted(node.func) or name_of(node.func)))


class Operation(NamedTuple):
    """A tensor operation: the tensor it is applied to, and the other arguments. `a / b` is a `div` of a, with b."""

    name: str
    node: ast.expr
    operand: ast.expr
    arguments: list[ast.expr]
    keywords: dict[str, ast.expr]

    def argument(self, position: int, *names: str) -> ast.expr | None:
        """One of the other arguments, by its position or by one of its names; None if it is not given."""
        given = next((self.keywords[name] for name in names if name in self.keywords), None)
        return given or (self.arguments[position] if len(self.arguments) > position else None)


def operation(function: Function, node: ast.AST | None) -> Operation | None:
    """The tensor operation that an expression is, or None for other libraries and for unknown functions."""
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return Operation(OPERATORS[type(node.op)], node, node.left, [node.right], {})
    if not isinstance(node, ast.Call):
        return None
    keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
    func = node.func
    module = function.module
    name = module.resolve(func)
    head = name.split(".")[0]
    if head in _OTHER_LIBRARIES:
        return None
    applied = ""
    if head in _TORCH or name.startswith("nn.functional"):
        applied = name.rsplit(".", 1)[-1]
    elif name in module.layers or dotted(func) in module.layers:
        applied = module.layers[dotted(func)]
    elif isinstance(func, ast.Call):  # nn.Softmax(dim=-1)(x)
        made = module.resolve(func.func).rsplit(".", 1)[-1]
        applied = made.lower() if made in ("Softmax", "Sigmoid") else ""
    if applied:
        operand = node.args[0] if node.args else keywords.get("input", keywords.get("x"))
        return None if operand is None else Operation(applied, node, operand, node.args[1:], keywords)
    return Operation(func.attr, node, func.value, node.args, keywords) if isinstance(func, ast.Attribute) else None


def operations(module: Module, *names: str) -> Iterator[tuple[Operation, CodePlace]]:
    """Every operation with one of these names in code that is trained, with its place."""
    for name in names:
        for node, place in (*module.sites(name), *module.operators.get(name, ())):
            found = None if place.silent else operation(place.function, node)
            if found is not None and found.name == name:
                yield found, place


def is_operation(function: Function, node: ast.AST | None, *names: str) -> Operation | None:
    """The operation of a node if it is one of these."""
    found = operation(function, node)
    return found if found is not None and found.name in names else None


def peeled(function: Function, node: ast.expr) -> ast.expr:
    """The tensor inside steps that change no value: indexing, view, squeeze, gather, float, detach is not one."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif (found := is_operation(function, node, *_SAME_VALUES)) is not None:
            node = found.operand
        else:
            return node


def is_negative_infinity(function: Function, node: ast.AST | None) -> bool:
    """Whether an expression is minus infinity."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        leaf = function.module.resolve(node.operand).rsplit(".", 1)[-1]
        return function.module.value(node.operand) == math.inf or leaf in ("inf", "infty", "Inf")
    if node is None:
        return False
    return function.module.resolve(node) in ("numpy.NINF", "np.NINF") or function.module.value(node) == -math.inf


def names_in(node: ast.AST) -> set[str]:
    """Every name and attribute inside an expression, in lower case."""
    found: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, (ast.Name, ast.Attribute)):
            found.add(name_of(each).lower())
        elif isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value.isidentifier():
            found.add(each.value.lower())
    return found


def has_epsilon(function: Function, node: ast.AST) -> bool:
    """Whether something keeps an expression away from zero: a clamp, a where, or an epsilon that is added."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and name_of(each.func) in _FLOORS:
            return True
        added = (each.left, each.right) if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Add) else ()
        if any(is_epsilon(function, side) for side in added):
            return True
    return False


def is_epsilon(function: Function, node: ast.AST) -> bool:
    """Whether a summand is a positive constant, or is called one: `1e-8`, `n * self.eps`, `torch.finfo(...).eps`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return any(is_epsilon(function, side) for side in (node.left, node.right) if dotted(side))
    value = function.value(node)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value > 0
    leaf = name_of(node).lower() if isinstance(node, (ast.Name, ast.Attribute)) else ""
    return any(word in leaf for word in ("eps", "tiny", "delta", "small", "floor", "jitter"))


def additions(node: ast.AST) -> Iterator[ast.expr]:
    """The summands of a sum."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from additions(node.left)
        yield from additions(node.right)
    elif isinstance(node, ast.expr):
        yield node
