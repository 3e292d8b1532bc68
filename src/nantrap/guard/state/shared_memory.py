"""Weights in shared memory: several processes of a program train one model, each with its own guard (Hogwild).

What one process writes, the others read and train on. So a diagnosis, which runs the step again and changes one thing
or another, works on copies; the program's tensors have their shared memory again afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor


def in_shared_memory(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The tensors whose memory other processes may hold as well."""
    return [
        tensor
        for tensor in tensors
        if tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not hasattr(tensor, "to_local")
        and tensor.is_shared()
    ]


@contextlib.contextmanager
def with_own_copies(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Puts copies in the place of tensors in shared memory for a while; whatever happens to them is lost."""
    common = [(tensor, tensor.data) for tensor in in_shared_memory(tensors)]
    for tensor, memory in common:
        tensor.data = memory.clone()
    try:
        yield
    finally:
        for tensor, memory in common:
            tensor.data = memory
