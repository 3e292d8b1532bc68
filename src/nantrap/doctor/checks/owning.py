"""Checks of source code: what the optimizer owns, and how often it steps (NT875-NT877)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nantrap.doctor.checks.registry import Sighting, source_check
from nantrap.doctor.repository import Repository
from nantrap.doctor.source.expressions import dotted
from nantrap.doctor.source.flow import follows, training_flows
from nantrap.doctor.source.module import Function, Module


@source_check("double_step")
def double_step(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The optimizer steps twice for one backward pass."""
    seen: set[int] = set()
    for flow in training_flows(module):
        steps = flow.of("step")
        between = flow.of("backward", "zero_grad")
        for first in (step for step in steps if step.scaled):
            for second in steps:
                if (
                    second.scaled
                    or second.line in seen
                    or not second.receiver
                    or second.receiver != first.receiver
                    or not follows(first, second)
                    or any(follows(first, each) and follows(each, second) for each in between)
                ):
                    continue
                seen.add(second.line)
                yield Sighting(
                    "high",
                    second.line,
                    f"{second.receiver}.step()",
                    f"{second.receiver}.step() after scaler.step({first.receiver}) in line {first.line}: the update is "
                    "made twice",
                    "remove it: scaler.step makes the update",
                )


@source_check("optimizer_frozen")
def optimizer_frozen(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Every parameter of the optimizer is frozen."""
    for call, owner, function in _optimizers(module):
        frozen = next((line for line in _freezings(module, owner, function) if line < call.lineno), None)
        if frozen is None or _thawed(module, owner, frozen, call.lineno):
            continue
        yield Sighting(
            "high",
            call.lineno,
            ast.unparse(call.func),
            f"line {frozen} freezes every parameter of {owner}, and the optimizer gets only these: nothing is learned",
            "make the part that is to be trained after freezing, and give the optimizer its parameters",
        )


@source_check("optimizer_of_another_model")
def optimizer_of_another_model(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The model was made again after the optimizer."""
    for call, owner, function in _optimizers(module):
        if "." in owner:
            continue
        made = function.assigned.get(owner, [])
        before = [value for line, value in made if line < call.lineno]
        if not before or not isinstance(before[-1], ast.Call):
            continue
        kind = dotted(before[-1].func)
        for line, value in made:
            if line <= call.lineno or not isinstance(value, ast.Call) or dotted(value.func) != kind or not kind:
                continue
            uses = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
            again = any(line < other.lineno for other, name, _ in _optimizers(module) if name == owner)
            if owner in uses or again or not kind.rpartition(".")[2][:1].isupper():
                continue
            yield Sighting(
                "medium",
                line,
                f"{owner} = {kind}(...)",
                f"{owner} is made again after the optimizer of line {call.lineno} got its parameters: the new ones are "
                "not trained",
                "make the optimizer after the model",
            )
            break


def _optimizers(module: Module) -> Iterator[tuple[ast.Call, str, Function]]:
    """Calls that make an optimizer from `NAME.parameters()`, the name, and the function they are in."""
    for leaf in ("Adam", "AdamW", "SGD", "RMSprop", "NAdam", "RAdam", "Adagrad", "Adamax", "Adafactor"):
        for call, place in module.sites(leaf):
            given = call.args[0] if call.args else None
            if (
                isinstance(given, ast.Call)
                and isinstance(given.func, ast.Attribute)
                and given.func.attr == "parameters"
                and not given.args
                and (name := dotted(given.func.value))
            ):
                yield call, name, place.function


def _freezings(module: Module, owner: str, function: Function) -> Iterator[int]:
    """The lines of a function that freeze all parameters of a model."""
    for call, place in module.sites("requires_grad_"):
        func = call.func
        if (
            isinstance(func, ast.Attribute)
            and dotted(func.value) == owner
            and place.function is function
            and not place.conditional
            and call.args
            and isinstance(call.args[0], ast.Constant)
            and call.args[0].value is False
        ):
            yield call.lineno
    for loop in (node for node in ast.walk(function.node) if isinstance(node, ast.For)):
        over = loop.iter
        if (
            isinstance(over, ast.Call)
            and isinstance(over.func, ast.Attribute)
            and over.func.attr == "parameters"
            and dotted(over.func.value) == owner
            and len(loop.body) == 1
            and "requires_grad" in ast.unparse(loop.body[0])
            and "False" in ast.unparse(loop.body[0])
            and loop.col_offset == _body_column(function)
        ):
            yield loop.lineno


def _body_column(function: Function) -> int:
    """The column of the statements of a function's own body: what is further in may not run."""
    body = function.node.body
    return body[0].col_offset if isinstance(body, list) and body else 0


def _thawed(module: Module, owner: str, first: int, last: int) -> bool:
    """Whether anything between two lines may give the model something that is trained."""
    for line in module.lines[first : last - 1]:
        text = line.strip()
        if "requires_grad" in text and "True" in text:
            return True
        if f"{owner}." in text and "=" in text.partition(f"{owner}.")[2]:
            return True
        if text.startswith((f"{owner} =", f"{owner}=")) or f"({owner}" in text:
            return True
    return False
