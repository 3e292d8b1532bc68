"""Checks of a training loop (NT855, NT856, NT871, NT872, NT875-NT877).

The order of clipping, stepping and clearing, what the optimizer owns, and how often it steps.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from nantrap.doctor.checks.handling import inside_finite_test
from nantrap.doctor.checks.registry import Sighting, source_check
from nantrap.doctor.repository import Repository
from nantrap.doctor.source.expressions import dotted, name_of, receiver_of
from nantrap.doctor.source.flow import (
    LoopEvent,
    LoopFlow,
    always_with,
    any_between,
    follows,
    is_optimizer,
    training_flows,
)
from nantrap.doctor.source.module import Function, Module

_WRITES: Final = re.compile(r"grad|backward|perturb|project|closure")
"""Words of calls that may write gradients between a `zero_grad` and the step."""
_CLEARED: Final = re.compile(r"zero_grad|clear_grad|grad\s*=\s*None|set_to_none|grad(\.data)?\.zero_|grad\s*\*=\s*0")


@source_check("clip_before_unscale")
def clip_before_unscale(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Gradients are clipped while they are still multiplied by the loss scale."""
    for flow in training_flows(module):
        unscales = flow.of("unscale")
        steps = [event for event in flow.of("step") if event.scaled]
        for clip in flow.of("clip"):
            if clip.managed or _clips_master(clip.node):
                continue
            for backward in flow.of("backward"):
                after = [step for step in steps if follows(clip, step) and follows(backward, step)]
                if not backward.scaled or not follows(backward, clip) or not after:
                    continue
                if any_between(backward, unscales, clip):
                    continue
                if any_between(backward, steps, clip):
                    continue  # the step came first: that is another fault
                yield Sighting(
                    "high",
                    clip.line,
                    ast.unparse(clip.node)[:80],
                    f"gradients are clipped before scaler.unscale_: they are still multiplied by the loss scale "
                    f"(backward at line {backward.line})",
                    "call scaler.unscale_(optimizer) before it",
                )
                break


@source_check("clip_after_step")
def clip_after_step(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Gradients are clipped after the optimizer has used them."""
    for flow in training_flows(module):
        steps, backwards = flow.of("step"), flow.of("backward")
        for clip in flow.of("clip"):
            before = [
                s for s in steps if always_with(s, clip) and follows(s, clip) and not any_between(s, backwards, clip)
            ]
            if not before:
                continue
            if not any(follows(b, before[-1]) for b in backwards):
                continue
            later = [s for s in steps if follows(clip, s) and not any_between(clip, backwards, s)]
            if later:
                continue
            yield Sighting(
                "high",
                clip.line,
                ast.unparse(clip.node)[:80],
                f"gradients are clipped after the step of line {before[-1].line}: it has no effect",
                "move it between backward and step",
            )


@source_check("zero_grad_missing")
def zero_grad_missing(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Gradients are never cleared."""
    if _CLEARED.search(module.text):
        return
    flows = [flow for flow in training_flows(module) if not _clears(flow)]
    for flow in _outermost(flows):
        backward = next(
            (event for event in flow.of("backward") if not event.managed or "accelerator" in event.receiver.lower()),
            None,
        )
        steps = [event for event in flow.of("step") if not event.managed]
        if (
            backward is None
            or not steps
            or not any(is_optimizer(module, event.receiver) or event.scaled for event in steps)
        ):
            continue
        if not any(step.around.loops for step in steps) and _cleared_elsewhere(module, repository):
            continue  # a helper; the loop is in another file
        yield Sighting(
            "high",
            steps[0].line,
            None,
            "the optimizer steps and nothing in this file calls zero_grad: gradients add up from step to step",
            "call optimizer.zero_grad(set_to_none=True) after each step",
            doubt=_may_clear(module, flow, steps, repository),
        )


@source_check("zero_grad_before_step")
def zero_grad_before_step(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Gradients are cleared between backward and step; not under a condition of its own, which skips a step."""
    for flow in training_flows(module):
        backwards = flow.of("backward")
        steps = flow.of("step")
        written = flow.of("zeroed")
        for clear in flow.of("zero_grad"):
            if not any(follows(b, clear) for b in backwards) or inside_finite_test(clear) or _in_handler(clear):
                continue  # without gradients the step does nothing: that is how a bad step is skipped
            if any(
                follows(s, clear) and not any_between(s, backwards, clear)
                for s in steps
                if s.receiver == clear.receiver
            ):
                continue  # it was stepped already
            for step in steps:
                if not step.around.loops and any(other.around.loops for other in steps):
                    continue  # before the loop: a step without gradients makes the optimizer's state
                same = step.receiver == clear.receiver or (
                    not is_optimizer(module, clear.receiver) and _only_one(steps)
                )
                if (
                    same
                    and always_with(clear, step)
                    and follows(clear, step)
                    and not any_between(clear, (*backwards, *written), step)
                ):
                    yield Sighting(
                        "high",
                        clear.line,
                        clear.receiver,
                        f"{clear.receiver or 'the'}.zero_grad() is between backward and the step of line "
                        f"{step.line}: the step sees no gradient",
                        "clear after the step",
                        doubt=_rewritten(module, clear, step),
                    )
                    break


@source_check("double_step")
def double_step(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The optimizer steps twice for one backward pass."""
    for flow in training_flows(module):
        steps = flow.of("step")
        between = flow.of("backward", "zero_grad")
        for first in (step for step in steps if step.scaled):
            for second in steps:
                if (
                    second.scaled
                    or not second.receiver
                    or second.receiver != first.receiver
                    or not follows(first, second)
                    or not (always_with(first, second) or always_with(second, first))
                    or any_between(first, between, second)
                ):
                    continue
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


def _may_clear(module: Module, flow: LoopFlow, steps: list[LoopEvent], repository: Repository) -> str:
    """Why the step may clear gradients itself, or is made once; empty if neither shows."""
    if not any(step.around.loops for step in steps) and isinstance(flow.function.node, ast.Module):
        return "no loop was seen around it"
    around = {loop for step in steps for loop in step.around.loops}
    if any(around & set(made.around.loops) for made in flow.of("optimizer")):
        return "each pass makes a new optimizer"
    for step in steps:
        places = (step.function.assigned, module.attributes, module.functions[0].assigned)
        made_by = [value for place in places for _, value in place.get(step.receiver, ())]
        kinds = {name_of(each.func) for each in made_by if isinstance(each, ast.Call)}
        own = [other for other in repository.modules for made in other.classes if made.name in kinds]
        if any(_CLEARED.search(other.text) for other in own):
            return "the optimizer is a class of this project that may clear them"
    return ""


def _rewritten(module: Module, clear: LoopEvent, step: LoopEvent) -> str:
    """Why there may be gradients again at the step; empty if nothing between the two can write them."""
    if clear.function is not step.function:
        return ""
    first, last = clear.line, step.line
    for name, sites in module.calls.items():
        if name in ("zero_grad", "step") or "clip" in name:
            continue
        for call, place in sites:
            if place.function is step.function and first < call.lineno < last and _WRITES.search(ast.unparse(call)):
                return "a call between the two may write gradients"
    return ""


def _clips_master(node: ast.AST) -> bool:
    return "master_params" in ast.unparse(node)


def _in_handler(event: LoopEvent) -> bool:
    return any(test.startswith("except ") for test, _ in event.around.arms)


def _only_one(steps: list[LoopEvent]) -> bool:
    return len({step.receiver for step in steps}) == 1


def _outermost(flows: list[LoopFlow]) -> list[LoopFlow]:
    """One flow for each step, the smallest that has it: a helper's is part of its caller's."""
    chosen: list[LoopFlow] = []
    lines: set[int] = set()
    for flow in sorted(flows, key=lambda each: len(each.events)):
        at = {event.line for event in flow.of("step")}
        if not at & lines:
            chosen.append(flow)
            lines |= at
    return chosen


def _cleared_elsewhere(module: Module, repository: Repository) -> bool:
    return any(other is not module and "zero_grad" in other.text for other in repository.modules)


def _clears(flow: LoopFlow) -> bool:
    return bool(flow.of("zero_grad"))


def _optimizers(module: Module) -> Iterator[tuple[ast.Call, str, Function]]:
    """Calls that make an optimizer from `NAME.parameters()`, the name, and the function they are in."""
    for leaf in ("Adam", "AdamW", "SGD", "RMSprop", "NAdam", "RAdam", "Adagrad", "Adamax", "Adafactor"):
        for call, place in module.sites(leaf):
            owner = receiver_of(call.args[0], "parameters") if call.args else None
            if owner is not None and (name := dotted(owner)):
                yield call, name, place.function


def _freezings(module: Module, owner: str, function: Function) -> Iterator[int]:
    """The lines of a function that freeze all parameters of a model."""
    for call, place in module.sites("requires_grad_"):
        frozen = receiver_of(call, "requires_grad_")
        off = bool(call.args) and module.value(call.args[0]) is False
        here = place.function is function and not place.conditional
        if off and here and frozen is not None and dotted(frozen) == owner:
            yield call.lineno
    for loop in (node for node in ast.walk(function.node) if isinstance(node, ast.For)):
        over = receiver_of(loop.iter, "parameters")
        if (
            over is not None
            and dotted(over) == owner
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
