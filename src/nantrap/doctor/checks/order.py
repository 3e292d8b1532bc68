"""Checks of source code: the order of clipping, stepping and clearing (NT855, NT856, NT871, NT872)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nantrap.doctor.checks.registry import Sighting, source_check
from nantrap.doctor.repository import Repository
from nantrap.doctor.source.flow import StepEvent, StepFlow, follows, is_optimizer, training_flows
from nantrap.doctor.source.module import Module


@source_check("clip_before_unscale")
def clip_before_unscale(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Gradients are clipped while they are still multiplied by the loss scale."""
    seen: set[int] = set()
    for flow in training_flows(module):
        unscales = flow.of("unscale")
        steps = [event for event in flow.of("step") if event.scaled]
        for clip in flow.of("clip"):
            if clip.managed or clip.line in seen or _clips_master(clip.node):
                continue
            for backward in flow.of("backward"):
                if not backward.scaled or not follows(backward, clip) or not any(follows(clip, step) for step in steps):
                    continue
                if any(follows(backward, other) and follows(other, clip) for other in unscales):
                    continue
                if any(follows(backward, step) and follows(step, clip) for step in steps):
                    continue  # the step came first: that is another fault
                seen.add(clip.line)
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
    seen: set[int] = set()
    for flow in training_flows(module):
        steps, backwards = flow.of("step"), flow.of("backward")
        for clip in flow.of("clip"):
            before = [
                s for s in steps if follows(s, clip) and not any(follows(s, b) and follows(b, clip) for b in backwards)
            ]
            if not before or clip.line in seen:
                continue
            if not any(follows(b, before[-1]) for b in backwards):
                continue
            later = [
                s for s in steps if follows(clip, s) and not any(follows(clip, b) and follows(b, s) for b in backwards)
            ]
            if later:
                continue
            seen.add(clip.line)
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
    if "zero_grad" in module.text or "grad = None" in module.text or "set_to_none" in module.text:
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
        )


@source_check("zero_grad_before_step")
def zero_grad_before_step(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Gradients are cleared between backward and step."""
    seen: set[int] = set()
    for flow in training_flows(module):
        backwards = flow.of("backward")
        steps = flow.of("step")
        for clear in flow.of("zero_grad"):
            if clear.line in seen or not any(follows(b, clear) for b in backwards):
                continue
            if any(
                follows(s, clear) and not any(follows(s, b) and follows(b, clear) for b in backwards)
                for s in steps
                if s.receiver == clear.receiver
            ):
                continue  # it was stepped already
            for step in steps:
                same = step.receiver == clear.receiver or (
                    not is_optimizer(module, clear.receiver) and _only_one(steps)
                )
                if same and follows(clear, step) and not any(follows(clear, b) and follows(b, step) for b in backwards):
                    seen.add(clear.line)
                    yield Sighting(
                        "high",
                        clear.line,
                        clear.receiver,
                        f"{clear.receiver or 'the'}.zero_grad() is between backward and the step of line "
                        f"{step.line}: the step sees no gradient",
                        "clear after the step",
                    )
                    break


def _clips_master(node: ast.AST) -> bool:
    return "master_params" in ast.unparse(node)


def _only_one(steps: list[StepEvent]) -> bool:
    return len({step.receiver for step in steps}) == 1


def _outermost(flows: list[StepFlow]) -> list[StepFlow]:
    """One flow for each step, the smallest that has it: a helper's is part of its caller's."""
    chosen: list[StepFlow] = []
    lines: set[int] = set()
    for flow in sorted(flows, key=lambda each: len(each.events)):
        at = {event.line for event in flow.of("step")}
        if not at & lines:
            chosen.append(flow)
            lines |= at
    return chosen


def _cleared_elsewhere(module: Module, repository: Repository) -> bool:
    return any(other is not module and "zero_grad" in other.text for other in repository.modules)


def _clears(flow: StepFlow) -> bool:
    return bool(flow.of("zero_grad"))
