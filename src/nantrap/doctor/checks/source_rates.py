"""Checks of source code: learning rates that are not the configured ones (NT808, NT824)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from nantrap.doctor.checks.registry import Sighting, source_check
from nantrap.doctor.configuration.names import plain
from nantrap.doctor.configuration.setting import number
from nantrap.doctor.repository import Repository, configured_value, resolved_value
from nantrap.doctor.source.expressions import dotted, name_of
from nantrap.doctor.source.flow import flow_of, follows, is_optimizer
from nantrap.doctor.source.module import Function, Module

_MIN_LR: Final = re.compile(r"^_?(min_lr|lr_min|eta_min|min_learning_rate|minimum_lr|end_lr|final_lr)$")
_BASE_LR: Final = re.compile(r"(^|_)(lr|learning_rate|base_lr|max_lr|peak_lr|init_lr|initial_lr)$")
_A_RATIO: Final = 1e-2
"""A smallest learning rate of this size is a share of the peak already."""


@source_check("min_lr_as_factor")
def min_lr_as_factor(module: Module, repository: Repository) -> Iterator[Sighting]:
    """A LambdaLR function returns a smallest learning rate where a factor is expected."""
    for call, place in module.sites("LambdaLR"):
        given = [keyword.value for keyword in call.keywords if keyword.arg == "lr_lambda"] or list(call.args[1:2])
        for node in given:
            for function, body in _functions(module, node, place.function, call.lineno):
                floor = _absolute_floor(module, body, function, repository)
                if floor is not None:
                    yield Sighting(
                        "medium",
                        floor.lineno,
                        ast.unparse(floor)[:80],
                        f"LambdaLR multiplies by what the function returns, and {ast.unparse(floor)[:60]} is a "
                        "learning rate: the smallest one is the product of both",
                        "divide by the initial learning rate: min_lr / lr",
                    )
                    break


@source_check("resume_overrides_lr")
def resume_overrides_lr(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Resuming restores the old learning rate, whatever the configuration says now."""
    if "load_state_dict" not in module.calls:
        return
    loads = [(call, place) for call, place in module.sites("load_state_dict") if isinstance(call.func, ast.Attribute)]
    optimizers = [each for each in loads if is_optimizer(module, dotted(each[0].func.value))]  # type: ignore[attr-defined]
    schedulers = [each for each in loads if "sched" in ast.unparse(each[0].func.value).lower()]  # type: ignore[attr-defined]
    if not optimizers or not schedulers:
        return
    resume, rate = configured_value(module, repository, "resume"), configured_value(module, repository, "lr")
    if not _is_path(resume) or number(rate) is None:
        return
    call, place = schedulers[-1]
    for function in {id(p.function): p.function for _, p in (*optimizers, *schedulers)}.values():
        flow = flow_of(module, function)
        for load in flow.of("load"):
            if any(follows(load, other) for other in flow.of("set_lr")):
                return
    last = max(c.lineno for c, _ in (*optimizers, *schedulers))
    if any(
        event.line > last
        for function in module.functions
        for event in flow_of(module, function).of("set_lr")
        if function is place.function
    ):
        return
    yield Sighting(
        "medium",
        call.lineno,
        resume,
        f"resuming from {resume} loads the optimizer's and the scheduler's state, which brings the old learning rate "
        f"back; the configured {rate} has no effect",
        'set group["lr"] after loading',
    )


def _is_path(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value) and value.lower() not in ("none", "null", "false", "no")
    return (isinstance(value, int) and not isinstance(value, bool) and value > 0) or value is True


def _functions(
    module: Module, node: ast.expr, function: Function, line: int
) -> Iterator[tuple[Function, list[ast.expr]]]:
    """The function that a schedule is made of, and the expressions it returns."""
    if isinstance(node, (ast.List, ast.Tuple)):
        for item in node.elts:
            yield from _functions(module, item, function, line)
        return
    if isinstance(node, ast.Call):  # a factory, or functools.partial
        inner = node.args[0] if name_of(node.func) == "partial" and node.args else node.func
        yield from _functions(module, inner, function, line)
        return
    if isinstance(node, ast.Lambda):
        yield function, [node.body]
        return
    name = name_of(node)
    given = function.latest(dotted(node), line) if dotted(node) else None
    if isinstance(given, ast.Lambda):
        yield function, [given.body]
        return
    for found in module.by_name.get(name, ()):
        yield found, [each for each in ast.walk(found.node) if isinstance(each, (ast.Call, ast.BinOp))]


def _absolute_floor(
    module: Module, returned: list[ast.expr], function: Function, repository: Repository
) -> ast.Call | None:
    """The `max(..., min_lr)` of a factor that a scheduler multiplies by, where that is a learning rate."""
    for value in returned:
        for each in ast.walk(value):
            if (
                isinstance(each, ast.BinOp)
                and isinstance(each.op, ast.Div)
                and _BASE_LR.search(plain(name_of(each.right)))
            ):
                return None
    for value in returned:
        for each in ast.walk(value):
            if isinstance(each, ast.Call) and name_of(each.func) in ("max", "maximum"):
                for argument in each.args:
                    if _MIN_LR.match(plain(name_of(argument))) and _is_rate(module, argument, function, repository):
                        return each
    return None


def _is_rate(module: Module, node: ast.expr, function: Function, repository: Repository) -> bool:
    """Whether a smallest learning rate is absolute: not divided by the base learning rate, and not a factor."""
    at: Function | None = function
    while at is not None:
        given = at.latest(dotted(node), node.lineno)
        if given is not None and any(isinstance(each, ast.Div) for each in ast.walk(given)):
            return False
        at = at.parent
    value = number(resolved_value(module, node, function, repository))
    return value is None or 0 < value < _A_RATIO
