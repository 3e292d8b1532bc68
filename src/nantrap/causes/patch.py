"""A unified diff of the user's own lines, where they are simple enough to be sure.

A change is written as code with `x` for the first operand of a call, or `a` and `b` for two: `torch.sqrt(x + 1e-12)`.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable

from nantrap.incident import Source

_OWN_ARGUMENTS = {"dim", "keepdim", "correction"}
"""What a deviation takes as the safe one does."""
_MODULES = ("np", "numpy", "math", "cmath", "jnp", "torch", "F", "nn", "scipy")
_OPERATORS: dict[type[ast.operator], tuple[str, ...]] = {
    ast.Div: ("div", "true_divide", "__truediv__", "__rtruediv__", "__rdiv__"),
    ast.Pow: ("pow", "__pow__", "__rpow__"),
}
_TORCH = ("torch", "F", "torch.nn.functional", "nn.functional")


def diff_for(changes: Iterable[tuple[Source, str, str]]) -> str:
    """The lines with each call replaced by a form, as a diff; empty unless all of them are certain.

    Args:
        changes: the expression by its place, the function that it calls, and the form.
    """
    lines: dict[tuple[str, int], list[tuple[int, int, str]]] = {}
    texts: dict[tuple[str, int], str] = {}
    for source, function, form in changes:
        if source.column is None or source.end_column is None or not source.text.isascii():
            return ""
        written = _written(source.text[source.column : source.end_column], function, form)
        if written is None:
            return ""
        lines.setdefault((source.file, source.line), []).append((source.column, source.end_column, written))
        texts[source.file, source.line] = source.text
    parts = []
    for place, spans in sorted(lines.items()):
        text = end = texts[place]
        last = len(text)
        for start, stop, written in sorted(set(spans), reverse=True):
            if stop > last:
                return ""  # one inside the other
            end, last = end[:start] + written + end[stop:], start
        diff = difflib.unified_diff([text], [end], "before", "after", lineterm="", n=0)
        parts += list(diff)[3:]
    return "\n".join(parts)


def calls(source: Source, function: str) -> bool:
    """Whether the expression at a place is written as a call of this function, or as its operator; `True` where the
    expression is not known."""
    if source.column is None or source.end_column is None or not source.text.isascii():
        return True
    try:
        node = ast.parse(source.text[source.column : source.end_column].strip(), mode="eval").body
    except SyntaxError:
        return True
    if isinstance(node, ast.BinOp):
        return function in _OPERATORS.get(type(node.op), ())
    name = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
    return name.rstrip("_") == function.removeprefix("special_").removeprefix("linalg_")


def _written(segment: str, function: str, form: str) -> str | None:
    """One expression in another form, or `None` where it cannot be written without changing what it means."""
    try:
        node = ast.parse(segment.strip(), mode="eval").body
        template = ast.parse(form, mode="eval").body
    except SyntaxError:
        return None
    operands: list[ast.expr]
    keywords: list[ast.keyword] = []
    if isinstance(node, ast.BinOp):
        if function not in _OPERATORS.get(type(node.op), ()):
            return None
        operands = [node.left, node.right]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr != function.removeprefix("special_").removeprefix("linalg_"):
            return None  # a module, or a function of the user's, that calls it
        operands, keywords = list(node.args), list(node.keywords)
        if ast.unparse(node.func.value) not in _TORCH:
            if _is_module(node.func.value) or ast.unparse(node.func.value) == "self":
                return None  # numpy's or math's function of that name takes no tensor
            operands.insert(0, node.func.value)
    else:
        return None
    if any(isinstance(one, ast.Name) and one.id == "dim" for one in ast.walk(template)) and "masked_fill" in form:
        return None  # the dimension would be written twice
    names = {"a", "b"} & {name.id for name in ast.walk(template) if isinstance(name, ast.Name)} or {"x"}
    taken, rest = operands[: len(names)], operands[len(names) :]
    if len(taken) < len(names) or any(isinstance(one, ast.Starred) for one in operands):
        return None
    slot = _slot(template)
    filled = _Filled(dict(zip(sorted(names), taken, strict=True))).visit(template)
    if not _take(slot, rest, keywords):
        return None
    enclosed = isinstance(filled, (ast.BinOp, ast.UnaryOp)) and not isinstance(node, ast.BinOp)
    return f"({ast.unparse(filled)})" if enclosed else ast.unparse(filled)


class _Filled(ast.NodeTransformer):
    """The form with the operands in the places of their names."""

    def __init__(self, operands: dict[str, ast.expr]) -> None:
        self._operands = operands

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """The operand, where a name stands for one."""
        return self._operands.get(node.id, node)


def _slot(template: ast.expr) -> ast.Call | None:
    """The call of a form that takes the other arguments: `...`, or `dim=dim`."""
    calls = [node for node in ast.walk(template) if isinstance(node, ast.Call)]
    return next((call for call in calls if _takes_all(call) or [k.arg for k in call.keywords] == ["dim"]), None)


def _takes_all(call: ast.Call) -> bool:
    return any(isinstance(one, ast.Constant) and one.value is ... for one in call.args)


def _take(slot: ast.Call | None, rest: list[ast.expr], keywords: list[ast.keyword]) -> bool:
    """Give the other arguments of a call to the form, if it takes exactly them."""
    if slot is None:
        return not rest and not keywords
    if _takes_all(slot):
        flag = any(isinstance(one, ast.Constant) and isinstance(one.value, bool) for one in rest)
        slot.args[-1:], slot.keywords = rest, keywords
        return len(rest) <= 1 and not flag and {keyword.arg for keyword in keywords} <= _OWN_ARGUMENTS
    if len(rest) + len(keywords) != 1 or [keyword.arg for keyword in keywords] not in ([], ["dim"]):
        return False
    slot.keywords = keywords or [ast.keyword("dim", rest[0])]
    return True


def _is_module(owner: ast.expr) -> bool:
    """Whether the call is `np.sqrt`, `math.log` or `torch.linalg.norm` rather than a method of a tensor."""
    root = owner
    while isinstance(root, ast.Attribute):
        root = root.value
    return isinstance(root, ast.Name) and root.id in _MODULES
