"""AdaLN-zero: a normalisation whose scale, shift and gate come from a condition and begin at exactly zero."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nantrap.ops.norms import rms_norm
from nantrap.ops.precision import widen


def modulate(x: Tensor, shift: Tensor, scale: Tensor, *, limit: float | None = None) -> Tensor:
    """x·(1 + s) + shift, with s = limit·tanh(scale/limit) if there is a limit.

    Nothing holds a learned scale back: grown to 1e4 it takes a normalised activation of 8 past float16's 65,504. The
    soft limit does, and unlike `clamp` it leaves a gradient that can bring the scale down again. Near 0 it is the
    identity: a scale of 1 under a limit of 30 is off by 4e-4. Half precision is computed in float32, rounded once.

    Args:
        x: [..., D], normalised; the result has its dtype.
        shift: Broadcasts to `x`.
        scale: Broadcasts to `x`.
        limit: The largest |s|. None for the plain formula.

    Example:
        >>> x = torch.ones(2, 3)
        >>> modulate(x, torch.zeros(3), torch.full((3,), 1e30), limit=30.0)[0]
        tensor([31., 31., 31.])
    """
    gain = widen(scale)
    if limit is not None:
        gain = limit * torch.tanh(gain / limit)
    return torch.addcmul(widen(shift), widen(x), 1 + gain).to(x.dtype)


class AdaLNZero(nn.Module):
    """h = modulate(rms_norm(x), shift, scale) and a gate, all three linear in SiLU(condition) and zero at the start.

    Zero means that a fresh block is the identity, `x + gate * block(h) = x`, whatever the block holds: nothing can
    explode in the first steps. An initialisation that walks over all modules afterwards undoes this silently;
    `reset_parameters` restores it.

    Args:
        dim: Width of the tokens.
        condition_dim: Width of the condition.
        limit: Soft limit of the scale, see `modulate`; None for the plain formula.
        eps: See `rms_norm`.

    Example:
        >>> adaln = AdaLNZero(8, condition_dim=4)
        >>> x, condition = torch.randn(2, 5, 8), torch.randn(2, 4)
        >>> h, gate = adaln(x, condition)
        >>> bool((x + gate * h == x).all())
        True
    """

    def __init__(self, dim: int, *, condition_dim: int, limit: float | None = 30.0, eps: float = 1e-6) -> None:
        super().__init__()
        self.limit = limit
        self.eps = eps
        self.linear = nn.Linear(condition_dim, 3 * dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x_BLD: Tensor, condition_BC: Tensor) -> tuple[Tensor, Tensor]:
        """The modulated tokens [B, L, D], and the gate [B, 1, D] for the branch they enter."""
        shift, scale, gate = self.linear(F.silu(condition_BC)).unsqueeze(1).chunk(3, -1)
        return modulate(rms_norm(x_BLD, eps=self.eps), shift, scale, limit=self.limit), gate
