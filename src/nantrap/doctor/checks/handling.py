"""Checks of what a loop does about NaN (NT851-NT854, NT870, NT874).

Tests that let Inf through or come too late, and code that hides NaN instead of skipping the step.
"""

from __future__ import annotations

import ast
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
    receiver_of,
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
_WIDER: Final = frozenset({"isinf", "isfinite", "isposinf"})
_PREDICTION: Final = re.compile(r"pred|(^|_)(out|outputs?|logits?|hat|recon\w*)$|^(y|x)_?hat")
_NO_LIMIT: Final = 1e3
"""A prediction that is clamped here is not meant to be limited: the clamp should stop it from growing."""


@source_check("isnan_misses_inf")
def isnan_misses_inf(module: Module, repository: Repository) -> Iterator[Sighting]:
    """A loop skips bad steps by isnan, which lets Inf through."""
    for flow in training_flows(module):
        if _tests_wider(module, flow):
            continue
        for event in flow.of("test"):
            node = event.node
            assert isinstance(node, ast.If)
            if not _guards(node):
                continue
            parts = expanded(node.test, event.function)
            tested = next((t for part in parts if (t := _nan_tested(part, event.function)) is not None), None)
            if tested is not None:
                yield Sighting(
                    "medium",
                    node.lineno,
                    ast.unparse(tested),
                    f"the step is guarded by isnan({ast.unparse(tested)}), which lets Inf through",
                    "test with torch.isfinite",
                )


@source_check("nan_to_num_on_loss")
def nan_to_num_on_loss(module: Module, repository: Repository) -> Iterator[Sighting]:
    """nan_to_num on a loss or a gradient hides the NaN and keeps its damage."""
    for call, place in module.sites("nan_to_num", "nan_to_num_"):
        found = operation(module, call)
        if found is None or found.operand is None:
            continue
        statement = place.statement
        if _ASIDE.search(place.function.name.lower()) or only_logged(call, place):
            continue
        into_loss = (
            isinstance(statement, ast.Assign)
            and statement.value is call
            and all(is_loss(target) for target in statement.targets)
        )
        operand = found.operand
        if receiver_of(operand, "item", "detach") is not None:
            continue
        prediction = _is_prediction(operand) and in_model(module, place.function)
        gradient = is_gradient(operand) or (isinstance(operand, ast.Name) and operand.id in ("grad", "grads"))
        if is_loss(operand) or gradient or computes_loss(operand) or into_loss or prediction:
            yield Sighting(
                "medium" if prediction else "high",
                call.lineno,
                ast.unparse(operand)[:80],
                f"nan_to_num({ast.unparse(operand)[:60]}) hides the NaN; the gradient stays NaN or becomes zero",
                "skip the step instead",
            )


@source_check("zero_gradients_then_step")
def zero_gradients_then_step(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Gradients are zeroed when they are NaN, and the optimizer still makes the step."""
    for flow in training_flows(module):
        steps = flow.of("step")
        for event in flow.of("zeroed"):
            if not _zeroes_non_finite(event):
                continue
            if any(follows(event, step) for step in steps):
                yield Sighting(
                    "high",
                    event.line,
                    event.receiver,
                    f"{event.receiver or 'the gradient'} is set to zero where it is not finite, and the optimizer "
                    "still makes the step: momentum and weight decay still move the weights",
                    "skip the step: optimizer.zero_grad(set_to_none=True) and continue",
                )
        for event in flow.of("zero_grad"):
            node = event.node
            kept = keyword_of(node, "set_to_none") if isinstance(node, ast.Call) else None
            if (
                isinstance(kept, ast.Constant)
                and kept.value is False
                and inside_finite_test(event)
                and any(follows(event, s) for s in steps)
            ):
                yield Sighting(
                    "high",
                    event.line,
                    event.receiver,
                    "gradients are zeroed after a NaN, and the optimizer still makes the step",
                    "skip the step: zero_grad(set_to_none=True) and continue",
                )


@source_check("zero_loss_and_continue")
def zero_loss_and_continue(module: Module, repository: Repository) -> Iterator[Sighting]:
    """A loss that is not finite is replaced by zero, and training continues."""
    for condition, place in module.conditions:
        if place.silent or _ASIDE.search(place.function.name.lower()):
            continue
        if not _asks_non_finite(condition.test, place.function):
            continue
        body = condition.orelse if asks_if_good(condition.test) else condition.body
        for statement in body:
            for zeroed in _zeroed_loss(module, statement, place.function, condition):
                if _is_trained_on(module, str(zeroed.value), zeroed.line, place.function, skips=leaves_block(body)):
                    yield zeroed
    for call, place in module.sites("where"):
        found = operation(module, call)
        if found is None or len(call.args) < 3 or not tests_finite(call.args[0]) or found.name != "where":
            continue
        names = [ast.unparse(side) for side in call.args[1:3] if is_loss(side)]
        if names and any(_is_zero(module, side, place.function) for side in call.args[1:3]):
            yield _zero_loss(call.lineno, names[0])
    for function in module.functions:
        if function.silent:
            continue
        for name, values in function.assigned.items():
            for line, value in values:
                if (
                    isinstance(value, ast.IfExp)
                    and is_loss(ast.Name(name.rsplit(".", 1)[-1]))
                    and tests_finite(value.test)
                    and any(_is_zero(module, side, function) for side in (value.body, value.orelse))
                    and _is_trained_on(module, name, line, function)
                ):
                    yield _zero_loss(line, name)


@source_check("loss_clamped")
def loss_clamped(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The loss is clamped from above."""
    for call, place in module.sites("clamp", "clip", "clamp_", "clip_", "clamp_max", "clamp_max_"):
        found = operation(module, call)
        if found is None or found.operand is None:
            continue
        least = 0 if found.name.startswith("clamp_max") else 1
        limit = found.keywords.get("max") or (found.arguments[least] if len(found.arguments) > least else None)
        if limit is None or (isinstance(limit, ast.Constant) and limit.value is None):
            continue
        if isinstance(found.operand, ast.Call) and name_of(found.operand.func) in ("detach", "item", "exp"):
            continue
        bound = number(module.value(limit, place.function))
        wide = bound is not None and _NO_LIMIT <= bound < float("inf")
        made = place.statement.targets if isinstance(place.statement, ast.Assign) else []
        predicted = any(map(_is_prediction, (found.operand, *made)))
        if is_loss(found.operand) or (wide and predicted and in_model(module, place.function)):
            yield Sighting.of(
                call,
                "medium",
                f"{name_of(core(found.operand)) or ast.unparse(found.operand)[:60]} is clamped: above the limit its "
                "gradient is zero, and NaN passes",
                "clip the gradients instead",
            )


@source_check("check_after_step")
def check_after_step(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The loss is tested after the optimizer has already stepped."""
    for flow in training_flows(module):
        steps, backwards = flow.of("step"), flow.of("backward")
        tests = [event for event in flow.of("test") if _loss_tested(event)]
        for event in tests:
            before = [
                step
                for step in steps
                if follows(step, event)
                and step.around.loops == event.around.loops
                and not any_between(step, backwards, event)
            ]
            if not before:
                continue
            if any(other is not event and any(follows(other, step) for step in before) for other in flow.of("test")):
                continue
            node = event.node
            assert isinstance(node, ast.If)
            yield Sighting(
                "medium",
                node.lineno,
                ast.unparse(node.test)[:80],
                f"the loss is tested after the step of line {before[-1].line}: the weights are NaN by then",
                "test before backward",
            )


def _is_prediction(node: ast.expr) -> bool:
    """Whether an expression is called a prediction: `pred`, `x_hat`, `outputs`, `logits`."""
    return isinstance(node, (ast.Name, ast.Attribute)) and bool(_PREDICTION.search(name_of(node).lower()))


def _tests_wider(module: Module, flow: LoopFlow) -> bool:
    """Whether Inf is tested somewhere in the function or its helpers."""
    functions = {id(event.function): event.function for event in flow.events}
    functions[id(flow.function)] = flow.function
    for name in _WIDER:
        for call, place in module.calls.get(name, ()):
            subject = _asked_about(call)
            if id(place.function) not in functions or subject is None:
                continue
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


def _asked_about(call: ast.Call) -> ast.expr | None:
    """`loss` of `torch.isnan(loss)` and of `loss.isnan()`."""
    if call.args:
        return call.args[0]
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def _is_true(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _is_inf(module: Module, node: ast.AST) -> bool:
    value = module.value(node)
    return isinstance(value, float) and value in (float("inf"), float("-inf"))


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
    if tests_finite(test):
        return True
    values = [function.latest(name, test.lineno) for name in used_in(test)]
    return any(value is not None and tests_finite(value) for value in values)


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
    for each in ast.walk(function.node):
        if isinstance(each, ast.If) and tests_finite(each.test):
            for part in each.body:
                if isinstance(part, ast.Assign) and any(isinstance(t, ast.Name) and t.id == test for t in part.targets):
                    return True
    return False


def _zeroes_non_finite(event: LoopEvent) -> bool:
    """Whether a write to a gradient replaces what is not finite by zero."""
    node = event.node
    if isinstance(node, ast.Assign):
        target = node.targets[0]
        if isinstance(target, ast.Subscript) and tests_finite(target.slice):
            return True
        if isinstance(node.value, ast.Call) and name_of(node.value.func) in ("where", "masked_fill"):
            return tests_finite(node.value)
        if isinstance(node.value, ast.Constant) and node.value.value is None:
            return False
        zero = (isinstance(node.value, ast.Constant) and node.value.value == 0) or (
            isinstance(node.value, ast.Call) and name_of(node.value.func) in ("zeros_like", "zeros", "new_zeros")
        )
        return zero and inside_finite_test(event)
    if isinstance(node, ast.AugAssign):
        zero = isinstance(node.op, ast.Mult) and isinstance(node.value, ast.Constant) and node.value.value == 0
        return zero and inside_finite_test(event)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        name = name_of(node.value.func)
        if name in ("masked_fill_", "copy_"):
            return any(tests_finite(argument) for argument in node.value.args)
        if name in ("fill_", "mul_"):
            if not (node.value.args and isinstance(node.value.args[0], ast.Constant) and node.value.args[0].value == 0):
                return False
        elif name != "zero_":
            return False
        return inside_finite_test(event)
    return False


def _zeroed_loss(module: Module, statement: ast.stmt, function: Function, condition: ast.If) -> Iterator[Sighting]:
    """The finding if a statement under a test for NaN sets the loss to zero, or returns zero in its place."""
    if isinstance(statement, ast.Assign):
        tested = _loss_names(condition.test)
        named = [each for each in statement.targets if is_loss(each)]
        named = [each for each in named if dotted(each) in tested or not _always_zero(module, each, function)]
        if named and _is_zero(module, statement.value, function):
            yield _zero_loss(statement.lineno, ast.unparse(named[0]))
    elif isinstance(statement, ast.AugAssign):
        if is_loss(statement.target) and isinstance(statement.op, ast.Mult) and module.value(statement.value) == 0:
            yield _zero_loss(statement.lineno, ast.unparse(statement.target))
    elif isinstance(statement, ast.Expr):
        cleared = receiver_of(statement.value, "zero_")
        if cleared is not None and is_loss(cleared):
            yield _zero_loss(statement.lineno, ast.unparse(cleared))
    elif isinstance(statement, ast.Return) and statement.value is not None:
        chains = [each for each in ast.walk(condition.test) if isinstance(each, (ast.Name, ast.Attribute))]
        loss = next((ast.unparse(each) for each in chains if is_loss(each)), "")
        if loss and not isinstance(statement.value, ast.Constant) and _is_zero(module, statement.value, function):
            yield _zero_loss(statement.lineno, loss)
    elif isinstance(statement, (ast.With, ast.For)):
        for inner in statement.body:
            yield from _zeroed_loss(module, inner, function, condition)


def _always_zero(module: Module, target: ast.expr, function: Function) -> bool:
    """Whether a name is only ever given zero: then no loss was replaced."""
    given = function.assigned.get(dotted(target), ())
    return len(given) > 0 and all(_is_zero(module, value, function) for _, value in given)


def _is_trained_on(module: Module, name: str, line: int, function: Function, *, skips: bool = False) -> bool:
    """Whether a loss that is replaced at a line goes on to a backward pass, and not only into a log.

    Args:
        module: the file.
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
    statements = sorted(
        (each for each in ast.walk(function.node) if isinstance(each, ast.stmt) and each.lineno >= line),
        key=lambda each: each.lineno,
    )
    trains = "backward" in module.calls and any(place.function is function for _, place in module.calls["backward"])
    for each in statements:
        goes_on = False
        if isinstance(each, (ast.Assign, ast.AugAssign)) and each.lineno > line:
            if not _is_plain_number(each.value) and carried & _loss_names(each.value):
                carried |= {dotted(t) for t in (each.targets if isinstance(each, ast.Assign) else [each.target])} - {""}
        elif isinstance(each, ast.Return) and each.value is not None and not trains:
            goes_on = each.lineno == line or bool(carried & _loss_names(each.value))
        elif isinstance(each, ast.Expr) and "backward" in ast.unparse(each.value):
            goes_on = bool(carried & _loss_names(each.value))
        if goes_on:
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


def _is_zero(module: Module, node: ast.expr, function: Function) -> bool:
    """`0.0`, `torch.zeros_like(loss)`, `torch.tensor(0.0, ...)`, `loss * 0`, `loss.new_zeros(...)`."""
    if isinstance(node, ast.Constant):
        return not isinstance(node.value, bool) and node.value in (0, 0.0) and node.value is not None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return any(isinstance(side, ast.Constant) and side.value == 0 for side in (node.left, node.right))
    if isinstance(node, ast.Call):
        name = name_of(node.func)
        if name in ("zeros_like", "zeros", "new_zeros"):
            return True
        if name in ("tensor", "as_tensor", "new_tensor", "full_like"):
            return any(isinstance(argument, ast.Constant) and argument.value == 0 for argument in node.args)
        if name in ("mul", "mul_"):
            return bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
        inner = receiver_of(node, "to", "requires_grad_", "sum", "mean", "detach", "cuda", "float", "clone")
        if inner is not None:
            return _is_zero(module, inner, function)
    return False


def _zero_loss(line: int, name: str) -> Sighting:
    return Sighting(
        "high",
        line,
        name,
        f"{name} becomes zero when it is not finite, and training continues",
        "skip the step and count it",
    )
