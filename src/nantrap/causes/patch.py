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
_MASKED = {"softmax": "masked_softmax", "log_softmax": "masked_log_softmax"}


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
    """The stable form of one expression, or `None` where it cannot be written without changing what it means."""
    try:
        node = ast.parse(segment.strip(), mode="eval").body
    except SyntaxError:
        return None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return f"nantrap.ops.safe_divide({ast.unparse(node.left)}, {ast.unparse(node.right)})"
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    if node.func.attr in _MASKED:
        return _masked(node, node.func)
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


def _masked(call: ast.Call, function: ast.Attribute) -> str | None:
    """A softmax over scores that are masked with -inf: without a mask, the safe form reads it off the scores."""
    arguments = [ast.unparse(argument) for argument in call.args]
    if ast.unparse(function.value) not in ("torch", "F", "torch.nn.functional", "nn.functional"):
        if _is_module(function.value):
            return None
        arguments.insert(0, ast.unparse(function.value))
    keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    if len(arguments) == 2:
        keywords["dim"] = arguments[1]
    if len(arguments) + len(call.keywords) != 2 or keywords.keys() != {"dim"}:
        return None
    return f"nantrap.ops.{_MASKED[function.attr]}({arguments[0]}, dim={keywords['dim']})"


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
