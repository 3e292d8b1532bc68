"""Memory that a step allocates and reads before it has written all of it.

What such memory holds is what was freed before: zeros on most days, garbage or NaN on others. So the failure often does
not repeat, and where it shows is not where it began. Two re-runs decide it. With fresh memory filled with NaN, the
first operation that gives NaN is the one that left memory unwritten. With fresh memory filled with zeros, the step is
finite: then the failure came from nothing else. A program that writes all that it reads cannot tell the two apart.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from nantrap.locate.failure import Failure, without_warnings
from nantrap.locate.replay.replay import forward_and_backward, replay_step
from nantrap.locate.trace import Op
from nantrap.locate.trace.operations import EMPTY
from nantrap.locate.trace.origin import Replay

_ALLOCATORS = (
    (torch, "empty"), (torch, "empty_like"), (torch, "empty_strided"), (torch.Tensor, "new_empty"),
    (torch.Tensor, "new_empty_strided"),
)  # fmt: skip


@contextlib.contextmanager
def filled_with_nan() -> Iterator[None]:
    """Every allocation holds NaN, those inside of compiled kernels included, where these allocate with PyTorch."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    settings: Any = torch.utils.deterministic
    fills = settings.fill_uninitialized_memory
    try:
        settings.fill_uninitialized_memory = True
        torch.use_deterministic_algorithms(True, warn_only=True)
        with without_warnings():
            yield
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=warns)
        settings.fill_uninitialized_memory = fills


@contextlib.contextmanager
def filled_with_zeros() -> Iterator[None]:
    """`torch.empty` and its relatives give zeros, wherever Python code calls them: also inside an operator's own code,
    which no mode of PyTorch sees."""
    own = [(owner, name, vars(owner).get(name), getattr(owner, name)) for owner, name in _ALLOCATORS]
    try:
        for owner, name, _, function in own:
            setattr(owner, name, _zeroed(function))
        yield
    finally:
        for owner, name, before, _ in own:
            if before is None:  # inherited
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def _zeroed(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def allocate(*args: Any, **kwargs: Any) -> Any:
        made = function(*args, **kwargs)
        return made.detach().zero_().requires_grad_(made.requires_grad) if _is_memory(made) else made

    return allocate


def _is_memory(made: Any) -> bool:
    return type(made) is Tensor and made.layout == torch.strided and made.device.type != "meta"


def unwritten_memory(failed: Failure, replay: Replay) -> Replay | None:
    """The re-run that shows which operation left memory unwritten; `None` if the failure does not come from that.

    Args:
        failed: the failed step, which must be repeatable.
        replay: the step as it is, run again. Only a program that allocates empty memory itself, or calls operators that
            are not PyTorch's, is tried.
    """
    if failed.crew is not None or replay.error is not None or not any(map(_may_leave_memory, replay.trace.ops)):
        return None
    filled = replay_step(failed, around=filled_with_nan())
    if filled.op is None or filled.error is not None or not _may_leave_memory(filled.op):
        return None
    with failed.rewound(), filled_with_zeros():
        zeros = forward_and_backward(failed, failed.batch)
    return filled if zeros.finite else None


def _may_leave_memory(op: Op) -> bool:
    """Whether an operation gives memory that the program has to write, or is a kernel of its own."""
    return (op.name in EMPTY and op.place is not None) or not op.name.startswith(("aten.", "prim.", "c10d"))
