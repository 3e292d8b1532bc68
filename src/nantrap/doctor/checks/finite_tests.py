"""Checks of source code: tests for NaN that let Inf through or come too late (NT851, NT874)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from nantrap.doctor.checks.handling import asks_if_good
from nantrap.doctor.checks.registry import Sighting, source_check
from nantrap.doctor.repository import Repository
from nantrap.doctor.source.expressions import core, is_gradient, is_loss, is_norm, name_of
from nantrap.doctor.source.flow import StepEvent, StepFlow, expanded, follows, leaves_block, training_flows
from nantrap.doctor.source.module import Function, Module

_WIDER: Final = frozenset({"isinf", "isfinite", "isposinf"})


@source_check("isnan_misses_inf")
def isnan_misses_inf(module: Module, repository: Repository) -> Iterator[Sighting]:
    """A loop skips bad steps by isnan, which lets Inf through."""
    seen: set[int] = set()
    for flow in training_flows(module):
        if _tests_wider(module, flow):
            continue
        for event in flow.of("test"):
            node = event.node
            assert isinstance(node, ast.If)
            if node.lineno in seen or not _guards(node):
                continue
            parts = expanded(node.test, event.function)
            tested = next((t for part in parts if (t := _nan_tested(module, part, event.function)) is not None), None)
            if tested is not None:
                seen.add(node.lineno)
                yield Sighting(
                    "medium",
                    node.lineno,
                    ast.unparse(tested),
                    f"the step is guarded by isnan({ast.unparse(tested)}), which lets Inf through",
                    "test with torch.isfinite",
                )


@source_check("check_after_step")
def check_after_step(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The loss is tested after the optimizer has already stepped."""
    seen: set[int] = set()
    for flow in training_flows(module):
        steps, backwards = flow.of("step"), flow.of("backward")
        tests = [event for event in flow.of("test") if _loss_tested(event)]
        for event in tests:
            before = [
                step
                for step in steps
                if follows(step, event)
                and step.around.loops == event.around.loops
                and not any(follows(step, b) and follows(b, event) for b in backwards)
            ]
            if not before or event.line in seen:
                continue
            if any(other is not event and any(follows(other, step) for step in before) for other in flow.of("test")):
                continue
            seen.add(event.line)
            node = event.node
            assert isinstance(node, ast.If)
            yield Sighting(
                "medium",
                node.lineno,
                ast.unparse(node.test)[:80],
                f"the loss is tested after the step of line {before[-1].line}: the weights are NaN by then",
                "test before backward",
            )


def _tests_wider(module: Module, flow: StepFlow) -> bool:
    """Whether Inf is tested somewhere in the function or its helpers."""
    functions = {id(event.function): event.function for event in flow.events}
    functions[id(flow.function)] = flow.function
    for name in _WIDER:
        for call, place in module.calls.get(name, ()):
            if (id(place.function) in functions and call.args) or (
                isinstance(call.func, ast.Attribute) and id(place.function) in functions
            ):
                subject = (
                    call.args[0] if call.args else call.func.value if isinstance(call.func, ast.Attribute) else None
                )
                if is_loss(subject) or is_norm(subject, place.function) or is_gradient(core(subject)):
                    return True
    for name in ("clip_grad_norm_", "clip_grad_norm"):
        for call, place in module.calls.get(name, ()):
            if id(place.function) in functions and any(
                k.arg == "error_if_nonfinite" and _is_true(k.value) for k in call.keywords
            ):
                return True
    for condition, place in module.conditions:
        if id(place.function) in functions:
            for each in ast.walk(condition.test):
                if isinstance(each, ast.Compare) and any(_is_inf(module, side) for side in each.comparators):
                    return True
    return False


def _is_true(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _is_inf(module: Module, node: ast.AST) -> bool:
    value = module.value(node)
    return isinstance(value, float) and value in (float("inf"), float("-inf"))


def _guards(node: ast.If) -> bool:
    """Whether a test keeps the step from happening, or zeroes something."""
    if asks_if_good(node.test):
        return any(
            isinstance(each, ast.Call) and name_of(each.func) in ("backward", "step")
            for part in node.body
            for each in ast.walk(part)
        ) or leaves_block(node.orelse)
    if leaves_block(node.body):
        return True
    for part in node.body:
        for each in ast.walk(part):
            if isinstance(each, (ast.Continue, ast.Break)):
                return True
            if isinstance(each, ast.Call) and name_of(each.func) in (
                "zero_grad",
                "zero_",
                "zeros_like",
                "nan_to_num",
                "nan_to_num_",
            ):
                return True
            if isinstance(each, ast.Assign) and any(is_loss(target) or is_gradient(target) for target in each.targets):
                return True
    return False


def _nan_tested(module: Module, test: ast.expr, function: Function) -> ast.expr | None:
    """The loss or norm that a condition tests with isnan, or with `loss != loss`."""
    for each in ast.walk(test):
        if isinstance(each, ast.Call) and name_of(each.func) == "isnan":
            subject = each.args[0] if each.args else each.func.value if isinstance(each.func, ast.Attribute) else None
            if subject is not None and (is_loss(subject) or is_norm(subject, function)):
                inner = core(subject)
                return inner if isinstance(inner, ast.expr) else subject
        if isinstance(each, ast.Compare) and isinstance(each.ops[0], ast.NotEq):
            same = ast.dump(each.left) == ast.dump(each.comparators[0])
            if same and (is_loss(each.left) or is_norm(each.left, function)):
                return each.left
    return None


def _loss_tested(event: StepEvent) -> bool:
    """Whether a condition tests a loss for NaN or Inf."""
    assert isinstance(event.node, ast.If)
    for part in expanded(event.node.test, event.function):
        for each in ast.walk(part):
            if isinstance(each, ast.Call) and name_of(each.func) in ("isnan", "isfinite", "isinf"):
                subject = (
                    each.args[0] if each.args else each.func.value if isinstance(each.func, ast.Attribute) else None
                )
                if is_loss(subject):
                    return True
    return False
