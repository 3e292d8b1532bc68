"""A model as it was made: the scale of its weights and layers, its first loss, its gradients after one backward pass.

The first loss is compared with what it should be. Gradients may be missing, dead, exploding or vanishing along the
depth; units may be dead.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from nantrap import finite
from nantrap.doctor.preflight.report import PreflightCheck
from nantrap.doctor.preflight.subject import Subject, quiet
from nantrap.incident.wording import some_of
from nantrap.thresholds import LARGE_GAIN_BEFORE_TRAINING

if TYPE_CHECKING:
    from nantrap.problems import Severity

_GROWTH = 1e3
_EXPLODING = 1e4
_DEAD_SHARE = 0.5
_LATER = 4
"""Steps after which a gradient behind layers of zeros must have come: one for each such layer on its path."""
_RECTIFIERS = (nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.Hardswish, nn.Threshold)


def check_weights(subject: Subject) -> PreflightCheck:
    """Non-finite, far too large, constant or repeated weights. A usual initialisation has a relative scale of 0.5-2."""
    bad, large, constant, repeated = [], [], [], []
    scales: dict[str, float] = {}
    embeddings = {id(m.weight) for m in subject.model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))}
    for name, parameter in subject.model.named_parameters():
        dense = finite.as_dense(parameter)
        if dense is None:
            continue
        values = dense.abs() if dense.is_complex() else dense.float()
        if not bool(values.isfinite().all()):
            bad.append(name)
            continue
        if values.dim() < 2 or values.numel() < 2 or id(parameter) in embeddings:
            continue
        fan_in = math.prod(values.shape[1:])
        if fan_in < 2:  # the magnitudes of weight normalisation: one number per unit, all 1 at first
            continue
        scales[name] = float(values.std()) * math.sqrt(fan_in)
        if scales[name] > LARGE_GAIN_BEFORE_TRAINING:
            large.append(f"{name} ({scales[name]:.3g})")
        if float(values.min()) == float(values.max()):
            if float(values.flatten()[0]) != 0.0:  # zero on purpose is common, one other value is not
                constant.append(name)
        elif _has_equal_rows(values):
            repeated.append(name)
    used = [scale for scale in scales.values() if scale > 0]
    spread = f"{len(scales)} weights, relative scale {min(used):.2g} to {max(used):.2g}" if used else "no weight matrix"
    values_of = {"scales": scales, "bad": bad, "large": large, "constant": constant, "repeated": repeated}
    drawn = "units with equal weights stay equal; draw them at random"
    problems: tuple[tuple[list[str], Severity, str, str], ...] = (
        (bad, "error", "not finite", "initialise every parameter; torch.empty does not"),
        (large, "warning", "far too large", "divide the deviation by the square root of the number of inputs"),
        (constant, "warning", "one value everywhere", drawn),
        (repeated, "warning", "rows that are equal", drawn),
    )
    for names, severity, words, help_text in problems:
        if names:
            text = f"{words}: {some_of(names)}"
            return PreflightCheck("initialisation", severity, text, help_text, values_of)
    return PreflightCheck("initialisation", "ok", spread, data=values_of)


def check_activations(subject: Subject) -> PreflightCheck:
    """How the scale of the values changes along the model, in the order in which the layers run."""
    fresh = subject.fresh()
    model = fresh.model
    scales: dict[str, float] = {}
    handles = []
    for name, module in model.named_modules():
        if name and not list(module.children()):

            def note(_module: nn.Module, _args: Any, output: Any, name: str = name) -> None:
                if isinstance(output, Tensor) and output.is_floating_point() and output.numel() > 1:
                    scales.setdefault(name, float(output.detach().float().std()))

            handles.append(module.register_forward_hook(note))
    torch.manual_seed(0)
    with quiet(), torch.no_grad():
        fresh.total_loss(subject.batch)
    for handle in handles:
        handle.remove()
    known = {name: scale for name, scale in scales.items() if math.isfinite(scale) and scale > 0}
    values = {"scales": scales}
    if len(known) < 2:
        return PreflightCheck("activation scale", "unjudged", "fewer than two layers to compare", data=values)
    first, largest = next(iter(known)), max(known, key=lambda name: known[name])
    text = f"deviation {known[first]:.3g} after {first}, largest {known[largest]:.3g} after {largest}"
    if known[largest] > _GROWTH * max(known[first], 1e-3):
        help_text = "normalise, or initialise with a smaller gain"
        return PreflightCheck("activation scale", "warning", text, help_text, values)
    return PreflightCheck("activation scale", "ok", text, data=values)


def check_first_loss(subject: Subject) -> PreflightCheck:
    """A new classifier guesses: its loss is near the logarithm of the number of classes."""
    fresh = subject.fresh()
    torch.manual_seed(0)  # as in the step of the check before: the same loss twice
    with quiet(), torch.no_grad(), _LossWatch() as watch:
        loss = float(fresh.total_loss(subject.batch))
    expected, reason = subject.expected_loss, "given by the factory"
    if expected is None and len(watch.classes) == 1:
        expected = math.log(watch.classes[0])
        reason = f"ln {watch.classes[0]:,}"
    values = {"loss": loss, "expected": expected}
    if not math.isfinite(loss):
        return PreflightCheck("first loss", "error", f"{loss}", data=values)
    if expected is None:
        return PreflightCheck("first loss", "ok", f"{loss:.4g}; no expectation for this kind of loss", data=values)
    text = f"{loss:.4g}, expected about {expected:.3g} ({reason})"
    if abs(loss - expected) > max(1.0, 0.5 * abs(expected)):
        help_text = "check the scale of the logits, the temperature and the labels"
        return PreflightCheck("first loss", "warning", text, help_text, values)
    return PreflightCheck("first loss", "ok", text, data=values)


class _LossWatch(TorchFunctionMode):
    """Notes how many classes the cross-entropies of a step have."""

    def __init__(self) -> None:
        super().__init__()
        self.classes: list[int] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        logits = args[0] if args and isinstance(args[0], Tensor) else None
        if logits is not None and func is functional.cross_entropy and logits.dim() > 0:
            self.classes.append(int(logits.shape[1 if logits.dim() > 1 else 0]))
        elif logits is not None and func is functional.binary_cross_entropy_with_logits:
            self.classes.append(2)
        return func(*args, **(kwargs or {}))


def _has_equal_rows(values: Tensor) -> bool:
    rows = values.flatten(1)
    if rows.shape[0] < 2 or rows.shape[1] < 2 or rows.numel() > 50_000_000:
        return False
    nonzero = rows[rows.abs().amax(dim=1) > 0]
    return bool(nonzero.shape[0] > 1 and torch.unique(nonzero, dim=0).shape[0] < nonzero.shape[0])


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
        gradient = finite.readable(parameter.grad)  # of a sparse one those that it has
        size = 0.0 if gradient is None else float(gradient.float().square().mean().sqrt())
        sizes[name] = size
        if size == 0.0:
            dead.append(name)
    along = [sizes[f"{name}.weight" if name else "weight"] for name in order if sizes.get(f"{name}.weight", 0.0) > 0]
    ratio = max(along[0] / along[-1], 1e-30) if len(along) > 1 and all(map(math.isfinite, along)) else 1.0
    values: dict[str, Any] = {"sizes": sizes, "missing": missing, "dead": dead, "first_to_last": ratio}
    name = "gradient flow"
    if missing:
        text = f"no gradient reaches {some_of(missing)} ({len(missing)} of {len(sizes) + len(missing)})"
        help_text = "a detach, an unused layer, or a branch this batch skips"
        return PreflightCheck(name, "warning", text, help_text, values)
    if len(dead) == len(sizes):
        return PreflightCheck(name, "error", "every gradient is zero", "nothing can be learned", values)
    if not 1 / _EXPLODING < ratio < _EXPLODING:
        word = "grow" if ratio > 1 else "vanish"
        text = f"gradients {word} by {max(ratio, 1 / ratio):.1e} from the last layer to the first"
        return PreflightCheck(name, "warning", text, "normalise, add residual paths, or change the gain", values)
    text = f"{len(sizes)} parameters, first to last layer ×{ratio:.2g}"
    if dead:
        values["dead_later"] = still = _still_dead(subject, dead)
        if still:
            text = f"zero gradient in {some_of(still)} ({len(still)} of {len(sizes)}), also after {_LATER} steps"
            return PreflightCheck(name, "warning", text, "dead units, or a path that is multiplied by zero", values)
        late = f"{len(dead)} of them get a gradient only after the first steps"
        text = f"{len(sizes)} parameters; {late}, since they are behind a layer that begins at zero"
    return PreflightCheck(name, "ok", text, data=values)


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
    worst = max(units, key=lambda name: units[name])
    if units[worst] > _DEAD_SHARE:
        text = f"{units[worst]:.0%} of the units of {worst} never fire on this batch"
        help_text = "smaller learning rate, other bias, or a leaky rectifier"
        return PreflightCheck("dead units", "warning", text, help_text, units)
    text = f"at most {units[worst]:.0%} of a layer never fire on this batch"
    return PreflightCheck("dead units", "ok", text, data=units)


def _counter(units: dict[str, float], name: str) -> Any:
    """A hook that notes the share of units that never fire."""

    def count(_module: nn.Module, _args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.dim() > 1:
            # Channels of a convolution are dimension 1, units of a linear layer are the last one.
            axis = 1 if output.dim() in (4, 5) else output.dim() - 1
            others = [dim for dim in range(output.dim()) if dim != axis]
            units[name] = float((output.detach() <= 0).float().amin(dim=others).mean())

    return count
