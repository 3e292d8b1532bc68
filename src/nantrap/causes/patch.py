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
    """The line with the guilty expression replaced by its safe form, as a diff; empty if it is not certain."""
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
    if not (isinstance(owner, ast.Name) and owner.id == "torch"):
        if _is_module(owner):
            return None  # numpy's or math's function of that name takes no tensor
        arguments.insert(0, ast.unparse(owner))
    if not _same_signature(node, safe, len(arguments)):
        return None
    arguments += [f"{keyword.arg}={ast.unparse(keyword.value)}" for keyword in node.keywords]
    return f"nantrap.ops.{safe}({', '.join(arguments)})"


def _is_module(owner: ast.expr) -> bool:
    """Whether the call is `np.sqrt`, `math.log` or `torch.linalg.norm` rather than a method of a tensor."""
    root = owner
    while isinstance(root, ast.Attribute):
        root = root.value
    return isinstance(root, ast.Name) and root.id in ("np", "numpy", "math", "cmath", "jnp", "torch", "F", "scipy")


def _same_signature(call: ast.Call, safe: str, positional: int) -> bool:
    """Whether the safe form takes exactly the arguments of the call."""
    keywords = {keyword.arg for keyword in call.keywords}
    if safe == "safe_pow":
        return positional == 2 and not keywords
    if safe in ("safe_std", "safe_var"):
        flag = any(isinstance(a, ast.Constant) and isinstance(a.value, bool) for a in call.args)
        return positional <= 2 and not flag and keywords <= {"dim", "keepdim", "correction"}
    return positional == 1 and not keywords
