"""Noise schedules whose ends can be divided by.

ᾱ is the share of the signal's power at time t in [0, 1]. At t = 1 the textbook ᾱ is 0, so x₀ = (x_t - √(1-ᾱ)·ε)/√ᾱ
divides by 0 (by 1.6e-5 for a cosine schedule in float32, which amplifies an error 64,000 times); at t = 0 it is 1,
and 1/√(1-ᾱ) and the log-SNR are infinite. Here ᾱ stays within [floor, 1 - floor]: 1/√ᾱ is at most 1,000 for the
default 1e-6. Half precision could not hold 1 - 1e-6, so a schedule is computed and returned in float32 at least.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from nantrap.ops.elementary import safe_sqrt
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
