"""Diffusion models: noise schedules whose ends can be divided by, loss weights that are finite there, and AdaLN-zero.

ᾱ is the share of the signal's power at time t in [0, 1]. At t = 1 the textbook ᾱ is 0, so x₀ = (x_t - √(1-ᾱ)·ε)/√ᾱ
divides by 0 (by 1.6e-5 for a cosine schedule in float32, which amplifies an error 64,000 times); at t = 0 it is 1,
and 1/√(1-ᾱ) and the log-SNR are infinite. Here ᾱ stays within [floor, 1 - floor]: 1/√ᾱ is at most 1,000 for the
default 1e-6. Half precision could not hold 1 - 1e-6, so a schedule is computed and returned in float32 at least.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nantrap.ops.elementary import safe_sqrt
from nantrap.ops.norms import rms_norm
from nantrap.ops.precision import widen


def linear_schedule(t: Tensor, *, floor: float = 1e-6) -> Tensor:
    """ᾱ = 1 - t within [floor, 1 - floor].

    Args:
        t: Time in [0, 1]; outside it is clamped. NaN stays NaN.
        floor: Distance from 0 and from 1; 1/√ᾱ is at most 1/√floor.

    Example:
        >>> linear_schedule(torch.tensor([0.0, 0.25, 1.0]))
        tensor([1.0000e+00, 7.5000e-01, 1.0000e-06])
    """
    return _within(1 - widen(t), floor)


def cosine_schedule(t: Tensor, *, offset: float = 0.008, floor: float = 1e-6) -> Tensor:
    """ᾱ = cos²(π/2·(t+s)/(1+s)) / cos²(π/2·s/(1+s)) within [floor, 1 - floor].

    Computed as sin²(π/2·(1-t)/(1+s)), the same by symmetry: near t = 1 the cosine of an angle near π/2 has lost its
    digits, in float32 all of them, and the sine of the small rest has not.

    Args:
        t: Time in [0, 1]; outside it is clamped. NaN stays NaN.
        offset: s, which keeps the first steps from being too small.
        floor: Distance from 0 and from 1; 1/√ᾱ is at most 1/√floor.

    Example:
        >>> cosine_schedule(torch.tensor([0.0, 0.5, 1.0]))
        tensor([1.0000e+00, 4.9384e-01, 1.0000e-06])
    """
    rest = F.hardtanh(1 - widen(t), 0.0, 1.0) * (math.pi / 2 / (1 + offset))
    start = math.sin(math.pi / 2 / (1 + offset)) ** 2
    return _within(rest.sin().square() / start, floor)


def signal_and_noise(alpha_bar: Tensor) -> tuple[Tensor, Tensor]:
    """√ᾱ and √(1-ᾱ), the two factors of x_t = √ᾱ·x₀ + √(1-ᾱ)·ε. Meant for an ᾱ of these schedules.

    Example:
        >>> signal_and_noise(torch.tensor([0.36]))
        (tensor([0.6000]), tensor([0.8000]))
    """
    wide = widen(alpha_bar)
    return safe_sqrt(wide), safe_sqrt(1 - wide)


def _within(alpha_bar: Tensor, floor: float) -> Tensor:
    """Bounds ᾱ in place: it was just computed, and nothing else references it."""
    if not 0 < floor < 0.5:
        raise ValueError(f"floor is {floor}, but must lie between 0 and 0.5")
    # 1 - floor must be a number below 1: 1 - 1e-9 is 1 in float32.
    highest = min(1 - floor, 1 - torch.finfo(alpha_bar.dtype).eps)
    return F.hardtanh_(alpha_bar, floor, highest)  # as clamp, but its backward is one kernel


def min_snr_weight(
    alpha_bar: Tensor, *, prediction: Literal["epsilon", "sample", "velocity"] = "epsilon", gamma: float = 5.0
) -> Tensor:
    """The min-SNR-γ weight, with SNR = ᾱ/(1-ᾱ), for a mean squared error on ε, x₀ or v.

    ε: min(SNR, γ)/SNR · x₀: min(SNR, γ) · v: min(SNR, γ)/(SNR + 1). The SNR is Inf without noise and 0 without
    signal, so the quotients are Inf/Inf and 0/0 at the ends. Multiplied out, only a maximum of two numbers that are
    never 0 together is left below the line, and for v nothing:
    γ(1-ᾱ)/max(ᾱ, γ(1-ᾱ)) · γᾱ/max(ᾱ, γ(1-ᾱ)) · min(ᾱ, γ(1-ᾱ)).

    Args:
        alpha_bar: ᾱ in [0, 1]; the weight of half precision is float32.
        prediction: What the model predicts.
        gamma: The largest SNR that counts.

    Example:
        >>> min_snr_weight(torch.tensor([0.0, 0.5, 1.0]))
        tensor([1., 1., 0.])
    """
    signal = widen(alpha_bar)
    noise = gamma * (1 - signal)
    if prediction == "epsilon":
        return noise / torch.maximum(signal, noise)
    if prediction == "sample":
        return gamma * signal / torch.maximum(signal, noise)
    if prediction == "velocity":
        return torch.minimum(signal, noise)
    raise ValueError(f"prediction is {prediction!r}, but must be 'epsilon', 'sample' or 'velocity'")


def decoupled_weights(t: Tensor) -> tuple[Tensor, Tensor]:
    """2·e^(1-t) for the data term and e^√t for the noise term of decoupled diffusion, t in [0, 1].

    They lie in [2, 5.44] and [1, 2.72], so clamping them at 100 guards nothing; what is infinite is the slope of √t
    at t = 0, for a learned or sampled t. A t outside [0, 1], as a sampler with too many steps makes it, is clamped.

    Example:
        >>> decoupled_weights(torch.tensor([0.0, 1.0]))
        (tensor([5.4366, 2.0000]), tensor([1.0000, 2.7183]))
    """
    t = F.hardtanh(widen(t), 0.0, 1.0)  # as clamp, but its backward is one kernel
    return 2 * torch.exp(1 - t), torch.exp(safe_sqrt(t))


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
