"""Checks of source code: what the optimizer owns, and how often it steps (NT875-NT877)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nantrap.doctor.checks.registry import Found, source_check
from nantrap.doctor.configuration.constants import dotted
from nantrap.doctor.repository import Repository
from nantrap.doctor.source.events import follows
from nantrap.doctor.source.flow import training_flows
from nantrap.doctor.source.module import Function, Module


@source_check("NT875", "double_step")
def double_step(module: Module, repository: Repository) -> Iterator[Found]:
    """The optimizer steps twice for one backward pass.

    `scaler.step(optimizer)` calls `optimizer.step()` itself. A second call uses the same gradients once more: twice the
    learning rate, Adam's moments twice as fast, and after a step that the scaler has left out, the update that it
    prevented.

    Example:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.step()

    Why:
        The call of the loop without a scaler stayed when the scaler was added.

    Fix:
        Remove the second call:

            - optimizer.step()

    Silent:
        For another optimizer, in the other branch of a condition, and where gradients are cleared in between.
    """
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
                yield Found(
                    "high",
                    second.line,
                    f"{second.receiver}.step()",
                    f"{second.receiver}.step() after scaler.step({first.receiver}) in line {first.line}: the update is "
                    "made twice",
                    "remove it: scaler.step makes the update",
                )


@source_check("NT876", "optimizer_frozen")
def optimizer_frozen(module: Module, repository: Repository) -> Iterator[Found]:
    """Every parameter of the optimizer is frozen.

    The optimizer was given parameters with `requires_grad=False` only. Nothing is learned, and nothing says so: the
    loss is finite, and each step is a step over nothing.

    Example:
        model.requires_grad_(False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    Why:
        The backbone was frozen by a line that freezes the head as well, or the part that should train was replaced
        before the freezing and not after it.

    Fix:
        Freeze first, then make what is to be trained, and give the optimizer that:

            model.requires_grad_(False)
            model.head = torch.nn.Linear(768, 10)
            optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-4)

    Silent:
        When anything between the two lines gives the model a new part or sets `requires_grad` to True.
    """
    for call, owner, function in _optimizers(module):
        frozen = next((line for line in _freezings(module, owner, function) if line < call.lineno), None)
        if frozen is None or _thawed(module, owner, frozen, call.lineno):
            continue
        yield Found(
            "high",
            call.lineno,
            ast.unparse(call.func),
            f"line {frozen} freezes every parameter of {owner}, and the optimizer gets only these: nothing is learned",
            "make the part that is to be trained after freezing, and give the optimizer its parameters",
        )


@source_check("NT877", "optimizer_of_another_model")
def optimizer_of_another_model(module: Module, repository: Repository) -> Iterator[Found]:
    """The model was made again after the optimizer.

    An optimizer holds the parameters that it was given. If the model is made, copied or loaded again after that, the
    loss is computed by parameters that no optimizer changes, and the optimizer changes parameters that nothing uses.

    Example:
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        model = Net()

    Why:
        A cell of a notebook was run again, or a checkpoint is loaded into a new model after the optimizer was made.

    Fix:
        Make the optimizer last, or load into the model that it owns: `model.load_state_dict(...)`.

    Silent:
        When the new value is made of the old one (`model.to(device)`, a wrapper), and when an optimizer follows.
    """
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
            yield Found(
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
