"""Compiled against eager: the same step both ways, its value and its gradients, narrowed to a module.

`torch.compile` may round differently, and that is no finding. So the eager step is made in float64 as well where that
is possible: how far the eager one is from it shows what rounding does to this model. Only a difference that is far
larger is reported. Then each part of the model is compiled alone, and the part that differs is searched for in turn.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from nantrap import finite
from nantrap.doctor.data.readers.factory import described
from nantrap.doctor.preflight.report import PreflightCheck
from nantrap.doctor.preflight.subject import Subject, quiet
from nantrap.locate.batch import tensors_of, with_tensor
from nantrap.locate.replay.replay import compiled_frames

Backend = str | Callable[..., Any]
_NAME = "compiled"
_ROUNDING = {torch.float16: 5e-2, torch.bfloat16: 5e-2}
_SINGLE = 1e-3
"""A gradient that is away by this part of its own size is more than rounding in float32."""
_OF_EXACT = 30.0
"""How much farther than the eager one from float64 the compiled one may be."""
_MOST_PARTS = 64


@dataclass(slots=True)
class _Step:
    """What a step gave: its loss, and each gradient by name."""

    loss: float
    gradients: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Difference:
    """Where two steps differ most: the name of the value, and how far, as a part of its size."""

    name: str
    share: float


def check_compiled(subject: Subject, backend: Backend) -> PreflightCheck:
    """One step eagerly and one compiled, from the same weights, batch and random numbers.

    Args:
        subject: the model.
        backend: of `torch.compile`.
    """
    eager = _step(subject)
    exact = _in_float64(subject)
    before = compiled_frames()
    try:
        compiled = _step(subject, backend, ("",))
    except Exception as error:
        return PreflightCheck(_NAME, "warning", f"not compared: torch.compile raised {described(error)}")
    if compiled_frames() == before:
        return PreflightCheck(_NAME, "unjudged", "nothing was compiled: the loss does not call the model itself")
    largest = _largest(eager, compiled)
    allowed = {"loss": _allowed("loss", eager, exact)}
    allowed |= {f"gradient of {name}": _allowed(name, eager, exact) for name in eager.gradients}
    found = _beyond(eager, compiled, allowed)
    values = {"largest": largest.share, "of": largest.name, "loss": eager.loss, "compiled_loss": compiled.loss}
    if found is None:
        words = f"loss and {len(eager.gradients)} gradients as eager; the largest difference is {largest.share:.1g} of"
        return PreflightCheck(_NAME, "ok", f"{words} {largest.name}", data=values)
    guilty = _narrowed(subject, backend, eager, allowed)
    where = _in_words(subject.model, guilty) if guilty else "no part of the model differs when it is compiled alone"
    limit = allowed[found.name]
    away = f"differs from eager by {found.share:.2g} of its size (rounding explains up to {limit:.1g})"
    if found.share == float("inf"):
        away = "is not finite at the same places as eager, or is missing"
    return PreflightCheck(
        _NAME,
        "error",
        f"{found.name} {away}: {where}",
        f"put @torch.compiler.disable on the forward of {guilty or 'the model'} until its cause is known; "
        'backend="aot_eager" shows whether the code generator is the cause',
        {**values, "module": guilty, "differs": found.name, "share": found.share},
    )


def _step(subject: Subject, backend: Backend | None = None, parts: tuple[str, ...] = ()) -> _Step:
    """One forward and backward pass of fresh copies, with these parts of the model compiled."""
    fresh = subject.fresh()
    if backend is not None:
        torch.compiler.reset()
        # random numbers as eager draws them, so that dropout is the same
        options = {"options": {"fallback_random": True}} if backend == "inductor" else {}
        for name in parts:
            fresh.model.get_submodule(name).compile(backend=backend, **options)
    torch.manual_seed(0)
    try:
        with quiet():
            loss = fresh.total_loss(fresh.batch)
            loss.backward()
    finally:
        if backend is not None:
            torch.compiler.reset()
    given = {name: p.grad for name, p in fresh.model.named_parameters() if p.grad is not None}
    dense = {name: finite.as_dense(gradient) for name, gradient in given.items()}  # an embedding may have sparse ones
    return _Step(float(loss.detach()), {name: each for name, each in dense.items() if each is not None})


def _in_float64(subject: Subject) -> _Step | None:
    """The eager step in float64; `None` where the model has operations that it has not, or draws random numbers."""
    if subject.bound:  # its loss uses a model that was made with it
        return None
    try:
        fresh = subject.fresh()
        batch = copy.deepcopy(subject.batch)
        for _, tensor in list(tensors_of(batch)):
            if tensor.is_floating_point():
                batch = with_tensor(batch, tensor, tensor.double())
        return _step(replace(fresh, model=fresh.model.double(), batch=batch, again=None))
    except Exception:  # then the usual rounding counts
        return None


def _allowed(name: str, eager: _Step, exact: _Step | None) -> float:
    """How much of a value may be rounding."""
    value = _value(eager, name)
    usual = _ROUNDING.get(value.dtype, _SINGLE)
    if exact is None or (name != "loss" and name not in exact.gradients):
        return usual
    away = _share(_value(exact, name), value)
    return max(usual, _OF_EXACT * away) if away != float("inf") else usual


def _value(step: _Step, name: str) -> Tensor:
    return torch.tensor(step.loss, dtype=torch.float64) if name == "loss" else step.gradients[name]


def _share(one: Tensor, other: Tensor) -> float:
    """How far two values are from each other, as a part of the larger of them."""
    if not bool(torch.equal(one.isfinite(), other.isfinite())):
        return float("inf")
    kept = one.isfinite()
    one, other = (each.to(torch.complex128 if each.is_complex() else torch.float64) for each in (one, other))
    away = torch.linalg.vector_norm((one - other)[kept])
    size = torch.maximum(torch.linalg.vector_norm(one[kept]), torch.linalg.vector_norm(other[kept]))
    return float(away / size.clamp_min(1e-30))


def _differences(eager: _Step, compiled: _Step) -> Iterator[_Difference]:
    """How far each value of the compiled step is from the eager one. One of nothing but rounding has no size."""
    total = max([float(g.abs().max()) for g in eager.gradients.values() if g.numel()], default=0.0)
    yield _Difference("loss", _share(_value(eager, "loss"), _value(compiled, "loss")))
    for name, gradient in eager.gradients.items():
        other = compiled.gradients.get(name)
        if other is None:
            yield _Difference(f"gradient of {name}", float("inf"))
        elif not gradient.numel() or max(float(gradient.abs().max()), float(other.abs().max())) > 1e-6 * total:
            yield _Difference(f"gradient of {name}", _share(gradient, other))


def _largest(eager: _Step, compiled: _Step) -> _Difference:
    return max(_differences(eager, compiled), key=lambda each: each.share)


def _beyond(eager: _Step, compiled: _Step, allowed: dict[str, float]) -> _Difference | None:
    """The largest difference of those that are more than rounding."""
    found = [each for each in _differences(eager, compiled) if each.share > allowed[each.name]]
    return max(found, key=lambda each: each.share, default=None)


def _narrowed(subject: Subject, backend: Backend, eager: _Step, allowed: dict[str, float]) -> str | None:
    """The smallest part of the model that differs when it alone is compiled; empty for the model itself, `None` where
    no part does."""
    left = _MOST_PARTS

    def differs(name: str) -> bool:
        nonlocal left
        left -= 1
        try:
            return left >= 0 and _beyond(eager, _step(subject, backend, (name,)), allowed) is not None
        except Exception:  # a part that cannot be compiled alone is not compared
            return False

    guilty = ""
    while True:
        inner = next((name for name in _parts(subject.model, guilty) if differs(name)), None)
        if inner is None:
            return guilty
        guilty = inner


def _parts(model: nn.Module, name: str) -> Iterator[str]:
    """The parts of a module that are called: its children, and those of a list of modules in its place."""
    for child, module in model.get_submodule(name).named_children():
        path = f"{name}.{child}" if name else child
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            yield from _parts(model, path)
        else:
            yield path


def _in_words(model: nn.Module, name: str) -> str:
    """`it begins in layers.1 (Attention)`."""
    module = model.get_submodule(name)
    inner = any(True for _ in module.children())
    kind = type(module).__name__
    place = f"{name} ({kind})" if name else f"the model itself ({kind})"
    return f"narrowed to {place}" + (", of which no part differs alone" if inner else "")
