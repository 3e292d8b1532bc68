"""Sinkhorn's normalisation to a doubly stochastic matrix, in log space."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nantrap.ops.precision import widen


def sinkhorn(logits: Tensor, *, iterations: int = 20) -> Tensor:
    """exp(logits), its rows and columns normalised in turn: rows sum to 1 nearly, columns exactly.

    exp overflows above 88.7 (11.09 in float16), and a row far below the others becomes 0/0; `where(isnan(M), 1/n, M)`
    then repairs the value and leaves the gradient NaN. In log space, dividing a row by its sum is
    L - logsumexp(L) = log_softmax(L): one fused kernel that neither overflows nor divides.

    -Inf (a forbidden entry) becomes a very large negative number, so a row of nothing else comes out even, and +Inf
    a very large positive one, both with gradient 0. NaN stays NaN and reaches its whole matrix.

    Args:
        logits: [..., n, n]; the result has its dtype, half precision is computed in float32.
        iterations: How often rows and columns are normalised.

    Example:
        >>> sinkhorn(torch.tensor([[1000.0, 0.0], [0.0, 1000.0]]))
        tensor([[1., 0.],
                [0., 1.]])
    """
    wide = widen(logits)
    bound = torch.finfo(wide.dtype).max / 4  # differences of two such numbers still fit
    log_matrix = F.hardtanh(wide, -bound, bound)
    for _ in range(iterations):
        log_matrix = log_matrix.log_softmax(-1).log_softmax(-2)
    return log_matrix.exp().to(logits.dtype)


class Sinkhorn(nn.Module):
    """`sinkhorn` as a module.

    Example:
        >>> Sinkhorn(iterations=50)(torch.randn(3, 4, 4)).sum(-1).allclose(torch.ones(3, 4), atol=1e-4)
        True
    """

    def __init__(self, *, iterations: int = 20) -> None:
        super().__init__()
        self.iterations = iterations

    def forward(self, logits: Tensor) -> Tensor:
        return sinkhorn(logits, iterations=self.iterations)

    def extra_repr(self) -> str:
        return f"iterations={self.iterations}"
