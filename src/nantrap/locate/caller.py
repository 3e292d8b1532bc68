"""Who called the guard: the user's frame on the stack, and what its names stand for."""

from __future__ import annotations

import inspect
import sys
from types import FrameType
from typing import Any

from torch import Tensor

from nantrap.finite import any_nonfinite
from nantrap.locate.batch import tensors_of
from nantrap.locate.source import is_user_code
from nantrap.locate.storage import share_memory


def caller() -> FrameType | None:
    """The innermost frame of the user's code. Not to be kept: a frame keeps everything in it alive."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_code(frame.f_code):
        frame = frame.f_back
    return frame


def names_in(frame: FrameType) -> dict[str, Any]:
    """The local names of a frame, without leaving anything behind in it."""
    found = dict(frame.f_locals)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        frame.f_locals.clear()  # a copy that the frame would keep, and with it the failed batch
    return found


def batch_of_caller() -> dict[str, Tensor]:
    """The tensors without gradient the caller holds, by name: among them the batch that the guard was not given."""
    frame = caller()
    if frame is None:
        return {}
    return {
        path: tensor
        for name, value in names_in(frame).items()
        for path, tensor in tensors_of(value, name)
        if tensor.grad_fn is None and not tensor.requires_grad
    }


def find_in_batch(tensor: Tensor | None) -> tuple[str, Tensor] | None:
    """The bad tensor of the caller that `tensor` is part of; or, if `tensor` is not known, any bad one."""
    for path, candidate in batch_of_caller().items():
        if (tensor is None or share_memory(candidate, tensor)) and any_nonfinite([candidate]):
            return path, candidate
    return None
