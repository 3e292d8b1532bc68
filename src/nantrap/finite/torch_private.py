"""The private names of PyTorch that reading values relies on, and nothing else. Seen in torch 2.4 to 2.13."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

norms_of: Callable[[Sequence[Tensor], float], tuple[Tensor, ...]] = torch._foreach_norm  # type: ignore[assignment]
"""The norm of each tensor in a list, in one call. `clip_grad_norm_` is made of it."""

multiply_all = torch._foreach_mul_
"""Multiplies each tensor of a list in place, in one call. `clip_grad_norm_` is made of it."""

flag_and_multiply = torch._amp_foreach_non_finite_check_and_unscale_
"""Writes 1.0 into a flag if any value is non-finite, and multiplies all: one kernel. `GradScaler` is made of it."""

flattened = torch._C._nn.flatten_dense_tensors
"""A list of tensors joined into one dimension, in one call; `torch.cat` needs a view of each, made in Python."""


def stored_values(tensor: Tensor) -> Tensor:
    """The values of a sparse COO tensor. The public `values()` needs a coalesced tensor, and coalescing copies it."""
    return tensor._values()


def stored_indices(tensor: Tensor) -> Tensor:
    """The places of the values of a sparse COO tensor, as `stored_values` gives these."""
    return tensor._indices()


def offsets_of_nested(tensor: Tensor) -> Tensor:
    """The shapes of the parts of a nested tensor of the strided layout, which has no other table of them."""
    return tensor._nested_tensor_size()
