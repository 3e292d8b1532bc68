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
from nantrap.doctor.repository import Repository, resolved_value
from nantrap.doctor.source.expressions import dotted, keyword_of, name_of, receiver_of, shown, used_in
from nantrap.doctor.source.flow import (
    LoopEvent,
    LoopFlow,
    all_flows,
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


@source_check("clip_before_unscale", "high", "call scaler.unscale_(optimizer) before it")
def clip_before_unscale(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Gradients are clipped while they are still multiplied by the loss scale.

    The backward pass may be in another method of the class; then nothing in the file must divide by the scale.
    """
    scalers = [(keyword_of(call, "enabled"), place.function) for call, place in module.sites("GradScaler")]
    off = [given for given, at in scalers if given is not None and resolved_value(at, given, repository) is False]
    doubt = "the scaler is switched off by the settings that were read" if off and len(off) == len(scalers) else ""
    for flow in all_flows(module) if "clip_grad" in module.text else ():
        steps = [event for event in flow.of("step") if event.scaled]
        ending = [*flow.of("unscale"), *steps]  # after a step it is another fault
        for clip in flow.of("clip"):
            if clip.managed or "master_params" in ast.unparse(clip.node) or not any(follows(clip, s) for s in steps):
                continue
            before = [event for event in flow.of("backward") if event.scaled and follows(event, clip)]
            backward = next((event for event in before if not any_between(event, ending, clip)), None)
            if backward is not None and not any(follows(clip, s) and follows(backward, s) for s in steps):
                continue
            if backward is None:
                backward = _scaled_elsewhere(module, flow)
                if any("unscale_" in other.calls for other in repository.modules):
                    doubt = doubt or "another file divides gradients by the scale"
            if backward is not None:
                words = f"they are still multiplied by the loss scale (backward at line {backward.line})"
                text = f"gradients are clipped before scaler.unscale_: {words}"
                yield Sighting(clip.line, shown(clip.node, 80), text, doubt=doubt)


@source_check("clip_after_step", "high", "move it between backward and step")
def clip_after_step(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Gradients are clipped after the optimizer has used them."""
    for flow in training_flows(module):
        steps, backwards = flow.of("step"), flow.of("backward")
        for clip in flow.of("clip"):
            before = [s for s in steps if always_with(s, clip) and follows(s, clip)]
            before = [s for s in before if not any_between(s, backwards, clip)]
            later = any(follows(clip, s) and not any_between(clip, backwards, s) for s in steps)
            if before and not later and any(follows(b, before[-1]) for b in backwards):
                words = f"gradients are clipped after the step of line {before[-1].line}: it has no effect"
                yield Sighting(clip.line, shown(clip.node, 80), words)


@source_check("zero_grad_missing", "high", "call optimizer.zero_grad(set_to_none=True) after each step")
def zero_grad_missing(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Gradients are never cleared."""
    if _CLEARED.search(module.text):
        return
    for flow in _outermost([flow for flow in training_flows(module) if not flow.of("zero_grad")]):
        backwards = [e for e in flow.of("backward") if not e.managed or "accelerator" in e.receiver.lower()]
        steps = [event for event in flow.of("step") if not event.managed]
        if not backwards or not any(is_optimizer(module, event.receiver) or event.scaled for event in steps):
            continue
        elsewhere = any(other is not module and "zero_grad" in other.text for other in repository.modules)
        if not any(step.around.loops for step in steps) and elsewhere:
            continue  # a helper; the loop is in another file
        words = "the optimizer steps and nothing in this file calls zero_grad: gradients add up from step to step"
        yield Sighting(steps[0].line, None, words, doubt=_may_clear(module, flow, steps, repository))


@source_check("zero_grad_before_step", "high", "clear after the step")
def zero_grad_before_step(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Gradients are cleared between backward and step; not under a condition of its own, which skips a step."""
    for flow in training_flows(module):
        backwards, steps = flow.of("backward"), flow.of("step")
        looped = any(step.around.loops for step in steps)
        for clear in flow.of("zero_grad"):
            if not any(follows(b, clear) for b in backwards) or inside_finite_test(clear) or _in_handler(clear):
                continue  # without gradients the step does nothing: that is how a bad step is skipped
            made = [s for s in steps if s.receiver == clear.receiver and follows(s, clear)]
            if any(not any_between(s, backwards, clear) for s in made):
                continue  # it was stepped already
            alone = not is_optimizer(module, clear.receiver) and len({step.receiver for step in steps}) == 1
            for step in steps:
                if looped and not step.around.loops:
                    continue  # before the loop: a step without gradients makes the optimizer's state
                if not (alone or step.receiver == clear.receiver) or not always_with(clear, step):
                    continue
                if follows(clear, step) and not any_between(clear, (*backwards, *flow.of("zeroed")), step):
                    words = f"between backward and the step of line {step.line}: the step sees no gradient"
                    message = f"{clear.receiver or 'the'}.zero_grad() is {words}"
                    yield Sighting(clear.line, clear.receiver, message, doubt=_rewritten(module, clear, step))
                    break


@source_check("double_step", "high", "remove it: scaler.step makes the update")
def double_step(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The optimizer steps twice for one backward pass."""
    for flow in training_flows(module):
        steps, between = flow.of("step"), flow.of("backward", "zero_grad")
        pairs = [(one, other) for one in steps for other in steps if one.scaled and not other.scaled]
        for first, second in pairs:
            if not second.receiver or second.receiver != first.receiver or not follows(first, second):
                continue
            together = always_with(first, second) or always_with(second, first)
            if together and not any_between(first, between, second):
                text = f"{second.receiver}.step()"
                made = f"scaler.step({first.receiver}) in line {first.line}: the update is made twice"
                yield Sighting(second.line, text, f"{text} after {made}")


@source_check(
    "optimizer_frozen",
    "high",
    "make the part that is to be trained after freezing, and give the optimizer its parameters",
)
def optimizer_frozen(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Every parameter of the optimizer is frozen."""
    for call, owner, function in _optimizers(module):
        frozen = next((line for line in _freezings(module, owner, function) if line < call.lineno), None)
        if frozen is not None and not _thawed(module, owner, frozen, call.lineno):
            words = f"line {frozen} freezes every parameter of {owner}, and the optimizer gets only these"
            yield Sighting(call.lineno, ast.unparse(call.func), f"{words}: nothing is learned")


@source_check("optimizer_of_another_model", "medium", "make the optimizer after the model")
def optimizer_of_another_model(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The model was made again after the optimizer."""
    for call, owner, function in _optimizers(module):
        before = function.latest(owner, call.lineno) if "." not in owner else None
        kind = dotted(before.func) if isinstance(before, ast.Call) else ""
        if not kind.rpartition(".")[2][:1].isupper():
            continue
        for line, value in function.assigned.get(owner, ()):
            if line <= call.lineno or not isinstance(value, ast.Call) or dotted(value.func) != kind:
                continue
            again = any(line < other.lineno for other, name, _ in _optimizers(module) if name == owner)
            if owner not in used_in(value) and not again:
                words = f"{owner} is made again after the optimizer of line {call.lineno} got its parameters"
                yield Sighting(line, f"{owner} = {kind}(...)", f"{words}: the new ones are not trained")
                break


def _scaled_elsewhere(module: Module, flow: LoopFlow) -> LoopEvent | None:
    """The scaled backward pass in another method of the class of a function that has none and calls no `unscale_`."""
    owner = flow.function.owner
    if owner is None or flow.of("backward") or "unscale" in module.text:
        return None
    others = [each for each in all_flows(module) if each.function.owner is owner]
    return next((event for each in others for event in each.of("backward") if event.scaled), None)


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


def _in_handler(event: LoopEvent) -> bool:
    return any(test.startswith("except ") for test, _ in event.around.arms)


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


def _optimizers(module: Module) -> Iterator[tuple[ast.Call, str, Function]]:
    """Calls that make an optimizer from `NAME.parameters()`, the name, and the function they are in."""
    for leaf in ("Adam", "AdamW", "SGD", "RMSprop", "NAdam", "RAdam", "Adagrad", "Adamax", "Adafactor"):
        for call, place in module.sites(leaf):
            owner = receiver_of(call.args[0], "parameters") if call.args else None
            if owner is not None and (name := dotted(owner)):
                yield call, name, place.function


def _freezings(module: Module, owner: str, function: Function) -> Iterator[int]:
    """The lines of a function that freeze all parameters of a model, whatever else happens."""
    for call, place in module.sites("requires_grad_"):
        frozen = receiver_of(call, "requires_grad_")
        off = bool(call.args) and module.value(call.args[0]) is False
        here = place.function is function and not place.conditional
        if off and here and frozen is not None and dotted(frozen) == owner:
            yield call.lineno
    for loop in function.node.body if isinstance(function.node.body, list) else ():
        over = receiver_of(loop.iter, "parameters") if isinstance(loop, ast.For) and len(loop.body) == 1 else None
        text = ast.unparse(loop) if over is not None and dotted(over) == owner else ""
        if "requires_grad" in text and "False" in text:
            yield loop.lineno


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
