"""Scaled dot-product attention under a mask that may leave a query nothing to attend to."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nantrap.ops.masks import any_kept, as_mask


def masked_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """softmax(q·kᵀ/√d + mask)·v by torch's fused kernel; a query without a key gives 0 with gradient 0.

    Two things go wrong in the usual form. A fully masked row is softmax over nothing: NaN, decided row by row, so a
    test of the whole batch does not see it. And 0 · NaN is NaN: a padded key whose *value* is NaN poisons every query
    though its weight is 0. So a dead query is let to attend to everything and its output is set to 0 after, and keys
    and values that no query may see are set to 0 before.

    A key that at least one query may see keeps its NaN, and it shows in all queries of its head: it is in use, and
    hiding it would be wrong. Double backward needs torch's math kernel (`torch.nn.attention.sdpa_kernel`).

    Args:
        query: [..., Q, d].
        key: [..., K, d].
        value: [..., K, e].
        mask: True keeps; broadcasts to [..., Q, K] and has at least these two dimensions.
        scale: Instead of 1/√d. Without any scale (1.0), float16 scores overflow from |q| = |k| = 256.
        dropout_p: Probability that a weight is dropped. Pass 0.0 in evaluation.

    Example:
        >>> q = k = v = torch.ones(1, 2, 4)
        >>> mask = torch.tensor([[True, True], [False, False]])
        >>> masked_attention(q, k, v, mask)[0, :, 0]
        tensor([1., 0.])
    """
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value, scale=scale, dropout_p=dropout_p)
    kept = as_mask(mask)
    if kept.dim() < 2:
        raise ValueError(
            f"the mask has shape {tuple(kept.shape)}, but needs [..., queries, keys]. "
            "Pass `mask[:, None, None, :]` for a padding mask [batch, keys] and heads."
        )
    alive = any_kept(kept, -1)  # [..., Q, 1]: has this query a key?
    seen = any_kept(kept, -2).transpose(-1, -2)  # [..., K, 1]: has this key a query?
    out = F.scaled_dot_product_attention(
        torch.where(alive, query, 0.0),
        torch.where(seen, key, 0.0),
        torch.where(seen, value, 0.0),
        attn_mask=kept | ~alive,
        scale=scale,
        dropout_p=dropout_p,
    )
    return torch.where(alive, out, 0.0)


class MaskedAttention(nn.Module):
    """Multi-head self-attention on `masked_attention`: query, key and value from one projection, then one out.

    Args:
        dim: Width of the tokens.
        heads: Number of heads; divides `dim`.
        bias: Whether the two projections have a bias.
        dropout: Dropout of the attention weights, in training only.

    Example:
        >>> tokens = torch.randn(2, 3, 8)
        >>> padding = torch.tensor([[True, True, False], [False, False, False]])
        >>> MaskedAttention(8, heads=2)(tokens, padding).isfinite().all().item()
        True
    """

    def __init__(self, dim: int, *, heads: int, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"dim {dim} is not a multiple of heads {heads}")
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(dim, 3 * dim, bias=bias)
        self.out = nn.Linear(dim, dim, bias=bias)

    def forward(self, x_BLD: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend. `mask`: [B, L] for tokens that are real, or [B, Q, K] for pairs; True keeps."""
        if mask is not None and mask.dim() == 2:
            real = as_mask(mask)
            # A padded token may hold anything, and the projection would carry a NaN into the weights' gradient.
            x_BLD = torch.where(real[..., None], x_BLD, 0.0)
            mask = real[:, None, None, :]
        elif mask is not None:
            mask = mask[:, None]
        # [B, L, 3D] -> three of [B, H, L, D/H]
        q, k, v = self.qkv(x_BLD).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = masked_attention(q, k, v, mask, dropout_p=self.dropout if self.training else 0.0)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return out
