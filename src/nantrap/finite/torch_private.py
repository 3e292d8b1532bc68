"""The private name of PyTorch that reading values relies on, and nothing else. Seen in torch 2.4 to 2.13."""

from __future__ import annotations

from torch import Tensor


def stored_values(tensor: Tensor) -> Tensor:
    """The values of a sparse COO tensor. The public `values()` needs a coalesced tensor, and coalescing copies it."""
    return tensor._values()
