"""The calls of PyTorch that every step of a script makes: `zero_grad`, `backward`, `clip_grad_norm_`, `step`, `item`.

Everything else that `nantrap run` replaces is rare, and has files of its own. These run in every step, so each is one
function: it looks whether the call is the script's own and concerns a guard, passes it on to the `ScriptLoop`, or makes
the call of PyTorch at once.

A script that handles a bad loss itself tests it first. So each scalar with a graph that it asks about (`isnan`,
`.item()`, `.data`, `loss != loss`, ...) after a forward pass is kept until the backward pass. One that is not finite
and never gets a backward pass was abandoned by the script: that is an incident like any other, except that the script
skipped the batch. Nothing is read here that the script did not read itself, until the script abandons a step.
"""

from __future__ import annotations

import functools
import math
import sys
import warnings
from collections.abc import Callable
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from nantrap import finite
from nantrap.guard.guard import is_guarded
from nantrap.launch.closures import step_with_closure
from nantrap.launch.loop import ScriptLoop
from nantrap.launch.loops import Loops
from nantrap.launch.patches import Patches
from nantrap.launch.resuming import look_at_resume
from nantrap.launch.roots import innermost
from nantrap.launch.scalers import Scaled
from nantrap.launch.torch_private import compiler_listens, not_examined, not_traced
from nantrap.locate.step import active_replays

_QUESTIONS = ("isnan", "isinf", "isfinite")
_ANSWERS = ("item", "__float__", "detach", "tolist", "__ne__")


def install(patches: Patches, loops: Loops, scaled: Scaled) -> None:
    """Put the functions in their places. Steps of optimizer classes are wrapped when their first instance is made."""
    patches.replace_all(Optimizer, "zero_grad", functools.partial(_zero_grad, loops))
    patches.replace(nn.Module, "zero_grad", functools.partial(_zero_grad, loops))
    patches.replace(torch.autograd, "backward", functools.partial(_backward, loops, scaled))
    patches.replace(nn.utils.clip_grad, "clip_grad_norm_", functools.partial(_clip_grad_norm, loops))
    patches.put(nn.utils, "clip_grad_norm_", nn.utils.clip_grad.clip_grad_norm_)
    for name in _QUESTIONS:
        patches.replace(torch, name, functools.partial(_asking, loops))
        patches.replace(torch, name, functools.partial(_testing, loops))
        patches.replace(Tensor, name, functools.partial(_testing, loops))
    for name in (*_QUESTIONS, *_ANSWERS):
        patches.replace(Tensor, name, functools.partial(_asking, loops))
    patches.put(Tensor, "data", _asking_data(loops, Tensor.data))


def install_steps(patches: Patches, loops: Loops) -> None:
    """Of the classes that have an instance: torch has put its own wrapper around those, and goes first."""
    make = functools.partial(_step, loops)
    patches.replace_all(Optimizer, "step", make, only=lambda function: getattr(function, "hooked", False))


def _zero_grad(loops: Loops, original: Any) -> Any:
    """The script clears gradients: in the middle of a step, that gives the step up."""
    activity, guards = loops.activity, loops.guards
    inherited = getattr(original, "__qualname__", "") == "Optimizer.zero_grad"

    @functools.wraps(original)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or compiler_listens():
            return untraced(self, *args, **kwargs)
        if not activity.busy and not active_replays:
            for loop in guards:
                if loop.collector.window is not None and _clears(self, loop, inherited=inherited):
                    loop.clears()
        return original(self, *args, **kwargs)

    untraced = not_traced(zero_grad)
    return zero_grad


def _backward(loops: Loops, scaled: Scaled, original: Any) -> Any:
    """`torch.autograd.backward`, which `Tensor.backward` calls."""
    activity, guards, module_calls = loops.activity, loops.guards, loops.module_calls

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        """Passes the loss on to every guard whose parameters it reaches; the script's own call runs inside them."""
        if is_compiling() or compiler_listens():
            untraced(tensors, *args, **kwargs)
            return
        if activity.busy or active_replays or kwargs.get("inputs") is not None:
            original(tensors, *args, **kwargs)
            return
        if tensors.__class__ is Tensor and not scaled.last:
            loss = tensors if tensors.numel() == 1 and tensors.requires_grad else None
        else:
            loss = scaled.unscaled(tensors)
        if loss is None:
            original(tensors, *args, **kwargs)
            return
        if module_calls.watched or not loops.known:
            loops.notice_backward(loss)
        if loops.replicas.wrapped:
            loops.replicas.backward()
        run = functools.partial(original, tensors, *args, **kwargs)
        reached = guards if len(guards) <= 1 else loops.loops_below(loss)
        if not reached:
            loops.asked.replaced = bool(loops.asked.tensors)
        alone = len(reached) == 1
        for loop in reached:
            run = functools.partial(loop.backward, loss, run, alone)
        run()

    untraced = not_traced(backward)
    return not_examined(backward)  # `Tensor.backward` is never traced, but calls this as any other Python function


def _clip_grad_norm(loops: Loops, original: Any) -> Any:
    """The script clips: the norm is taken once, for the script and for the guard."""
    activity, guards = loops.activity, loops.guards

    @functools.wraps(original)
    def clip_grad_norm_(
        parameters: Any,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> Any:
        """Clips as torch does, and keeps the norm for the guard. Gradients that are not finite are left as they are."""
        if is_compiling():  # our code would break the compiled graph in two
            return original(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
        if compiler_listens():
            return untraced(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
        if activity.busy or active_replays:
            return original(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
        given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        loop = guards[0] if len(guards) == 1 else None
        if loop is None or len(given) != len(loop.parameters) or not all(map(is_, given, loop.parameters)):
            loop = loops.loop_owning(given)
        if loop is None:
            return original(given, max_norm, norm_type, error_if_nonfinite, foreach)
        # a norm that is not finite is handled by the guard: it refuses the step, whatever the gradients were clipped to
        gradients = []
        on_host, alike = loop.keeps_bad_gradients, norm_type == 2.0 and foreach is None
        for parameter in given:
            gradient = parameter.grad
            if gradient is not None:
                gradients.append(gradient)
                on_host = on_host and gradient.__class__ is Tensor and gradient.is_cpu and not gradient.is_sparse
                alike = alike and gradient.dtype is gradients[0].dtype and gradient.layout is torch.strided
        if not on_host:
            norm = original(given, max_norm, norm_type, False, foreach)
            loop.driver.clipped_norm = norm
            return norm
        if alike and gradients:
            norm = finite.norm_of_alike(gradients)
        else:
            norm = get_total_norm(gradients, norm_type, False, foreach)
        loop.driver.clipped_norm = norm
        value = finite.value_of(norm)
        # not finite: clipping would turn Inf into NaN (Inf × 0) and hide what happened. Small: the coefficient is
        # clamped to 1.0, and x * 1.0 is x
        if not math.isfinite(value):
            loop.bad_norm()
        elif value + 1e-6 >= float(max_norm) * (1 - 1e-6):
            clip_grads_with_norm_(given, max_norm, norm, foreach)
        return norm

    untraced = not_traced(clip_grad_norm_)
    return clip_grad_norm_


def _step(loops: Loops, original: Any) -> Any:
    """The step of an optimizer: made if all is well."""
    activity, known = loops.activity, loops.known

    @functools.wraps(original)
    def step(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Lets the optimizer's guard judge the step before it is made."""
        if is_compiling() or compiler_listens():
            return untraced(self, *args, **kwargs)
        if activity.busy or active_replays:
            return original(self, *args, **kwargs)
        entry = known.get(id(self))
        if entry is None or entry.optimizer() is not self or is_guarded(self):
            return original(self, *args, **kwargs)
        loop = entry.loop
        if loop is None or entry.resumed:
            loop = loops.loop_of(self)
            if loop is None:
                return original(self, *args, **kwargs)
            look_at_resume(loops, self)
        closure = args[0] if args else kwargs.get("closure")
        if closure is None:
            return loop.step(functools.partial(original, self, *args, **kwargs))
        others = {name: value for name, value in kwargs.items() if name != "closure"}
        return step_with_closure(loop, lambda used: original(self, used, *args[1:], **others), closure)

    untraced = not_traced(step)
    return step


def _asking(loops: Loops, original: Any) -> Any:
    """A question about one tensor, or a way to read it. An optimizer asks for each of its parameters."""
    asked, guards = loops.asked, loops.guards
    warns = [True] if original.__name__ == "__float__" else []
    copies = original.__name__ == "detach"

    @functools.wraps(original)
    def ask(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Notes a tensor that the script reads, then reads it."""
        if is_compiling():  # a traced tensor has no values yet
            return original(tensor, *args, **kwargs)
        if asked.open or not guards:
            _look(loops, tensor, copies=copies)
        if warns and isinstance(tensor, Tensor) and tensor.requires_grad and torch.is_grad_enabled():
            warns.clear()
            return _with_its_warning(functools.partial(original, tensor, *args, **kwargs))
        return original(tensor, *args, **kwargs)

    return ask


def _testing(loops: Loops, original: Any) -> Any:
    """A test of data, outputs or gradients: a script may leave a bad batch out, or repair bad gradients."""
    asked, guards, batches = loops.asked, loops.guards, loops.batches

    @functools.wraps(original)
    def test(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Notes an output, a gradient or a batch that the script tests, then tests it."""
        if not isinstance(tensor, Tensor) or is_compiling() or not guards or loops.is_own_call():
            return original(tensor, *args, **kwargs)
        if tensor.requires_grad:
            if asked.open and tensor.numel() > 1:
                asked.note_output(tensor)
        elif not loops.test_gradient(tensor) and batches.last:
            asked.note_data(tensor, batches)
        return original(tensor, *args, **kwargs)

    return test


def _with_its_warning(call: Callable[[], Any]) -> Any:
    """torch warns once that a tensor with a graph becomes a number, and names the line of its caller: not ours."""
    frame = sys._getframe(2)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = call()
    for each in said:
        registry = frame.f_globals.setdefault("__warningregistry__", {})
        warnings.warn_explicit(each.message, each.category, frame.f_code.co_filename, frame.f_lineno, registry=registry)
    return result


def _asking_data(loops: Loops, plain: Any) -> property:
    """The same for `tensor.data`."""
    asked = loops.asked

    def get_data(tensor: Any) -> Any:
        if asked.open and not is_compiling():
            _look(loops, tensor, copies=True)
        return plain.__get__(tensor)

    return property(get_data, plain.__set__, doc=plain.__doc__)


def _look(loops: Loops, tensor: Any, *, copies: bool) -> None:
    """The script asks about a tensor: a loss that it may abandon, or a value of plain tensors."""
    if not isinstance(tensor, Tensor) or not tensor.requires_grad or loops.is_own_call():
        return
    if loops.asked.open:
        loops.asked.note(tensor, copies=copies)
    else:
        loops.look(tensor)


def _clears(owner: Any, loop: ScriptLoop, *, inherited: bool) -> bool:
    """Whether `owner.zero_grad()` clears the gradients of this guard.

    Its optimizer does, and a module that holds its model. The wrapper of a framework does where it inherits torch's own
    `zero_grad` (Lightning's); one with a method of its own (Accelerate's) calls the optimizer's, or leaves it out.
    """
    if isinstance(owner, nn.Module):
        return any(module is loop.model for module in owner.modules())
    return owner is loop.optimizer or (inherited and innermost(owner) is loop.optimizer)
