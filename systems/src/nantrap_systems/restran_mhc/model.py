"""The model: three frames of a plate to a line of characters.

    frames [B, 3, 16, 72] ─► contrast ─► spatial transformer ─► stem, block ─► mHC blocks over n streams, mean
      ─► mean over height ─► attention over frames ─► transformer layer ─► 37 classes at each of 18 columns

Every frame goes through the ResNet separately, as [B·F, ...]; frames that are missing are zeros behind the first block
and are left out by the attention.

Manifold-constrained hyper-connections: n residual streams, read, written and mixed by learned small matrices.

    streams [B, n, C, H, W] ─► global pool [B, n·C] ─► φ(RMSNorm) ─► H_pre = σ(α·), H_post = 2σ(α·),
                                                                     H_res = Sinkhorn(α·), doubly stochastic
    streams ← H_res · streams + H_post · sublayer(H_pre · streams)

The three α begin at 0.01: at the start every stream is read by 1/2, written to by 1 and mixed evenly, whatever the
image. A doubly stochastic H_res keeps the mean of the streams, so that no depth can make it grow.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nantrap
from nantrap.ops import RMSNorm, Sinkhorn, masked_softmax, safe_divide, safe_std
from nantrap_systems.restran_mhc.data import CLASSES

# ---- hyper-connections


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


# ---- the reader of plates


class Contrast(nn.Module):
    """(x - mean) / std of every frame; a frame of one colour is 0."""

    def forward(self, frames_BHW: Tensor) -> Tensor:
        mean = frames_BHW.mean((-2, -1), keepdim=True)
        return safe_divide(frames_BHW - mean, safe_std(frames_BHW, (-2, -1), keepdim=True))


class SpatialTransformer(nn.Module):
    """An affine map of every frame, found by a small network; the identity at the start.

    What lies outside is 0. (`padding_mode="border"` and "reflection" end the process with a segmentation fault when
    the map is NaN: torch 2.13, backward pass on a CPU.)
    """

    def __init__(self, *, width: int = 8) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.AvgPool2d(2), nn.Conv2d(1, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1), nn.ReLU()
        )
        self.theta = nn.Linear(width * 2 * 9, 6)
        nn.init.zeros_(self.theta.weight)
        with torch.no_grad():
            self.theta.bias.copy_(torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 0.0]))

    def forward(self, frames_BCHW: Tensor) -> Tensor:
        found = F.adaptive_avg_pool2d(self.features(frames_BCHW), (2, 9)).flatten(1)
        theta = self.theta(found).float().unflatten(-1, (2, 3))
        with torch.autocast(theta.device.type, enabled=False):  # half of it is a fiftieth of a pixel
            grid = F.affine_grid(theta, list(frames_BCHW.shape), align_corners=False)
        return F.grid_sample(frames_BCHW, grid, padding_mode="zeros", align_corners=False)


def branch(channels: int, *, out: int | None = None, stride: int = 1) -> nn.Sequential:
    """The two convolutions of a ResNet's block, without its skip."""
    out = out or channels
    return nn.Sequential(
        nn.Conv2d(channels, out, 3, stride, 1, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(),
        nn.Conv2d(out, out, 3, 1, 1, bias=False),
        nn.BatchNorm2d(out),
    )


class Block(nn.Module):
    """A ResNet's block that halves the image."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.branch = branch(channels, out=out, stride=2)
        self.skip = nn.Sequential(nn.Conv2d(channels, out, 1, 2, bias=False), nn.BatchNorm2d(out))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return F.relu(self.branch(x_BCHW) + self.skip(x_BCHW))


class FrameAttention(nn.Module):
    """One line of columns from several: at every column a weighted mean over the frames that are there."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score = nn.Linear(dim, 1)

    def forward(self, x_BFTD: Tensor, there_BF: Tensor) -> Tensor:
        weights_BFT = masked_softmax(self.score(x_BFTD).squeeze(-1), there_BF[..., None], dim=1)
        return (weights_BFT[..., None] * x_BFTD).sum(1)


class PlateReader(nn.Module):
    """Frames [B, F, H, W] to logits [B, T, 37].

    Args:
        channels: of the streams, and the width of the transformer.
        n: how many streams.
        depth: how many blocks are wrapped in hyper-connections.
        heads: of the transformer layer.
        frame_stride: pixels of a frame to a column of the output, 4 or 8.
        width: pixels of a frame.
        contrast: makes the contrast of a frame.
        connection: makes a hyper-connection.
        sublayer: makes what it wraps.
    """

    def __init__(
        self,
        *,
        channels: int = 32,
        n: int = 2,
        depth: int = 3,
        heads: int = 4,
        frame_stride: int = 4,
        width: int = 72,
        contrast: Callable[[], nn.Module] = Contrast,
        connection: Callable[..., nn.Module] = HyperConnection,
        sublayer: Callable[[int], nn.Module] = branch,
    ) -> None:
        super().__init__()
        self.n, self.pool = n, frame_stride // 4
        self.contrast = contrast()
        self.align = SpatialTransformer()
        self.stem = nn.Sequential(
            nn.Conv2d(1, channels // 2, 3, 2, 1, bias=False), nn.BatchNorm2d(channels // 2), nn.ReLU()
        )
        self.block = Block(channels // 2, channels)
        self.mhc = nn.ModuleList(
            connection(channels, n=n, sublayer=sublayer(channels), name=f"mhc.{index}") for index in range(depth)
        )
        self.frames = FrameAttention(channels)
        self.positions = nn.Parameter(0.02 * torch.randn(width // frame_stride, channels))
        self.transformer = nn.TransformerEncoderLayer(
            channels, heads, 2 * channels, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.norm = nn.LayerNorm(channels)
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, frames_BFHW: Tensor, there_BF: Tensor) -> Tensor:
        """The logits of each character position, from the frames that are there."""
        x_BCHW = self.contrast(frames_BFHW.flatten(0, 1))[:, None]
        x_BCHW = self.block(self.stem(self.align(x_BCHW)))
        x_BCHW = x_BCHW * there_BF.flatten()[:, None, None, None]
        x_BCHW = F.max_pool2d(x_BCHW, (1, self.pool))
        streams_BNCHW = x_BCHW[:, None].expand(-1, self.n, -1, -1, -1)
        for connection in self.mhc:
            streams_BNCHW = connection(streams_BNCHW)
        columns_BCT = F.relu(streams_BNCHW.mean(1)).mean(-2)
        x_BFTD = columns_BCT.transpose(1, 2).unflatten(0, there_BF.shape)
        x_BTD = self.frames(x_BFTD, there_BF) + self.positions
        logits_BTK: Tensor = self.head(self.norm(self.transformer(x_BTD)))
        return logits_BTK
