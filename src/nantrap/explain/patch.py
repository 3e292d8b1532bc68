"""A unified diff of the user's own line, where the line is simple enough to be sure."""

from __future__ import annotations

import ast
import difflib

from nantrap.incident import Source

_SAFE = {
    "sqrt": "safe_sqrt",
    "log": "safe_log",
    "acos": "safe_acos",
    "arccos": "safe_acos",
    "asin": "safe_asin",
    "arcsin": "safe_asin",
    "std": "safe_std",
    "var": "safe_var",
    "pow": "safe_pow",
}


def diff_for(source: Source | None, op: str) -> str:
    """The line with the guilty expression replaced by its safe form, as a diff; empty if it cannot be told exactly."""
    if source is None or source.column is None or source.end_column is None or not source.text.isascii():
        return ""
    segment = source.text[source.column : source.end_column]
    replacement = _replaced(segment)
    if replacement is None:
        return ""
    line = source.text[: source.column] + replacement + source.text[source.end_column :]
    diff = difflib.unified_diff([source.text], [line], "before", "after", lineterm="", n=0)
    return "\n".join(list(diff)[3:])


def _replaced(segment: str) -> str | None:
    try:
        node = ast.parse(segment.strip(), mode="eval").body
    except SyntaxError:
        return None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return f"nantrap.ops.safe_divide({ast.unparse(node.left)}, {ast.unparse(node.right)})"
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    safe = _SAFE.get(node.func.attr)
    if safe is None:
        return None
    owner = node.func.value
    arguments = [ast.unparse(argument) for argument in node.args]
    arguments += [f"{keyword.arg}={ast.unparse(keyword.value)}" for keyword in node.keywords]
    if not (isinstance(owner, ast.Name) and owner.id in ("torch", "F")):
        arguments.insert(0, ast.unparse(owner))
    return f"nantrap.ops.{safe}({', '.join(arguments)})"
