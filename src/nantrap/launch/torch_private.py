"""The private names of PyTorch that `nantrap run` relies on, and nothing else. Seen in torch 2.6 to 2.15."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import OptState
from torch.utils import _contextlib
from torch.utils.data.dataloader import _BaseDataLoaderIter

decorating = _contextlib
"""Where `context_decorator` is: what puts `@torch.no_grad()` on a function."""
LoaderIterator = _BaseDataLoaderIter
"""What `iter(DataLoader)` gives, with or without workers."""


def dataset_of(iterator: Any) -> Any:
    """The dataset that an iterator of a loader reads."""
    return getattr(iterator, "_dataset", None)


def index_sampler_of(iterator: Any) -> Any:
    """What gives an iterator of a loader the indices of its batches; the same object in every epoch of the loader."""
    return getattr(iterator, "_index_sampler", None)


def children_of(module: nn.Module) -> Iterator[nn.Module]:
    """The modules directly below, also of a module whose `children` was overridden."""
    return (child for child in module._modules.values() if child is not None)


def own_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters that the module itself holds."""
    return (parameter for parameter in module._parameters.values() if parameter is not None)


def has_child(module: nn.Module, name: str) -> bool:
    """Whether a name is taken."""
    return name in module._modules


def divides_by_scale(optimizer: Any) -> bool:
    """Whether a fused optimizer takes the scale with it and divides gradients itself."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def is_not_unscaled(scaler: Any, optimizer: Any) -> bool:
    """Whether a scaler has not divided this optimizer's gradients yet in this step."""
    return scaler._per_optimizer_states[id(optimizer)]["stage"] is OptState.READY


def has_seen_gradients(scaler: Any) -> bool:
    """Whether a scaler checked any gradients since its last update; without that, its update fails."""
    states = getattr(scaler, "_per_optimizer_states", {})
    return any(state["found_inf_per_device"] for state in states.values())


def forget_step(scaler: Any) -> None:
    """Let the scaler forget the step; its scale stays."""
    scaler._per_optimizer_states.clear()


def is_scheduled(step: Any) -> bool:
    """Whether a schedule has put its own wrapper around an optimizer's `step`."""
    return hasattr(step, "_wrapped_by_lr_sched")


def mark_scheduled(step: Any) -> None:
    """Let a schedule treat this `step` as one that it wrapped itself."""
    step._wrapped_by_lr_sched = True


def not_traced(function: Any) -> Any:
    """`torch.compiler.disable`, which imports the compiler immediately; this one does it when the function is
    called."""
    disable = getattr(torch, "_disable_dynamo", None)
    return function if disable is None else disable(function)


def not_examined(function: Any) -> Any:
    """The function, which Dynamo does not compile when torch calls it between two graphs. What it calls is seen.

    `torch.compiler.disable` cannot do that: it puts a function around it that Dynamo counts as a break of the graph.
    Seen in torch 2.6 (`skip_code`) and 2.9 to 2.15; where there is neither, the function is as it was.
    """
    compiler: Any = torch._C._dynamo.eval_frame
    if hasattr(compiler, "skip_code"):
        compiler.skip_code(function.__code__)
    elif hasattr(compiler, "set_code_exec_strategy"):
        action = compiler._FrameAction
        compiler.set_code_exec_strategy(function.__code__, compiler._FrameExecStrategy(action.SKIP, action.DEFAULT))
    return function


_eval_frame_callback: Any = torch._C._dynamo.eval_frame.get_eval_frame_callback


def _compiler_listens() -> Any:
    """Answers as `compiler_listens`, for a torch whose function gives its result away without counting the reference.

    Seen in 2.6: each call takes one reference from the callback, or from None, until it is freed while it is in use. In
    versions in between that may count it already, one reference too many is never given back, which harms nothing.
    """
    callback = _eval_frame_callback()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(callback))
    return callback


_COUNTS_REFERENCES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 9)
compiler_listens: Any = _eval_frame_callback if _COUNTS_REFERENCES else _compiler_listens
"""Whether Dynamo examines every Python frame that begins now: its callback, or None."""


AROUND_UNCOMPILED = "_fn"
"""The name of Dynamo's function around a call that it does not compile. A call costs too much in every step: who asks
compares the name first."""


def compiled_as_before(function: Any, caller: FrameType) -> Any:
    """The function, compiled as the code is that called us, where a compiler was switched off for us; else as it is.

    An optimizer that is compiled can round differently from one that is not.

    Args:
        function: what is to be called.
        caller: who called us: a frame of a function named `AROUND_UNCOMPILED`.
    """
    if not caller.f_code.co_filename.endswith("eval_frame.py"):
        return function
    callback = caller.f_locals.get("prior")
    if not callable(callback):
        return function

    def compiled(*args: Any, **kwargs: Any) -> Any:
        before = torch._C._dynamo.eval_frame.set_eval_frame(callback)
        try:
            return function(*args, **kwargs)
        finally:
            torch._C._dynamo.eval_frame.set_eval_frame(before)

    return compiled


def leave_uncompiled(function: Any) -> None:
    """The frame of a function is never compiled by itself, as those of PyTorch are not; what it calls may be.

    Where the compiler ends a graph at a call of `DistributedDataParallel`, it begins again in our function, and would
    compile it once for each class of module.
    """
    compiler: Any = torch._C._dynamo.eval_frame
    if hasattr(compiler, "set_code_exec_strategy"):  # seen in 2.13
        action = compiler._FrameAction
        compiler.set_code_exec_strategy(function.__code__, compiler._FrameExecStrategy(action.SKIP, action.DEFAULT))
    elif hasattr(compiler, "skip_code"):  # seen in 2.6
        compiler.skip_code(function.__code__)
