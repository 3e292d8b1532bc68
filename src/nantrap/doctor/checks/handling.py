"""Checks of what a loop does about NaN (NT851-NT854, NT870, NT874).

Tests that let Inf through or come too late, and code that hides NaN instead of skipping the step.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from typing import Final

from nantrap.doctor.checks.mathematics import in_model, only_logged
from nantrap.doctor.checks.registry import Sighting, source_check
from nantrap.doctor.configuration.setting import number
from nantrap.doctor.repository import Repository
from nantrap.doctor.source.expressions import (
    calls_in,
    computes_loss,
    core,
    dotted,
    is_gradient,
    is_loss,
    is_norm,
    keyword_of,
    name_of,
    operation,
    operations,
    receiver_of,
    shown,
    used_in,
)
from nantrap.doctor.source.flow import (
    LoopEvent,
    LoopFlow,
    any_between,
    expanded,
    follows,
    leaves_block,
    tests_finite,
    training_flows,
)
from nantrap.doctor.source.module import Function, Module

_ASIDE: Final = re.compile(r"^_?(sample|generate|infer|eval|valid|test)|metric")
"""Names of functions that do not train."""
_PREDICTION: Final = re.compile(r"pred|(^|_)(out|outputs?|logits?|hat|recon\w*)$|^(y|x)_?hat")
_MENDED: Final = "all that it is computed from was made finite before"
_FINITE: Final = frozenset([
    "nan_to_num", "nan_to_num_", "zeros", "zeros_like", "new_zeros", "ones", "ones_like", "tensor", "new_tensor", "len",
])  # fmt: skip
"""Calls whose result is finite."""
_OF_ONE: Final = ("sum", "mean", "abs", "float", "squeeze", "view", "reshape", "detach", "clamp", "clamp_min", "to")
"""Operations that are finite where their operand is."""
_NO_LIMIT: Final = 1e3
"""A prediction that is clamped here is not meant to be limited: the clamp should stop it from growing."""


@source_check("isnan_misses_inf", "medium", "test with torch.isfinite")
def isnan_misses_inf(module: Module, repository: Repository) -> Iterator[Sighting]:
    """A loop skips bad steps by isnan, which lets Inf through."""
    for flow in training_flows(module):
        for event in flow.of("test") if not _tests_wider(module, flow) else ():
            node = event.node
            assert isinstance(node, ast.If)
            parts = expanded(node.test, event.function)
            tested = next((t for part in parts if (t := _nan_tested(part, event.function)) is not None), None)
            if tested is not None and _guards(node):
                text = ast.unparse(tested)
                yield Sighting(node.lineno, text, f"the step is guarded by isnan({text}), which lets Inf through")


@source_check("nan_to_num_on_loss", "high", "skip the step instead")
def nan_to_num_on_loss(module: Module, repository: Repository) -> Iterator[Sighting]:
    """nan_to_num on a loss or a gradient hides the NaN and keeps its damage."""
    for found, place in operations(module, "nan_to_num", "nan_to_num_"):
        statement, operand, call = place.statement, found.operand, found.node
        if _ASIDE.search(place.function.name.lower()) or only_logged(call, place):
            continue
        if receiver_of(operand, "item", "detach") is not None:
            continue
        into_loss = False
        if isinstance(statement, ast.Assign) and all(map(is_loss, statement.targets)):
            # a name in a sum or product may be a weight; what a call gives is a term of the loss
            terms = _terms(statement.value) if isinstance(operand, ast.Call) else [statement.value]
            into_loss = call in terms
        prediction = _is_prediction(operand) and in_model(place.function)
        gradient = is_gradient(operand) or (isinstance(operand, ast.Name) and operand.id in ("grad", "grads"))
        backwards = [each.lineno for each, other in module.sites("backward") if other.function is place.function]
        if not gradient and backwards and max(backwards) < call.lineno:
            continue  # after the backward pass a loss is only recorded
        if is_loss(operand) or gradient or computes_loss(operand) or into_loss or prediction:
            words = f"nan_to_num({shown(operand)}) hides the NaN; the gradient stays NaN or becomes zero"
            doubt = _MENDED if _was_mended(place.function, operand, call.lineno, repository) else ""
            yield Sighting(call.lineno, shown(operand, 80), words, "medium" if prediction else "high", doubt=doubt)


@source_check("zero_gradients_then_step", "high", "skip the step: optimizer.zero_grad(set_to_none=True) and continue")
def zero_gradients_then_step(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Gradients are zeroed when they are NaN, and the optimizer still makes the step."""
    for flow in training_flows(module):
        for event in flow.of("zeroed", "zero_grad"):
            zeroes = _zeroes_non_finite if event.kind == "zeroed" else _keeps_zeros
            if zeroes(event) and any(follows(event, step) for step in flow.of("step")):
                what = f"{event.receiver or 'the gradient'} is set to zero where it is not finite"
                if event.kind == "zero_grad":
                    what = "gradients are zeroed after a NaN"
                words = "the optimizer still makes the step: momentum and weight decay still move the weights"
                yield Sighting(event.line, event.receiver, f"{what}, and {words}")


@source_check("zero_loss_and_continue", "high", "skip the step and count it")
def zero_loss_and_continue(module: Module, repository: Repository) -> Iterator[Sighting]:
    """A loss that is not finite is replaced by zero, and training continues."""
    for line, name, function in _zeroed_losses(module):
        doubt = _MENDED if _was_mended(function, function.latest(name, line), line, repository) else ""
        yield Sighting(line, name, f"{name} becomes zero when it is not finite, and training continues", doubt=doubt)


@source_check("loss_clamped", "medium", "clip the gradients instead")
def loss_clamped(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The loss is clamped from above."""
    for found, place in operations(module, "clamp", "clip", "clamp_", "clip_", "clamp_max", "clamp_max_"):
        limit = found.argument(0 if found.name.startswith("clamp_max") else 1, "max")
        if limit is None or (isinstance(limit, ast.Constant) and limit.value is None):
            continue
        if isinstance(found.operand, ast.Call) and name_of(found.operand.func) in ("detach", "item", "exp"):
            continue
        bound = number(place.function.value(limit))
        wide = bound is not None and _NO_LIMIT <= bound < float("inf")
        made = place.statement.targets if isinstance(place.statement, ast.Assign) else []
        predicted = any(map(_is_prediction, (found.operand, *made)))
        if is_loss(found.operand) or (wide and predicted and in_model(place.function)):
            name = name_of(core(found.operand)) or shown(found.operand)
            yield Sighting.of(found.node, f"{name} is clamped: above the limit its gradient is zero, and NaN passes")


@source_check("check_after_step", "medium", "test before backward")
def check_after_step(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The loss is tested after the optimizer has already stepped."""
    for flow in training_flows(module):
        tests, backwards = flow.of("test"), flow.of("backward")
        for event in tests:
            before = [step for step in flow.of("step") if step.around.loops == event.around.loops]
            before = [s for s in before if follows(s, event) and not any_between(s, backwards, event)]
            earlier = any(other is not event and any(follows(other, step) for step in before) for other in tests)
            if before and not earlier and _loss_tested(event):
                node = event.node
                assert isinstance(node, ast.If)
                words = f"the loss is tested after the step of line {before[-1].line}: the weights are NaN by then"
                yield Sighting(node.lineno, shown(node.test, 80), words)


def _terms(node: ast.AST) -> Iterator[ast.AST]:
    """The terms of an expression that is computed by operators, and their factors."""
    yield node
    if isinstance(node, ast.BinOp):
        yield from _terms(node.left)
        yield from _terms(node.right)
    elif isinstance(node, ast.UnaryOp):
        yield from _terms(node.operand)


def _was_mended(function: Function, node: ast.expr | None, line: int, repository: Repository, depth: int = 0) -> bool:
    """Whether everything that a value is computed from was made finite before.

    By nan_to_num, by an index that leaves out all of it that is not finite (`penalty[valid].mean()`), or by a function
    of the project that returns early where its result is not finite.
    """
    found = operation(function, node)
    if node is None or depth > 8:
        return False
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.UnaryOp):
        return _was_mended(function, node.operand, line, repository, depth + 1)
    if isinstance(node, ast.Subscript):
        indexed = function.given(node.value, line) or node.value
        masks = [value for name in used_in(node.slice) for at, value in function.assigned.get(name, ()) if at < line]
        tested = {name for mask in masks for call in calls_in(mask, "isfinite") for name in used_in(call)}
        return bool(tested) and used_in(indexed) <= tested
    if isinstance(node, ast.Call):
        made = function.given(node.func, line)
        called = {name_of(node.func), name_of(made.func) if isinstance(made, ast.Call) else ""} - {""}
        if called & _FINITE or _returns_finite(called, repository):
            return True
    if found is not None and (isinstance(node, ast.BinOp) or found.name in _OF_ONE):
        sides = [found.operand, *(found.arguments if isinstance(node, ast.BinOp) else ())]
        return all(_was_mended(function, side, line, repository, depth + 1) for side in sides)
    given = function.given(node, line)
    at = getattr(given, "lineno", line)
    return given is not None and _was_mended(function, given, min(at, line), repository, depth + 1)


def _returns_finite(called: set[str], repository: Repository) -> bool:
    """Whether a function of the project, or the forward pass of a class, returns early where a value is not finite."""
    for module in repository.modules:
        for condition, place in module.conditions:
            function = place.function
            owner = function.owner.name if function.owner is not None and function.name == "forward" else ""
            returns = any(isinstance(each, ast.Return) for each in condition.body)
            if returns and {function.name, owner} & called and tests_finite(condition.test):
                return True
    return False


def _is_prediction(node: ast.expr) -> bool:
    """Whether an expression is called a prediction: `pred`, `x_hat`, `outputs`, `logits`."""
    return isinstance(node, (ast.Name, ast.Attribute)) and bool(_PREDICTION.search(name_of(node).lower()))


def _tests_wider(module: Module, flow: LoopFlow) -> bool:
    """Whether Inf is tested somewhere in the function or its helpers."""
    functions = {id(event.function) for event in flow.events} | {id(flow.function)}

    def inside(*names: str) -> Iterator[tuple[ast.Call, Function]]:
        for name in names:
            for call, place in module.calls.get(name, ()):
                if id(place.function) in functions:
                    yield call, place.function

    for call, function in inside("isinf", "isfinite", "isposinf"):
        subject = _asked_about(call)
        if is_loss(subject) or is_norm(subject, function) or is_gradient(core(subject)):
            return True
    if any(
        module.value(keyword_of(call, "error_if_nonfinite")) is True
        for call, _ in inside("clip_grad_norm_", "clip_grad_norm")
    ):
        return True
    tests = [condition.test for condition, place in module.conditions if id(place.function) in functions]
    sides = [s for test in tests for each in ast.walk(test) if isinstance(each, ast.Compare) for s in each.comparators]
    return any(module.value(side) in (math.inf, -math.inf) for side in sides)


def _asked_about(call: ast.Call) -> ast.expr | None:
    """`loss` of `torch.isnan(loss)` and of `loss.isnan()`."""
    if call.args:
        return call.args[0]
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def _guards(node: ast.If) -> bool:
    """Whether a test keeps the step from happening, or zeroes something."""
    if asks_if_good(node.test):
        trains = any(call for part in node.body for call in calls_in(part, "backward", "step"))
        return trains or leaves_block(node.orelse)
    if leaves_block(node.body):
        return True
    for part in node.body:
        if any(calls_in(part, "zero_grad", "zero_", "zeros_like", "nan_to_num", "nan_to_num_")):
            return True
        for each in ast.walk(part):
            if isinstance(each, (ast.Continue, ast.Break)):
                return True
            if isinstance(each, ast.Assign) and any(is_loss(target) or is_gradient(target) for target in each.targets):
                return True
    return False


def _nan_tested(test: ast.expr, function: Function) -> ast.expr | None:
    """The loss or norm that a condition tests with isnan, or with `loss != loss`."""
    for call in calls_in(test, "isnan"):
        subject = _asked_about(call)
        if subject is not None and (is_loss(subject) or is_norm(subject, function)):
            inner = core(subject)
            return inner if isinstance(inner, ast.expr) else subject
    for each in ast.walk(test):
        if isinstance(each, ast.Compare) and isinstance(each.ops[0], ast.NotEq):
            same = ast.dump(each.left) == ast.dump(each.comparators[0])
            if same and (is_loss(each.left) or is_norm(each.left, function)):
                return each.left
    return None


def _loss_tested(event: LoopEvent) -> bool:
    """Whether a condition tests a loss for NaN or Inf."""
    assert isinstance(event.node, ast.If)
    parts = expanded(event.node.test, event.function)
    return any(is_loss(_asked_about(call)) for part in parts for call in calls_in(part, "isnan", "isfinite", "isinf"))


def asks_if_good(test: ast.expr) -> bool:
    """Whether a condition is true for finite values: `isfinite(x)`, `not isnan(x)`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = test.operand
        return tests_finite(inner) and not asks_if_good(inner)
    if isinstance(test, ast.BoolOp):
        return any(asks_if_good(value) for value in test.values) and isinstance(test.op, ast.And)
    for each in ast.walk(test):
        if isinstance(each, ast.UnaryOp) and isinstance(each.op, (ast.Not, ast.Invert)):
            return False
    return any(calls_in(test, "isfinite"))


def _asks_non_finite(test: ast.expr, function: Function) -> bool:
    """Whether a condition asks about NaN or Inf, directly or through a name."""
    values = [function.latest(name, test.lineno) for name in used_in(test)]
    return any(value is not None and tests_finite(value) for value in (test, *values))


def inside_finite_test(event: LoopEvent) -> bool:
    """Whether an event happens only when a test for NaN or Inf says so."""
    for test, arm in event.around.arms:
        try:
            parsed = ast.parse(test, mode="eval").body
        except SyntaxError:
            continue
        for each in ast.walk(parsed):
            each.lineno = event.line  # type: ignore[attr-defined]
        if _asks_non_finite(parsed, event.function) or _flag_of_a_test(test, event.function):
            given = event.function.latest(test, event.line)
            if asks_if_good(given if given is not None and tests_finite(given) else parsed) != arm:
                return True
    return False


def _flag_of_a_test(test: str, function: Function) -> bool:
    """A flag that is raised under a test: `if isnan(...): bad = True`, then `if bad:`."""
    if not test.isidentifier():
        return False
    tests = [each for each in ast.walk(function.node) if isinstance(each, ast.If) and tests_finite(each.test)]
    raised = [part for each in tests for part in each.body if isinstance(part, ast.Assign)]
    return any(dotted(target) == test for part in raised for target in part.targets)


def _keeps_zeros(event: LoopEvent) -> bool:
    """Whether gradients are cleared under a test for NaN so that zeros stay: `zero_grad(set_to_none=False)`."""
    assert isinstance(event.node, ast.Call)
    kept = keyword_of(event.node, "set_to_none")
    return isinstance(kept, ast.Constant) and kept.value is False and inside_finite_test(event)


def _zeroes_non_finite(event: LoopEvent) -> bool:
    """Whether a write to a gradient replaces what is not finite by zero."""
    match event.node:
        case ast.Assign(targets=[ast.Subscript(slice=places), *_]) if tests_finite(places):
            return True
        case ast.Assign(value=ast.Call(func=func) as value) if name_of(func) in ("where", "masked_fill"):
            return tests_finite(value)
        case ast.Expr(value=ast.Call(func=func, args=given)) if name_of(func) in ("masked_fill_", "copy_"):
            return any(map(tests_finite, given))
        case ast.Assign(value=ast.Constant(value=0)) | ast.AugAssign(op=ast.Mult(), value=ast.Constant(value=0)):
            return inside_finite_test(event)
        case ast.Assign(value=ast.Call(func=func)) if name_of(func) in ("zeros_like", "zeros", "new_zeros"):
            return inside_finite_test(event)
        case ast.Expr(value=ast.Call(func=func, args=[ast.Constant(value=0), *_])) if name_of(func) in (
            "fill_",
            "mul_",
        ):
            return inside_finite_test(event)
        case ast.Expr(value=ast.Call(func=func)) if name_of(func) == "zero_":
            return inside_finite_test(event)
    return False


def _zeroed_losses(module: Module) -> Iterator[tuple[int, str, Function]]:
    """The line, the name and the function of every loss that is replaced by zero where it is not finite."""
    for condition, place in module.conditions:
        function = place.function
        if place.silent or _ASIDE.search(function.name.lower()) or not _asks_non_finite(condition.test, function):
            continue
        body = condition.orelse if asks_if_good(condition.test) else condition.body
        for statement in body:
            for line, name in _zeroed_by(statement, function, condition.test):
                if _is_trained_on(name, line, function, skips=leaves_block(body)):
                    yield line, name, function
    for call, place in module.sites("where"):
        if len(call.args) >= 3 and tests_finite(call.args[0]):
            names = [ast.unparse(side) for side in call.args[1:3] if is_loss(side)]
            if names and any(map(_is_zero, call.args[1:3])):
                yield call.lineno, names[0], place.function
    for function in module.functions:
        given = () if function.silent else function.assigned.items()
        for name, line, value in ((name, line, value) for name, values in given for line, value in values):
            if not isinstance(value, ast.IfExp) or not tests_finite(value.test):
                continue
            zeroed = is_loss(ast.Name(name.rsplit(".", 1)[-1])) and any(map(_is_zero, (value.body, value.orelse)))
            if zeroed and _is_trained_on(name, line, function):
                yield line, name, function


def _zeroed_by(statement: ast.stmt, function: Function, test: ast.expr) -> Iterator[tuple[int, str]]:
    """The loss that a statement under a test for NaN sets to zero, or returns zero in place of."""
    replaced: ast.expr | None = None
    match statement:
        case ast.Assign(targets=targets, value=value) if _is_zero(value):
            named = [each for each in targets if is_loss(each)]
            tested = _loss_names(test)
            replaced = next((e for e in named if dotted(e) in tested or not _always_zero(e, function)), None)
        case ast.AugAssign(target=target, op=ast.Mult(), value=value) if function.module.value(value) == 0:
            replaced = target
        case ast.Expr(value=value):
            replaced = receiver_of(value, "zero_")
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant) and _is_zero(value):
            chains = [each for each in ast.walk(test) if isinstance(each, (ast.Name, ast.Attribute))]
            replaced = next((each for each in chains if is_loss(each)), None)
        case ast.With(body=body) | ast.For(body=body):
            for inner in body:
                yield from _zeroed_by(inner, function, test)
    if replaced is not None and is_loss(replaced):
        yield statement.lineno, ast.unparse(replaced)


def _always_zero(target: ast.expr, function: Function) -> bool:
    """Whether a name is only ever given zero: then no loss was replaced."""
    given = function.assigned.get(dotted(target), ())
    return len(given) > 0 and all(_is_zero(value) for _, value in given)


def _is_trained_on(name: str, line: int, function: Function, *, skips: bool = False) -> bool:
    """Whether a loss that is replaced at a line goes on to a backward pass, and not only into a log.

    Args:
        name: of the loss, or the expression that is returned in its place.
        line: where it is replaced.
        function: where that is.
        skips: whether the branch ends with a jump: then only a loss that is a tensor counts.
    """
    given = function.latest(name, line)
    if given is not None and _is_plain_number(given):
        return False
    if skips:
        return True
    carried = {name}
    later = [each for each in ast.walk(function.node) if isinstance(each, ast.stmt) and each.lineno >= line]
    trains = any(place.function is function for _, place in function.module.calls.get("backward", ()))
    for each in sorted(later, key=lambda each: each.lineno):
        value = getattr(each, "value", None)
        used = carried & _loss_names(value) if value is not None else set()
        if isinstance(each, (ast.Assign, ast.AugAssign)):
            if used and each.lineno > line and not _is_plain_number(each.value):
                carried |= {dotted(t) for t in (each.targets if isinstance(each, ast.Assign) else [each.target])} - {""}
            continue
        kept_in = receiver_of(value, "append", "extend", "add") if isinstance(each, ast.Expr) else None
        if used and kept_in is not None:
            carried |= {dotted(kept_in)} - {""}
        returned = isinstance(each, ast.Return) and value is not None and not trains
        trained = isinstance(each, ast.Expr) and "backward" in ast.unparse(each.value)
        if (used and (returned or trained)) or (returned and each.lineno == line):
            return True
    return False


def _loss_names(node: ast.AST) -> set[str]:
    """The names and chains of names in an expression; `losses["total"]` as written."""
    chains = (ast.Name, ast.Attribute, ast.Subscript)
    return {dotted(each) or ast.unparse(each) for each in ast.walk(node) if isinstance(each, chains)}


def _is_plain_number(node: ast.AST) -> bool:
    """Whether a value is a number of Python, through which no gradient flows: `loss.item()`, `float(loss)`."""
    return any(calls_in(node, "item", "tolist", "detach", "numpy")) or any(
        dotted(call.func) == "float" for call in calls_in(node, "float")
    )


def _is_zero(node: ast.expr) -> bool:
    """`0.0`, `torch.zeros_like(loss)`, `torch.tensor(0.0, ...)`, `loss * 0`, `loss.new_zeros(...)`."""
    match node:
        case ast.Constant(value=value):
            return not isinstance(value, bool) and value == 0
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            return any(isinstance(side, ast.Constant) and side.value == 0 for side in (left, right))
        case ast.Call(func=func, args=given) if name_of(func) in ("tensor", "as_tensor", "new_tensor", "full_like"):
            return any(isinstance(each, ast.Constant) and each.value == 0 for each in given)
        case ast.Call(func=func, args=given) if name_of(func) in ("mul", "mul_"):
            return bool(given) and isinstance(given[0], ast.Constant) and given[0].value == 0
        case ast.Call(func=func) if name_of(func) in ("zeros_like", "zeros", "new_zeros"):
            return True
    inner = receiver_of(node, "to", "requires_grad_", "sum", "mean", "detach", "cuda", "float", "clone")
    return inner is not None and _is_zero(inner)
