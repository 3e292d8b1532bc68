"""The private names of PyTorch that the trace and the rules rely on, and nothing else. Seen in torch 2.6 to 2.13.

No public name gives what these give. The tensors that an autograd node saved are read differently in older versions:
`SavedTensor.data` exists in torch 2.13 and not in 2.6.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, _global_optimizer_post_hooks
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
)

DispatchMode = TorchDispatchMode
"""Sees every operation below autograd; the documented modes see only the calls above it."""

modes_running: Callable[[], list[TorchDispatchMode]] = _get_current_dispatch_mode_stack
"""The dispatch modes of this thread, the one that was entered last at the end."""


_BELOW = torch._C._TorchDispatchModeKey
_GRAPH_MODES = (_BELOW.FAKE, _BELOW.PROXY, _BELOW.FUNCTIONAL)


def makes_a_graph() -> bool:
    """Whether torch.export, make_fx or fake tensors are at work below every mode: what runs now has no values."""
    return any(torch._C._get_dispatch_mode(key) is not None for key in _GRAPH_MODES)


def leave_mode(mode: TorchDispatchMode) -> bool:
    """End a mode, also when others were entered after it, which stay. Whether it was running.

    `TorchDispatchMode.__exit__` ends the mode that was entered last, whichever that is.
    """
    if not any(each is mode for each in modes_running()):
        return False
    later = []
    while (last := _get_current_dispatch_mode()) is not None:
        try:
            TorchDispatchMode.__exit__(last, None, None, None)
        except IndexError:  # it was ended before, and torch has put it on again after an operation
            drop_last_mode()
        if last is mode:
            break
        later.append(last)
    for each in reversed(later):
        TorchDispatchMode.__enter__(each)
    return True


_MOST_EVENTS = 1_000


def leave_mode_soon(mode: TorchDispatchMode) -> None:
    """End a mode that handles an operation now, as soon as the program goes on.

    torch takes a mode off while it handles an operation and puts it on again afterwards, so it cannot end itself. The
    tracing function of Python is called at the program's next line. A debugger stays; the mode then stays as well,
    until its owner ends it.
    """
    if sys.gettrace() is not None:
        return
    frames, events = [frame for frame, _ in traceback.walk_stack(None)], 0

    def look(*_: object) -> Callable[..., Any]:
        """Called at each line: end the mode if it is on again, and end the looking."""
        nonlocal events
        events += 1
        if (leave_mode(mode) or events > _MOST_EVENTS) and sys.gettrace() is look:
            sys.settrace(None)
            for frame in frames:
                frame.f_trace = None
            frames.clear()
        return look

    for frame in frames:
        frame.f_trace = look
    sys.settrace(look)


def drop_last_mode() -> None:
    """End the mode that was entered last, when its own `__exit__` has run and has ended another one."""
    _pop_mode()


schema_of = operator.attrgetter("_schema")
"""The declared arguments and results of an operation. An attribute getter, because it runs for every operation."""

input_metadata_of = operator.attrgetter("_input_metadata")
"""Shape, dtype and device of each result of the operation that made a node."""

version_of = operator.attrgetter("_version")
"""How often a tensor was written in place."""

is_zero_tensor = operator.methodcaller("_is_zerotensor")
"""Whether a tensor is zeros for which no memory exists: second derivatives make them, and reading one ends in a crash
inside of a dispatch mode."""

sequence_of = operator.methodcaller("_sequence_nr")
"""The number of an autograd node in the order of the forward pass."""

current_node = torch._C._current_autograd_node
"""The autograd node that runs now."""

to_copy = torch.ops.aten._to_copy.default
"""The operation behind `tensor.to(...)`."""

softmax_backward = torch.ops.aten._softmax_backward_data
log_softmax_backward = torch.ops.aten._log_softmax_backward_data


backward_pass = torch._C._current_graph_task_id
"""The number of the backward pass that runs in this thread. For hooks of every step; others ask `is_in_backward`."""

NO_PASS = -1
"""What `backward_pass` gives outside one."""


def is_in_backward() -> bool:
    """Whether a backward pass runs in this thread."""
    return backward_pass() != NO_PASS


def is_recomputed_later() -> bool:
    """Whether this runs inside the first forward pass of a reentrant checkpoint, which records no graph.

    It is run again in the backward pass, with gradients. For calls that would otherwise be taken for an evaluation.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CHECKPOINTED:
            return True
        frame = frame.f_back
    return False


_CHECKPOINTED = checkpoint.CheckpointFunction.forward.__code__


def next_sequence() -> int:
    """The number that the next autograd node of this thread will get."""
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


def is_composite(qualified_name: str) -> bool:
    """Whether an operation is made of others and has no autograd node itself."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(qualified_name, "CompositeImplicitAutograd")


def children_of(module: nn.Module) -> dict[str, nn.Module | None]:
    """The module's own table of submodules."""
    return module._modules


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """The module's own table of parameters."""
    return module._parameters


def storage_number(tensor: Tensor) -> int:
    """The identity of a tensor's storage while that storage exists."""
    return int(tensor.untyped_storage()._cdata)


carry_hooks: Callable[[Tensor, dict[int, Any]], None] = Tensor._backward_hooks.__set__  # type: ignore[union-attr]
"""Puts hooks on a tensor. With `hook_adder`, what `Tensor.register_hook` does, but without the handle by which a hook
could be removed: making that handle, in Python, takes three times as long as all the rest."""

hook_adder = operator.attrgetter("_register_hook_dict")
"""The method of a node that takes over the hooks of a tensor, for the output with that tensor's number."""


def has_hooks(tensor: Tensor | None) -> bool:
    """Whether a tensor has hooks of the program, which may change its gradient. Those of FSDP and DeepSpeed do not."""
    hooks = {} if tensor is None else tensor._backward_hooks or {}
    return not all(_module_of(hook).startswith(("torch.distributed.", "deepspeed.")) for hook in hooks.values())


def _module_of(hook: Any) -> str:
    while isinstance(hook, functools.partial):
        hook = hook.func
    return str(getattr(hook, "__module__", ""))


def _by_data(node: Any, raw_name: str) -> Any:
    """The saved tensor as it was packed: no hook runs."""
    raw = getattr(node, raw_name)
    if raw.__class__ is tuple:
        return tuple([_tensor(None if item is None else item.data) for item in raw])
    return _tensor(None if raw is None else raw.data)


def _by_unpacking(node: Any, raw_name: str) -> Any:
    """The saved tensor through its unpack hook, except where that hook would run a checkpointed forward again."""
    with _without_recomputation():
        value = getattr(node, raw_name.removeprefix("_raw"))
    if value.__class__ is tuple:
        return tuple([_tensor(item) for item in value])
    return _tensor(value)


def _tensor(value: Any) -> Tensor | None:
    return value if isinstance(value, Tensor) else None


@contextlib.contextmanager
def _without_recomputation() -> Iterator[None]:
    """Activation checkpointing raises instead of running the forward again; the caller takes it as "not saved"."""

    def refuse(*_: Any) -> Any:
        raise RuntimeError("saved by activation checkpointing: not available without running the forward again")

    module: Any = checkpoint
    kept = module._recomputation_hook
    module._recomputation_hook = refuse
    try:
        yield
    finally:
        module._recomputation_hook = kept


raw_tensor = _by_data if hasattr(torch._C._autograd.SavedTensor, "data") else _by_unpacking
"""What a node saved (`raw_tensor(node, "_raw_saved_self")`), or None, without side effects.

Raises RuntimeError where the graph was freed or the tensor was changed in place.
"""


class ThroughoutMode(TorchFunctionMode):
    """A function mode that is in force in the backward pass, too.

    `loss.backward()` is itself a call that a function mode sees, and a mode is off while it handles a call. So what
    Python runs inside the backward pass would not be seen: the forward pass that activation checkpointing computes
    again, and the `backward` of a custom function.
    """

    def __init__(self) -> None:
        super().__init__()
        self._off = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the backward pass under this mode; leave all other calls to `call`."""
        if func in _BACKWARD:
            with self._in_backward():
                return func(*args, **(kwargs or {}))
        return self.call(func, args, dict(kwargs or {}))

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call of the program's, or of torch's own Python code. For subclasses."""
        return func(*args, **kwargs)

    @contextlib.contextmanager
    def _in_backward(self) -> Iterator[None]:
        """The backward passes that begin in this thread run under this mode."""
        module: Any = torch.autograd
        kept, thread = module._engine_run_backward, threading.get_ident()

        def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
            """The backward pass, with this mode on while it runs in the thread that began it."""
            if not self._off or threading.get_ident() != thread:
                return kept(*args, **kwargs)
            self._off = False
            try:
                with _pushed(self):
                    return kept(*args, **kwargs)
            finally:
                self._off = True

        before, self._off = self._off, True
        module._engine_run_backward = _engine_run_backward
        try:
            yield
        finally:
            module._engine_run_backward = kept
            self._off = before


_BACKWARD = (Tensor.backward, torch.autograd.backward, torch.autograd.grad)


@contextlib.contextmanager
def _pushed(mode: TorchFunctionMode) -> Iterator[None]:
    """The mode in force, without what a subclass does when it is entered."""
    TorchFunctionMode.__enter__(mode)
    try:
        yield
    finally:
        TorchFunctionMode.__exit__(mode, None, None, None)


def hook_tables(module: nn.Module) -> tuple[dict[int, Any], ...]:
    """The module's own tables of hooks: before and after its forward pass, and after a state dict was loaded."""
    return module._forward_pre_hooks, module._forward_hooks, module._load_state_dict_post_hooks


def post_hooks_of(optimizer: Optimizer) -> dict[int, Any]:
    """What the program runs after each update of an optimizer, by key."""
    hooks: dict[int, Any] = getattr(optimizer, "_optimizer_step_post_hooks", {})
    return hooks


@contextlib.contextmanager
def without_post_hooks(optimizers: Iterable[Optimizer]) -> Iterator[None]:
    """Nothing of the program runs after an update: it may advance a schedule, and nothing would restore that."""
    own = [post_hooks_of(optimizer) for optimizer in optimizers]
    kept = [(hooks, dict(hooks)) for hooks in (*own, *((_global_optimizer_post_hooks,) if own else ()))]
    for hooks, _ in kept:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in kept:
            hooks.update(before)
