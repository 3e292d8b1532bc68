"""The calls of PyTorch that the steps of a script make, and the questions that it asks about its tensors.

`zero_grad`, `backward`, `clip_grad_norm_`, `step` and `item` run in every step, so each is one function: it looks
whether the call is the script's own and concerns a guard, passes it on to the `ScriptLoop`, or makes the call of
PyTorch at once. Optimizers are followed from their creation on, also third-party ones. Everything else that
`nantrap run` replaces is rare, and has files of its own.

A script that handles a bad loss itself tests it first. So each scalar with a graph that it asks about (`isnan`,
`.item()`, `.data`, `loss != loss`, ...) after a forward pass is kept until the backward pass (`AskedTensors`). One that
is not finite and never gets a backward pass was abandoned by the script: that is an incident like any other, except
that the script skipped the batch. Nothing is read here that the script did not read itself, until the script abandons a
step. Data that the script cleans with `nan_to_num`, and the beginning of an evaluation, are noticed as well.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
import warnings
from collections.abc import Callable
from operator import is_
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import LBFGS, Optimizer

from nantrap import finite
from nantrap.guard.closure import judge_evaluations
from nantrap.guard.guard import is_guarded
from nantrap.guard.state.members import current_rates
from nantrap.guard.window import Outcome, Window
from nantrap.launch.checkpointing import look_at_resume
from nantrap.launch.companions import Scaled
from nantrap.launch.patches import Patches
from nantrap.launch.registry import OptimizerRegistry
from nantrap.launch.roots import innermost
from nantrap.launch.script_loop import ScriptLoop
from nantrap.launch.torch_private import (
    AROUND_UNCOMPILED,
    compiled_as_before,
    compiler_listens,
    decorating,
    not_examined,
    not_traced,
)
from nantrap.locate.failure import active_replays
from nantrap.locate.python_private import current_frame
from nantrap.locate.source import is_installed, is_user_code

_PASSED_THROUGH = (__name__, Patches.__module__)
"""Where the functions are that stand in the place of PyTorch's; who called them has asked."""
_TESTS = ("isnan", "isinf", "isfinite")
_READS = ("item", "__float__", "detach", "tolist", "__ne__")


class OriginalStep(functools.partial[Any]):
    """The script's call of `optimizer.step`. Its class says that a reference to the optimizer in it is nantrap's."""


def install(patches: Patches, registry: OptimizerRegistry, scaled: Scaled) -> None:
    """Follow every optimizer from its creation on, and put the functions in their places.

    Steps of optimizer classes are wrapped when their first instance is made.
    """

    def made(original: Any, self: Optimizer, *args: Any, **kwargs: Any) -> None:
        _let_torch_wrap_first(type(self))
        original(self, *args, **kwargs)
        _install_steps(patches, registry)
        if innermost(self) is self and not registry.is_own_call():
            registry.enter(self)

    patches.wrap(Optimizer, "__init__", made)
    _install_steps(patches, registry)
    patches.replace_all(Optimizer, "zero_grad", functools.partial(_zero_grad, registry))
    patches.replace(nn.Module, "zero_grad", functools.partial(_zero_grad, registry))
    patches.replace(torch.autograd, "backward", functools.partial(_backward, registry, scaled))
    patches.replace(nn.utils.clip_grad, "clip_grad_norm_", functools.partial(_clip_grad_norm, registry))
    patches.put(nn.utils, "clip_grad_norm_", nn.utils.clip_grad.clip_grad_norm_)
    _install_questions(patches, registry)
    _install_handling(patches, registry)


def _install_steps(patches: Patches, registry: OptimizerRegistry) -> None:
    """Of the classes that have an instance: torch has put its own wrapper around those, and goes first."""
    make = functools.partial(_step, registry)
    patches.replace_all(Optimizer, "step", make, only=lambda function: getattr(function, "hooked", False))


def _install_questions(patches: Patches, registry: OptimizerRegistry) -> None:
    """Notice what the script asks about its tensors."""
    for name in _TESTS:
        patches.replace(torch, name, functools.partial(_asking, registry))
        patches.replace(torch, name, functools.partial(_testing, registry))
        patches.replace(Tensor, name, functools.partial(_testing, registry))
    for name in (*_TESTS, *_READS):
        patches.replace(Tensor, name, functools.partial(_asking, registry))
    patches.put(Tensor, "data", _asking_data(registry, Tensor.data))


def _install_handling(patches: Patches, registry: OptimizerRegistry) -> None:
    """Notice `nan_to_num` and `model.eval()`."""
    asked = registry.asked
    blocks = [torch.no_grad, torch.inference_mode]

    def replaced(original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensor, Tensor) and not registry.is_own_call() and not _asked_by_nantrap():
            if not tensor.requires_grad:
                if not registry.test_gradient(tensor):
                    registry.clean(tensor)
            elif asked.open:
                asked.note(tensor)
        return original(tensor, *args, **kwargs)

    def train(original: Any, self: Any, mode: bool = True) -> Any:
        if mode or registry.is_own_call():
            return original(self, mode)
        registry.record_abandoned()  # an evaluation follows: it must not see what a skipped batch left behind
        while blocks:  # PyTorch and the guard leave such blocks in every step of a training
            patches.replace(blocks.pop(), "__exit__", functools.partial(_ending, registry))
        return registry.evaluates(self, functools.partial(original, self, mode))

    for name in ("nan_to_num", "nan_to_num_"):
        patches.wrap(torch, name, replaced, compiled="plain")
        patches.wrap(Tensor, name, replaced, compiled="plain")
    patches.wrap(torch.nn.Module, "train", train, compiled="plain")
    patches.replace(decorating, "context_decorator", functools.partial(_decorating, registry))


def _ending(registry: OptimizerRegistry, original: Any) -> Any:
    """A block without gradients ends: what it has computed is looked at if it called a model."""

    @functools.wraps(original)
    def ended(self: Any, failed: Any, *error: Any) -> None:
        original(self, failed, *error)
        if failed is None and not (is_compiling() or compiler_listens()):
            code = sys._getframe(1).f_code
            if is_user_code(code) and not is_installed(code):
                registry.end_block()

    return ended


def _decorating(registry: OptimizerRegistry, original: Any) -> Any:
    """The script puts `@torch.no_grad()` on a function: what the function gives is looked at in an evaluation."""

    @functools.wraps(original)
    def decorate(context: Any, function: Any) -> Any:
        """The decorated function, watched if its context switches gradients off."""
        decorated = original(context, function)
        switched_off = isinstance(getattr(context, "__self__", None), (torch.no_grad, torch.inference_mode))
        if not switched_off or inspect.isgeneratorfunction(function):
            return decorated

        @functools.wraps(decorated)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or compiler_listens():
                return decorated(*args, **kwargs)
            call = functools.partial(decorated, *args, **kwargs)
            return registry.without_gradients(function, call, args, kwargs)

        return watched

    return decorate


def _zero_grad(registry: OptimizerRegistry, original: Any) -> Any:
    """The script clears gradients: in the middle of a step, that gives the step up."""
    activity, guards = registry.activity, registry.guards
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


def _clears(owner: Any, loop: ScriptLoop, *, inherited: bool) -> bool:
    """Whether `owner.zero_grad()` clears the gradients of this guard.

    Its optimizer does, and a module that holds its model. The wrapper of a framework does where it inherits torch's own
    `zero_grad` (Lightning's); one with a method of its own (Accelerate's) calls the optimizer's, or leaves it out.
    Another optimizer over some of the same parameters does: a script may use one after the other.
    """
    if isinstance(owner, nn.Module):
        return any(module is loop.model for module in owner.modules())
    inner = innermost(owner)
    if inner is not owner and not inherited:
        return False
    if inner is loop.optimizer or not isinstance(inner, Optimizer):
        return inner is loop.optimizer
    owned = {id(parameter) for group in inner.param_groups for parameter in group["params"]}
    return not owned.isdisjoint(map(id, loop.parameters))


def _backward(registry: OptimizerRegistry, scaled: Scaled, original: Any) -> Any:
    """`torch.autograd.backward`, which `Tensor.backward` calls."""
    activity, guards, module_calls = registry.activity, registry.guards, registry.module_calls

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
        if module_calls.watched or not registry.known:
            registry.notice_backward(loss)
        if registry.replicas.wrapped:
            registry.replicas.backward()
        run = functools.partial(original, tensors, *args, **kwargs)
        reached = guards if len(guards) <= 1 else registry.loops_below(loss)
        if not reached:
            registry.asked.replaced = bool(registry.asked.tensors)
        alone = len(reached) == 1
        for loop in reached:
            run = functools.partial(loop.backward, loss, run, alone)
        run()

    untraced = not_traced(backward)
    return not_examined(backward)  # `Tensor.backward` is never traced, but calls this as any other Python function


def _clip_grad_norm(registry: OptimizerRegistry, original: Any) -> Any:
    """The script clips: the norm is taken once, for the script and for the guard."""
    activity, guards = registry.activity, registry.guards

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
            loop = registry.loop_owning(given)
        if loop is None:
            return original(given, max_norm, norm_type, error_if_nonfinite, foreach)
        # a norm that is not finite is handled by the guard: it refuses the step, whatever the gradients were clipped to
        gradients = []
        ordinary, alike, on_host = loop.keeps_bad_gradients, norm_type == 2.0 and foreach is None, True
        for parameter in given:
            gradient = parameter.grad
            if gradient is not None:
                gradients.append(gradient)
                ordinary = ordinary and gradient.__class__ is Tensor and not gradient.is_sparse
                on_host = on_host and gradient.is_cpu
                alike = alike and gradient.dtype is gradients[0].dtype and gradient.layout is torch.strided
        if not ordinary:
            norm = original(given, max_norm, norm_type, False, foreach)
        elif not on_host:
            norm = get_total_norm(gradients, norm_type, False, foreach)
            clip_grads_with_norm_(given, max_norm, finite.zero_if_bad(norm), foreach)
        if not (ordinary and on_host):
            loop.driver.clipped_norm, loop.driver.clipped_to = norm, float(max_norm)
            return norm
        if alike and gradients:
            norm = finite.norm_of_alike(gradients)
        else:
            norm = get_total_norm(gradients, norm_type, False, foreach)
        loop.driver.clipped_norm, loop.driver.clipped_to = norm, float(max_norm)
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


def _step(registry: OptimizerRegistry, original: Any) -> Any:
    """The step of an optimizer: made if all is well."""
    activity, known = registry.activity, registry.known

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
            loop = registry.loop_of(self)
            if loop is None:
                return original(self, *args, **kwargs)
            look_at_resume(registry, self)
        closure = args[0] if args else kwargs.get("closure")
        if closure is None:
            caller = current_frame(1)
            update = original
            if caller.f_code.co_name == AROUND_UNCOMPILED:
                update = compiled_as_before(original, caller)
            return loop.step(OriginalStep(update, self, *args, **kwargs))
        others = {name: value for name, value in kwargs.items() if name != "closure"}
        return _step_with_closure(loop, lambda used: original(self, used, *args[1:], **others), closure)

    untraced = not_traced(step)
    return step


def _step_with_closure(loop: ScriptLoop, run: Callable[[Callable[[], Any]], Any], closure: Callable[[], Any]) -> Any:
    """What `optimizer.step(closure)` returns, where the step is judged first.

    The optimizer evaluates the loss itself, once or several times.

    Args:
        loop: the guard of the optimizer.
        run: the call itself; takes the closure that is to be used.
        closure: the script's.
    """
    if loop.stopped is not None:
        loop.refuse_again()
    optimizer = loop.optimizer
    if type(optimizer).__module__.startswith("torch.optim") and not isinstance(optimizer, LBFGS):
        # it evaluates the closure once, before its update: done here, so that the loss is judged before it is used
        with torch.enable_grad():
            value = closure()
        loop.step(lambda: run(lambda: value))
        return value
    return _evaluated_step(loop, run, closure)


def _evaluated_step(loop: ScriptLoop, run: Callable[[Callable[[], Any]], Any], closure: Callable[[], Any]) -> Any:
    """An optimizer that evaluates the loss several times: a copy is taken, start and result are judged."""
    members = loop.session.protected.members
    norms: list[Tensor] = []
    first: list[Window | None] = []

    def watched() -> Any:
        value = closure()
        if not norms:
            norms.append(finite.gradient_norm(members.gradients()))
            first.append(loop.collector.window)
        return value

    loop.session.protected.copy_for_update()
    rates = current_rates(loop.optimizer)
    loop.evaluating, loop.detector.frames = True, []  # the closure clears the gradients before each evaluation
    try:
        taken = run(watched)
    finally:
        loop.evaluating = False
    if first and first[0] is not None:
        loop.collector.window = first[0]
    loop.shared.asked.trained(taken)
    loop.shared.asked.tensors = []
    norm = finite.read(norms or [torch.zeros(())])[0]

    def judged(window: Window) -> Outcome:
        first = window.micros[0]
        first.values = finite.read(first.loss.scalars()) if first.values is None else first.values
        with loop.detector.as_kept():
            return judge_evaluations(loop.session, loop.driver, window, norm, rates)

    loop.step(lambda: taken, judge=judged)
    return taken


def _let_torch_wrap_first(cls: type[Optimizer]) -> None:
    """What torch does to a class when its first instance is made; after us it would keep our wrapper permanently."""
    owner: Any = next(each for each in cls.__mro__ if "step" in vars(each))
    if not getattr(owner.step, "hooked", False):
        owner.step = Optimizer.profile_hook_step(owner.step)
        owner.step.hooked = True


def _asking(registry: OptimizerRegistry, original: Any) -> Any:
    """A question about one tensor, or a way to read it. An optimizer asks for each of its parameters."""
    asked, guards = registry.asked, registry.guards
    warns = [True] if original.__name__ == "__float__" else []
    copies = original.__name__ == "detach"

    @functools.wraps(original)
    def ask(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Notes a tensor that the script reads, then reads it."""
        if is_compiling():  # a traced tensor has no values yet
            return original(tensor, *args, **kwargs)
        if asked.open or not guards:
            _look(registry, tensor, copies=copies)
        if warns and isinstance(tensor, Tensor) and tensor.requires_grad and torch.is_grad_enabled():
            warns.clear()
            return _with_its_warning(functools.partial(original, tensor, *args, **kwargs))
        return original(tensor, *args, **kwargs)

    return ask


def _testing(registry: OptimizerRegistry, original: Any) -> Any:
    """A test of data, outputs or gradients: a script may leave a bad batch out, or repair bad gradients."""
    asked, guards, batches = registry.asked, registry.guards, registry.batches

    @functools.wraps(original)
    def test(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Notes an output, a gradient or a batch that the script tests, then tests it."""
        if not isinstance(tensor, Tensor) or is_compiling() or not guards or registry.is_own_call():
            return original(tensor, *args, **kwargs)
        if _asked_by_nantrap():
            return original(tensor, *args, **kwargs)
        if tensor.requires_grad:
            if asked.open and tensor.numel() > 1:
                asked.note_output(tensor)
        elif not registry.test_gradient(tensor) and batches.last:
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
        seen = frame.f_globals.setdefault("__warningregistry__", {})
        warnings.warn_explicit(each.message, each.category, frame.f_code.co_filename, frame.f_lineno, registry=seen)
    return result


def _asking_data(registry: OptimizerRegistry, plain: Any) -> property:
    """A property that notes who asks for `tensor.data`."""
    asked = registry.asked

    def get_data(tensor: Any) -> Any:
        if asked.open and not is_compiling():
            _look(registry, tensor, copies=True)
        return plain.__get__(tensor)

    return property(get_data, plain.__set__, doc=plain.__doc__)


def _look(registry: OptimizerRegistry, tensor: Any, *, copies: bool) -> None:
    """The script asks about a tensor: a loss that it may abandon, or a value of plain tensors."""
    if not isinstance(tensor, Tensor) or not tensor.requires_grad or tensor.is_complex() or registry.is_own_call():
        return  # a complex number is no loss
    if _asked_by_nantrap():
        return
    if registry.asked.open:
        registry.asked.note(tensor, copies=copies)
    else:
        registry.look(tensor)


def _asked_by_nantrap() -> bool:
    """Whether nantrap's own code asks: an armed step is traced, and outputs are measured, while the script runs."""
    frame: FrameType | None = current_frame(1)
    while frame is not None and frame.f_globals.get("__name__") in _PASSED_THROUGH:
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).startswith("nantrap.")
