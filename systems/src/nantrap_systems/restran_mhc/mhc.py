"""Manifold-constrained hyper-connections: n residual streams, read, written and mixed by learned small matrices.

    streams [B, n, C, H, W] ─► global pool [B, n·C] ─► φ(RMSNorm) ─► H_pre = σ(α·), H_post = 2σ(α·),
                                                                     H_res = Sinkhorn(α·), doubly stochastic
    streams ← H_res · streams + H_post · sublayer(H_pre · streams)

The three α begin at 0.01: at the start every stream is read by 1/2, written to by 1 and mixed evenly, whatever the
image. A doubly stochastic H_res keeps the mean of the streams, so that no depth can make it grow.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import nantrap
from nantrap.ops import RMSNorm, Sinkhorn


def mix(h_res_BNN: Tensor, streams_BNCHW: Tensor) -> Tensor:
    """Every stream becomes a weighted mean of all."""
    mixed: Tensor = torch.einsum("bnm,bmchw->bnchw", h_res_BNN, streams_BNCHW)
    return mixed


class HyperConnection(nn.Module):
    """A sublayer between n streams.

    Args:
        channels: of a stream.
        n: how many streams.
        sublayer: what is wrapped, [B, C, H, W] to the same; without its own skip.
        alpha: where α_pre and α_post begin.
        alpha_res: where α_res begins.
        name: of its probes.
        norm: makes the norm of the pooled streams.
        sinkhorn: makes the doubly stochastic matrix of logits [B, n, n].
        mixing: H_res applied to the streams.
        collapse: whether the block ends with the mean of its streams, from which the next one makes new ones.
    """

    def __init__(
        self,
        channels: int,
        *,
        n: int,
        sublayer: nn.Module,
        alpha: float = 0.01,
        alpha_res: float = 0.01,
        name: str = "mhc",
        norm: Callable[[int], nn.Module] = RMSNorm,
        sinkhorn: Callable[[], nn.Module] = Sinkhorn,
        mixing: Callable[[Tensor, Tensor], Tensor] = mix,
        collapse: bool = False,
    ) -> None:
        super().__init__()
        self.n, self.name, self.mixing, self.collapse = n, name, mixing, collapse
        self.sublayer = sublayer
        self.norm = norm(n * channels)
        self.phi = nn.Linear(n * channels, n + n + n * n)
        self.sinkhorn = sinkhorn()
        self.alpha_pre = nn.Parameter(torch.tensor(alpha))
        self.alpha_post = nn.Parameter(torch.tensor(alpha))
        self.alpha_res = nn.Parameter(torch.tensor(alpha_res))

    def forward(self, streams_BNCHW: Tensor) -> Tensor:
        """Read the streams, run the sublayer on what was read, write it back, and mix the streams."""
        h_pre_BN, h_post_BN, h_res_BNN = self.matrices(streams_BNCHW)
        read_BCHW = self._probe("read_out", torch.einsum("bn,bnchw->bchw", h_pre_BN, streams_BNCHW))
        done_BCHW = self._probe("sublayer", self.sublayer(read_BCHW))
        written_BNCHW = self._probe("write_in", torch.einsum("bn,bchw->bnchw", h_post_BN, done_BCHW))
        out_BNCHW = self.mixing(h_res_BNN, streams_BNCHW) + written_BNCHW
        if self.collapse:
            out_BNCHW = out_BNCHW.mean(1, keepdim=True).expand_as(out_BNCHW)
        return self._probe("output", out_BNCHW)

    def matrices(self, streams_BNCHW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """H_pre [B, n], H_post [B, n] and H_res [B, n, n] of some streams."""
        alphas = {"alpha_pre": self.alpha_pre, "alpha_post": self.alpha_post, "alpha_res": self.alpha_res}
        pooled = self._probe("pooled", streams_BNCHW.mean((-2, -1)).flatten(1), watch=alphas)
        pre, post, res = self.phi(self.norm(pooled)).split([self.n, self.n, self.n**2], -1)
        h_res = self.sinkhorn((self.alpha_res * res).unflatten(-1, (self.n, self.n)))
        return (self.alpha_pre * pre).sigmoid(), 2 * (self.alpha_post * post).sigmoid(), h_res

    def _probe(self, point: str, value: Tensor, **watch: dict[str, nn.Parameter]) -> Tensor:
        return nantrap.probe(f"{self.name}.{point}", value, **watch)


class Residual(nn.Module):
    """A sublayer with a plain skip, for a model without hyper-connections: every stream is the same."""

    def __init__(self, channels: int, *, sublayer: nn.Module, **unused: object) -> None:
        super().__init__()
        self.sublayer = sublayer

    def forward(self, streams_BNCHW: Tensor) -> Tensor:
        done_BCHW: Tensor = self.sublayer(streams_BNCHW[:, 0])
        return streams_BNCHW + done_BCHW[:, None]
