"""Checks of source code: logarithms of probabilities that may be exactly zero (NT858-NT860)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from nantrap.doctor.checks.registry import Sighting, source_check
from nantrap.doctor.repository import Repository
from nantrap.doctor.source.expressions import dotted, has_epsilon, is_epsilon, is_operation, operation, peeled
from nantrap.doctor.source.module import Function, Module, Site

_LOGS: Final = ("log", "log2", "log10")


@source_check("log_of_softmax")
def log_of_softmax(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The logarithm of a softmax."""
    for call, place, operand in _logarithms(module):
        inner, eased = _without_floor(module, operand, place.function)
        if is_operation(module, peeled(module, inner), "softmax") is not None:
            yield _log_of(call, "softmax", "is -Inf where the softmax is 0", "use log_softmax", eased=eased)


@source_check("log_of_sigmoid")
def log_of_sigmoid(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The logarithm of a sigmoid."""
    for call, place, operand in _logarithms(module):
        inner, eased = _without_floor(module, operand, place.function)
        inner = _one_minus(module, inner, place.function)
        if is_operation(module, peeled(module, inner), "sigmoid") is not None:
            yield _log_of(call, "sigmoid", "is -Inf where the sigmoid is 0 or 1", "use F.logsigmoid", eased=eased)


@source_check("log_without_floor")
def log_without_floor(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The logarithm of a probability that can be exactly zero."""
    for call, place, operand in _logarithms(module):
        inner, eased = _without_floor(module, operand, place.function)
        if eased:
            continue
        inner = peeled(module, _one_minus(module, inner, place.function))
        name = dotted(inner)
        if not name:
            continue
        value = place.function.latest(name, call.lineno)
        found = is_operation(module, peeled(module, value), "softmax", "sigmoid") if value is not None else None
        if found is None or _changed_in_place(place.function, name, call.lineno):
            continue
        yield Sighting(
            "medium",
            call.lineno,
            ast.unparse(call)[:80],
            f"log({name}), and {name} comes from a {found.name}, which can be exactly 0",
            f"use log_{found.name}" if found.name == "softmax" else "use F.logsigmoid",
        )


def _log_of(call: ast.Call, name: str, without_floor: str, fix: str, *, eased: bool) -> Sighting:
    """The finding for the logarithm of a function that has a stable form.

    Args:
        call: the logarithm.
        name: of the function.
        without_floor: what happens if nothing keeps its value above zero.
        fix: the stable form.
        eased: an epsilon or a clamp does.
    """
    what = "with an epsilon: finite, but flat where it matters" if eased else without_floor
    return Sighting("low" if eased else "medium", call.lineno, ast.unparse(call)[:80], f"log of a {name} {what}", fix)


def _logarithms(module: Module) -> Iterator[tuple[ast.Call, Site, ast.expr]]:
    """Every logarithm with its place and its argument; for `log1p(-p)` the argument is p."""
    for call, place in module.sites(*_LOGS):
        found = operation(module, call)
        if found is not None and found.operand is not None:
            yield call, place, found.operand
    for call, place in module.sites("log1p"):  # log1p(-p) is log(1 - p)
        found = operation(module, call)
        if found is not None and isinstance(found.operand, ast.UnaryOp) and isinstance(found.operand.op, ast.USub):
            yield call, place, found.operand.operand


def _without_floor(module: Module, node: ast.expr, function: Function) -> tuple[ast.expr, bool]:
    """The argument of a logarithm without its floor, and whether it had one."""
    eased = False
    while True:
        clamped = is_operation(module, node, "clamp", "clip", "clamp_min", "maximum", "clamp_", "max")
        if clamped is not None and clamped.operand is not None and (clamped.arguments or clamped.keywords):
            node, eased = clamped.operand, True
            continue
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = is_epsilon(module, node.left, function), is_epsilon(module, node.right, function)
            if left != right:
                node, eased = (node.right if left else node.left), True
                continue
        difference = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and not eased
        if difference and has_epsilon(module, node, function):  # 1 + eps - p, 1 - p + eps
            return _one_minus(module, node, function), True
        return node, eased


def _one_minus(module: Module, node: ast.expr, function: Function) -> ast.expr:
    """p of `1 - p`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        left = node.left
        constant = module.value(left, function)
        if isinstance(constant, (int, float)) or has_epsilon(module, left, function):
            return node.right
    return node


def _changed_in_place(function: Function, name: str, line: int) -> bool:
    """Whether `p.clamp_(...)` or a similar call is above a line."""
    for each in ast.walk(function.node):
        if (
            isinstance(each, ast.Call)
            and isinstance(each.func, ast.Attribute)
            and each.lineno < line
            and (
                each.func.attr in ("clamp_", "clip_", "add_", "clamp_min_", "clamp_max_")
                and dotted(each.func.value) == name
            )
        ):
            return True
    return False
