"""The model: heads over embeddings, and for each head its loss with p_k, the running mean of its clusters.

    embedding [B, 64] ─► (unit length) ─┬─► head 0: MLP ─► (unit length) ─► weight-normed prototypes ─► logits [B, K]
                                        ├─► head 1
                                        ┆

The teacher is an average of all this (`torch.optim.swa_utils.AveragedModel`). With unit length in front of it the last
layer gives the cosine to a prototype times its scale, so that logits differ by at most twice the scale.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from nantrap.ops import beta_pmi, safe_divide, safe_norm
from nantrap_systems.temi.settings import Settings

Pmi = Callable[..., Tensor]
"""PMI_β of pairs [B] from both logits [B, K] and p_k [K], with `beta` and both temperatures by name."""


class UnitLength(nn.Module):
    """x / |x|; zeros stay zeros."""

    def forward(self, x_BD: Tensor) -> Tensor:
        return safe_divide(x_BD, safe_norm(x_BD, -1, keepdim=True))


def small_weights(head: Head, std: float) -> None:
    """Weights of this deviation, biases 0, scales 1."""
    for layer in head.mlp:
        if isinstance(layer, nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=std)
            nn.init.zeros_(layer.bias)
    nn.init.ones_(head.scale)


class Head(nn.Module):
    """Logits of clusters: an MLP to a point of unit length, and its cosine to every prototype times a scale."""

    def __init__(self, settings: Settings, *, initialise: Callable[[Head, float], None] = small_weights) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(settings.embed_dim, settings.hidden_dim),
            nn.GELU(),
            nn.Linear(settings.hidden_dim, settings.bottleneck_dim),
        )
        self.prototypes = weight_norm(nn.Linear(settings.bottleneck_dim, settings.num_clusters, bias=False))
        self.norm_bottleneck = settings.norm_bottleneck
        initialise(self, settings.init_std)
        self.scale.requires_grad_(not settings.norm_last_layer)

    @property
    def scale(self) -> Tensor:
        """The length of every prototype, [K, 1]: the g of g·v/|v|."""
        scale: Tensor = self.prototypes.parametrizations["weight"].original0
        return scale

    @property
    def direction(self) -> Tensor:
        """The direction of every prototype, [K, D]: the v of g·v/|v|."""
        direction: Tensor = self.prototypes.parametrizations["weight"].original1
        return direction

    def forward(self, x_BD: Tensor) -> Tensor:
        points = self.mlp(x_BD)
        logits: Tensor = self.prototypes(F.normalize(points, dim=-1) if self.norm_bottleneck else points)
        return logits


def teacher_probabilities(logits: Tensor, temperature: float) -> Tensor:
    """softmax(z / T_t), in float32."""
    return (logits.float() / temperature).softmax(-1)


class HeadLoss(nn.Module):
    """-w·PMI_β of a head over both directions, and its p_k: a buffer that the forward pass updates."""

    def __init__(self, settings: Settings, *, pmi: Pmi = beta_pmi) -> None:
        super().__init__()
        self.settings, self.pmi = settings, pmi
        self.p_k: Tensor
        self.register_buffer("p_k", torch.full((settings.num_clusters,), 1 / settings.num_clusters))

    def forward(self, student_2BK: Tensor, teacher_2BK: Tensor, weight_B: Tensor) -> Tensor:
        if self.training:
            self.update(teacher_probabilities(teacher_2BK, self.settings.teacher_temp).mean((0, 1)))
        there = self._pmi(student_2BK[0], teacher_2BK[1])
        back = self._pmi(student_2BK[1], teacher_2BK[0])
        return -(weight_B * (there + back) / 2).mean()

    @torch.no_grad()
    def update(self, mean_K: Tensor) -> None:
        """p_k ← m·p_k + (1 - m)·(mean of the teacher's probabilities)."""
        self.p_k.lerp_(mean_K.to(self.p_k.dtype), 1 - self.settings.probs_momentum)

    def _pmi(self, student_BK: Tensor, teacher_BK: Tensor) -> Tensor:
        """The loss between student and teacher with the temperatures and the exponent of the settings."""
        return self.pmi(
            student_BK,
            teacher_BK,
            self.p_k,
            beta=self.settings.beta,
            student_temperature=self.settings.student_temp,
            teacher_temperature=self.settings.teacher_temp,
        )


class Temi(nn.Module):
    """All heads. `losses[h]` belongs to `heads[h]`.

    Args:
        settings: sizes, temperatures, β.
        pmi: the mutual information of a pair.
        pmi_of: the same by the number of the head, where heads differ.
        unit: makes the layer before the heads if `l2_norm`.
        initialise: gives a head its first weights.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        pmi: Pmi = beta_pmi,
        pmi_of: Callable[[int], Pmi] | None = None,
        unit: Callable[[], nn.Module] = UnitLength,
        initialise: Callable[[Head, float], None] = small_weights,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.unit = unit() if settings.l2_norm else nn.Identity()
        self.heads = nn.ModuleList(Head(settings, initialise=initialise) for _ in range(settings.num_heads))
        self.losses = nn.ModuleList(
            HeadLoss(settings, pmi=pmi_of(number) if pmi_of else pmi) for number in range(settings.num_heads)
        )

    def forward(self, x_BD: Tensor) -> Tensor:
        """The logits of all heads, [H, B, K]."""
        embedding_BD = self.unit(x_BD)
        return torch.stack([head(embedding_BD) for head in self.heads])
