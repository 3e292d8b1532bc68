"""Loss weights of diffusion models, finite at both ends of the noise schedule."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from nantrap.ops.elementary import safe_sqrt
from nantrap.ops.precision import widen


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
