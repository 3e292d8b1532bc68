"""Checks of source code: masks that may cover a whole row of a softmax (NT864, NT865)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from nantrap.doctor.checks.registry import Sighting, source_check
from nantrap.doctor.repository import Repository
from nantrap.doctor.source.expressions import dotted, is_negative_infinity, is_operation, name_of, names_in, operation
from nantrap.doctor.source.module import Function, Module, Site

_CAUSAL: Final = re.compile(r"causal|tril|triu|future|subsequent|look_?ahead|autoregressive|window|^bias$")
_PADDING: Final = re.compile(
    r"pad|attention_mask|valid|length|lens|invalid|ignore|key_mask|src_mask|empty|missing|absent"
)


@source_check("softmax_over_masked_row")
def softmax_over_masked_row(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Softmax over scores whose masked positions are -Inf: a row with nothing left is NaN."""
    seen: set[int] = set()
    for call, place in module.sites("softmax", "log_softmax"):
        found = operation(module, call)
        if found is None or found.operand is None or call.lineno in seen:
            continue
        mask = _masked_by(module, found.operand, place.function, call.lineno, 0)
        if mask is None or _handles_empty_rows(module, place, call):
            continue
        risk = _mask_risk(module, mask, place.function, call.lineno, found.operand)
        if risk is None:
            continue
        seen.add(call.lineno)
        yield Sighting(
            "medium" if risk == "medium" else "low",
            call.lineno,
            ast.unparse(mask)[:80],
            f"softmax over scores masked with -inf ({ast.unparse(mask)[:50]}): a row with every position masked is NaN",
            "fill with a finite number, or use nantrap.ops.masked_softmax",
        )


@source_check("whole_batch_mask_check")
def whole_batch_mask_check(module: Module, repository: Repository) -> Iterator[Sighting]:
    """A test for masked rows that tests the whole batch together."""
    for condition, place in module.conditions:
        if place.silent:
            continue
        tests: list[ast.expr] = [condition.test]
        for name in {dotted(each) for each in ast.walk(condition.test) if isinstance(each, ast.Name)}:
            value = place.function.latest(name, condition.lineno)
            if value is not None:
                tests.append(value)
        for test in tests:
            asked = next((each for each in ast.walk(test) if _whole_and_infinite(module, each)), None)
            if asked is not None:
                yield Sighting(
                    "medium",
                    condition.lineno,
                    ast.unparse(asked)[:80],
                    f"{ast.unparse(asked)[:60]} is true only if the whole batch is masked; one masked row is still NaN",
                    "ask per row: .all(dim=-1)",
                )
                break


def _masked_by(module: Module, node: ast.expr, function: Function, line: int, depth: int) -> ast.expr | None:
    """The mask with which scores were filled with -inf, if they were."""
    if depth > 6:
        return None
    found = operation(module, node)
    if found is not None:
        if found.name in ("masked_fill", "masked_fill_"):
            fill = found.arguments[1] if len(found.arguments) > 1 else found.keywords.get("value")
            mask = found.arguments[0] if found.arguments else found.keywords.get("mask")
            if fill is not None and mask is not None and _is_minus_inf(module, fill, function, line):
                return mask
        elif found.name == "where" and isinstance(node, ast.Call) and len(node.args) >= 3:
            if any(is_negative_infinity(module, side) for side in node.args[1:3]):
                return node.args[0]
            return None
        elif found.name in ("softmax", "log_softmax", "nan_to_num", "clamp"):
            return None
        return _masked_by(module, found.operand, function, line, depth + 1) if found.operand is not None else None
    if isinstance(node, ast.BinOp):
        for side in (node.left, node.right):
            mask = _masked_by(module, side, function, line, depth + 1)
            if mask is not None:
                return mask
        return None
    name = dotted(node)
    if not name:
        return None
    written = _written_in_place(module, function, name, line)
    if written is not None:
        return written
    # a `masked_fill` under an if is not the last assignment of every path; any of the last few counts
    for at, value in reversed([each for each in function.assigned.get(name, ()) if each[0] < line][-3:]):
        mask = _masked_by(module, value, function, at, depth + 1)
        if mask is not None:
            return mask
        if name not in _names_in_order(value):
            return None
    return None


def _is_minus_inf(module: Module, node: ast.expr, function: Function, line: int) -> bool:
    if is_negative_infinity(module, node):
        return True
    name = dotted(node)
    value = function.latest(name, line) if name else None
    return value is not None and is_negative_infinity(module, value)


def _written_in_place(module: Module, function: Function, name: str, line: int) -> ast.expr | None:
    """The mask of `scores.masked_fill_(mask, -inf)` or `scores[mask] = -inf` above a line."""
    for each in ast.walk(function.node):
        if getattr(each, "lineno", line) >= line:
            continue
        if (
            isinstance(each, ast.Call)
            and isinstance(each.func, ast.Attribute)
            and each.func.attr == "masked_fill_"
            and dotted(each.func.value) == name
            and len(each.args) > 1
            and _is_minus_inf(module, each.args[1], function, line)
        ):
            return each.args[0]
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Subscript):
            target = each.targets[0]
            if dotted(target.value) == name and is_negative_infinity(module, each.value):
                return target.slice
    return None


def _mask_risk(module: Module, mask: ast.expr, function: Function, line: int, scores: ast.expr) -> str | None:
    """How likely a mask covers a whole row, by the names it was made of; `None` for causal masks and generation."""
    names = _traced_names(mask, function, line, 0)
    if any("token" in name or name.endswith("_id") for name in names) or re.search(r"generat|sampl", function.name):
        return None
    joined = names | {function.name.lower()} if "causal" in function.name.lower() else names
    if any(_CAUSAL.search(name) for name in joined):
        return None
    if any(_PADDING.search(name) for name in names):
        return "medium"
    if any("mask" in name for name in names):
        return "low"
    return None


def _traced_names(node: ast.expr, function: Function, line: int, depth: int) -> set[str]:
    """The names in an expression and in what these names were assigned before the line."""
    names = names_in(node)
    for each in ast.walk(node):
        if isinstance(each, (ast.Name, ast.Attribute)) and depth < 3:
            name = dotted(each)
            for at, value in function.assigned.get(name, ()) if name else ():
                if at < line:
                    names |= _traced_names(value, function, at, depth + 1)
    return names


def _handles_empty_rows(module: Module, place: Site, call: ast.Call) -> bool:
    """Whether rows without a valid position are looked after in the same function."""
    function = place.function
    for each in ast.walk(function.node):
        if not isinstance(each, ast.Call):
            continue
        name = name_of(each.func)
        if name in ("nan_to_num", "nan_to_num_"):
            return True
        if name in ("all", "any", "amax", "logical_not") and isinstance(each.func, ast.Attribute):
            found = operation(module, each)
            if (
                found is not None
                and name in ("all", "any")
                and (found.arguments or "dim" in found.keywords or "axis" in found.keywords)
            ):
                return True
        if (
            (
                name in ("masked_fill", "masked_fill_")
                and each.lineno >= call.lineno
                and each is not call
                and len(each.args) > 1
            )
            and module.value(each.args[1]) in (0, 0.0)
            and not any(inner is each for inner in ast.walk(call))
        ):
            return True
        if name == "isnan" and each.lineno >= call.lineno:
            return True
    return False


def _whole_and_infinite(module: Module, node: ast.AST) -> bool:
    """`(x == -inf).all()`, `torch.all(x == -inf)`, `torch.isneginf(x).all()`, without a dim."""
    found = is_operation(module, node, "all")
    if found is None or found.operand is None or found.arguments or found.keywords:
        return False
    inner = found.operand
    if isinstance(inner, ast.Compare) and len(inner.ops) == 1 and isinstance(inner.ops[0], ast.Eq):
        return is_negative_infinity(module, inner.comparators[0]) or is_negative_infinity(module, inner.left)
    return is_operation(module, inner, "isneginf", "isinf") is not None


def _names_in_order(node: ast.AST) -> list[str]:
    """The names inside an expression, as written."""
    return [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]
