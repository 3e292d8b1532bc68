"""Early warning: when a module's output will overflow, from samples of how near it was to its dtype's limit.

The trend of log2(limit / absmax) is a straight line when a run drifts towards overflow, so a line is fitted to the
samples: "overflows in about k steps".
"""

from __future__ import annotations

from collections.abc import Sequence

_SAMPLES = 8
_FEWEST = 4
_WARN_WITHIN = 500
_WARN_BELOW_BITS = 24


def steps_left(samples: Sequence[tuple[int, float]]) -> float | None:
    """In how many steps a module overflows at this pace; `None` without a clear trend.

    Args:
        samples: step and bits of headroom, oldest first.
    """
    samples = samples[-_SAMPLES:]
    if len(samples) < _FEWEST:
        return None
    steps, bits = [step for step, _ in samples], [value for _, value in samples]
    mean_step, mean_bits = sum(steps) / len(steps), sum(bits) / len(bits)
    spread = sum((s - mean_step) ** 2 for s in steps)
    slope = sum((s - mean_step) * (b - mean_bits) for s, b in samples) / spread
    error = sum((b - mean_bits - slope * (s - mean_step)) ** 2 for s, b in samples)
    explained = slope**2 * spread
    if slope >= -1e-4 or explained < 4 * error:  # level, rising, or noise
        return None
    return max(0.0, bits[-1] / -slope)


def steps_left_in_words(name: str, samples: Sequence[tuple[int, float]]) -> str:
    """The warning about one module; empty if there is nothing to warn of."""
    left = steps_left(samples)
    if left is None or left > _WARN_WITHIN or samples[-1][1] > _WARN_BELOW_BITS:
        return ""
    return f"{name} has {samples[-1][1]:.1f} bits of headroom left and overflows in about {left:.0f} steps at this pace"
