"""Gradient flow after one backward pass: missing, dead, exploding or vanishing along the depth; dead units."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from nantrap.doctor.preflight.report import PreflightCheck
from nantrap.doctor.preflight.subject import Subject
from nantrap.doctor.preflight.trial import quiet
from nantrap.incident.wording import some_of

_EXPLODING = 1e4
_DEAD_SHARE = 0.5
_LATER = 4
"""Steps after which a gradient behind layers of zeros must have come: one for each such layer on its path."""
_RECTIFIERS = (nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.Hardswish, nn.Threshold)


def check_gradients(subject: Subject) -> tuple[PreflightCheck, PreflightCheck]:
    """The gradient of every parameter, and the units that never fire on this batch."""
    fresh = subject.fresh()
    model, optimizer = fresh.model, fresh.optimizer
    units: dict[str, float] = {}
    handles = [
        module.register_forward_hook(_counter(units, name))
        for name, module in model.named_modules()
        if isinstance(module, _RECTIFIERS)
    ]
    order: list[str] = []
    for name, module in model.named_modules():
        if next(module.parameters(recurse=False), None) is not None:
            handles.append(module.register_forward_hook(lambda *_, name=name: order.append(name)))
    optimizer.zero_grad()
    torch.manual_seed(0)
    with quiet():
        fresh.total_loss(subject.batch).backward()
    for handle in handles:
        handle.remove()
    return _flow(fresh, list(dict.fromkeys(order))), _units(units)


def _flow(subject: Subject, order: list[str]) -> PreflightCheck:
    """Whether every parameter gets a gradient, and whether gradients vanish or explode from layer to layer."""
    model = subject.model
    missing, dead, sizes = [], [], {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:
            missing.append(name)
            continue
        size = float(parameter.grad.detach().float().square().mean().sqrt())
        sizes[name] = size
        if size == 0.0:
            dead.append(name)
    along = [sizes[f"{name}.weight" if name else "weight"] for name in order if sizes.get(f"{name}.weight", 0.0) > 0]
    ratio = max(along[0] / along[-1], 1e-30) if len(along) > 1 and all(map(math.isfinite, along)) else 1.0
    values: dict[str, Any] = {"sizes": sizes, "missing": missing, "dead": dead, "first_to_last": ratio}
    if missing:
        text = f"no gradient reaches {some_of(missing)} ({len(missing)} of {len(sizes) + len(missing)})"
        return PreflightCheck(
            "gradient flow", "warning", text, "a detach, an unused layer, or a branch this batch skips", values
        )
    if len(dead) == len(sizes):
        return PreflightCheck("gradient flow", "error", "every gradient is zero", "nothing can be learned", values)
    if not 1 / _EXPLODING < ratio < _EXPLODING:
        word = "grow" if ratio > 1 else "vanish"
        text = f"gradients {word} by {max(ratio, 1 / ratio):.1e} from the last layer to the first"
        return PreflightCheck(
            "gradient flow", "warning", text, "normalise, add residual paths, or change the gain", values
        )
    if dead:
        values["dead_later"] = still = _still_dead(subject, dead)
        if still:
            text = f"zero gradient in {some_of(still)} ({len(still)} of {len(sizes)}), also after {_LATER} steps"
            return PreflightCheck(
                "gradient flow", "warning", text, "dead units, or a path that is multiplied by zero", values
            )
        text = (
            f"{len(sizes)} parameters; {len(dead)} of them get a gradient only after the first steps, since they are "
            "behind a layer that begins at zero"
        )
        return PreflightCheck("gradient flow", "ok", text, data=values)
    return PreflightCheck(
        "gradient flow", "ok", f"{len(sizes)} parameters, first to last layer ×{ratio:.2g}", data=values
    )


def _still_dead(subject: Subject, dead: list[str]) -> list[str]:
    """Which gradients stay zero in the next steps. Behind a layer of zeros they do not: it is one for one step only."""
    parameters = dict(subject.model.named_parameters())
    still = list(dead)
    with quiet():
        for _ in range(_LATER):
            try:
                subject.optimizer.step()
            except TypeError:  # an optimizer that needs a closure
                break
            subject.optimizer.zero_grad()
            subject.total_loss(subject.batch).backward()
            gradients = {name: parameters[name].grad for name in still}
            still = [name for name, grad in gradients.items() if grad is None or not bool(grad.any())]
            if not still:
                break
    return still


def _units(units: dict[str, float]) -> PreflightCheck:
    """Whether too many units of a layer never fire."""
    if not units:
        return PreflightCheck("dead units", "unjudged", "no rectifier module in the model")
    dead = {name: share for name, share in units.items() if share > _DEAD_SHARE}
    if dead:
        worst = max(dead, key=lambda name: dead[name])
        text = f"{dead[worst]:.0%} of the units of {worst} never fire on this batch"
        return PreflightCheck(
            "dead units", "warning", text, "smaller learning rate, other bias, or a leaky rectifier", units
        )
    return PreflightCheck(
        "dead units", "ok", f"at most {max(units.values()):.0%} of a layer never fire on this batch", data=units
    )


def _counter(units: dict[str, float], name: str) -> Any:
    """A hook that notes the share of units that never fire."""

    def count(_module: nn.Module, _args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.dim() > 1:
            # Channels of a convolution are dimension 1, units of a linear layer are the last one.
            axis = 1 if output.dim() in (4, 5) else output.dim() - 1
            others = [dim for dim in range(output.dim()) if dim != axis]
            units[name] = float((output.detach() <= 0).float().amin(dim=others).mean())

    return count
