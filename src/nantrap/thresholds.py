"""How much is too much: one constant or function for each question that several parts of nantrap ask.

A tuned number that only one file needs stays in that file, with its reason. Where two parts ask the same question and
need different answers, both answers stand here. Imports nothing of nantrap, and no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

LARGEST: Final[Mapping[str, float]] = MappingProxyType(
    {
        "float64": 1.7976931348623157e308,
        "float32": 3.4028234663852886e38,
        "bfloat16": 3.3895313892515355e38,
        "float16": 65504.0,
        "float8_e4m3fn": 448.0,
        "float8_e5m2": 57344.0,
    }
)
"""The largest finite value of each dtype, by PyTorch's name, for what opens without torch."""
FLOAT16_MAX: Final = LARGEST["float16"]
"""The largest finite float16."""
SQUARE_OVERFLOWS: Final = math.sqrt(LARGEST["float32"])
"""Beyond the root of float32's limit, 1.8e19, a square overflows: no activation, norm or second moment survives it."""

# ---- values, weights and learning rates

_ABSURD_VALUE: Final = 1e12
_ABSURD_WEIGHT: Final[Mapping[str, float]] = MappingProxyType(
    {
        "float64": SQUARE_OVERFLOWS,
        "float32": SQUARE_OVERFLOWS,
        "bfloat16": SQUARE_OVERFLOWS,
        "float16": 0.9 * FLOAT16_MAX,  # such a weight overflows in the first sum
    }
)
_LARGE_VALUE: Final = 1e6
_ABSURD_RATE: Final = 1e9
HIGHEST_MEANT_RATE: Final = 1e3
"""Nobody sets a learning rate above this; a fraction of it may still be too high, so a usual rate is tried as well."""
LARGE_GAIN: Final = 4.0
"""A weight of a step that failed is suspected if it multiplies the scale of its input by more than this.

A usual initialisation has a gain of 0.5 to 2. The step is tried with the weight rescaled, so that a suspicion may be
wrong.
"""
LARGE_GAIN_BEFORE_TRAINING: Final = 10.0
"""The same gain in a model that has not failed: nothing is tried there, so that the warning must be right."""
MASKED: Final = -1e4
"""An added mask has 0 for a valid position and this or less for a masked one.

It is the first value in common use (BERT's), and scores of an attention stay far above it.
"""


def is_absurd(value: float) -> bool:
    """Whether a finite magnitude, of a value in a batch or of a weight beside smaller ones, is too large for any model.

    The limit is 1e12. Its square is 1e24, which float32 still holds; the sums, products and powers of a network
    overflow soon after it.
    """
    return value >= _ABSURD_VALUE


def is_absurd_weight(value: float, dtype: str) -> bool:
    """Whether a stored magnitude cannot belong to a healthy checkpoint. A dtype that is not known has no limit.

    Higher than in `is_absurd`: nothing failed yet, and a healthy checkpoint must not be called bad.
    """
    return value > _ABSURD_WEIGHT.get(dtype, math.inf)


def is_large(value: float) -> bool:
    """Whether a finite magnitude is a million times the usual scale, so that it may overflow inside one operation.

    Values up to 1e6 cannot: a sum of a billion of their squares is 1e21, and float32 ends at 3.4e38.
    """
    return value > _LARGE_VALUE


def is_absurd_rate(rate: float) -> bool:
    """Whether a learning rate is NaN or above 1e9: a mistake of the schedule, a division by 0 or a wrong unit. No trial
    is needed."""
    return not abs(rate) <= _ABSURD_RATE


# ---- against the steps before

_FAR_OUTSIDE: Final = 20.0
_GROWN: Final = 8.0
STILL_AT_A_FAILURE: Final = 8
"""Steps in a row with a gradient norm of exactly 0 after which a failure gets the hint that nothing was learned."""
MOST_GRADIENTS: Final = 20
"""Bad gradients of a step that an incident lists one by one."""
DEAD_AFTER: Final = 20
"""Steps in a row without any gradient after which a run is called dead.

More than at a failure: a run that goes on is interrupted by a message, and warm-up steps or a frozen phase are short.
"""


def far_outside(magnitudes: Sequence[float]) -> float:
    """Above which magnitude a batch lies far outside the batches before it.

    That is 20 times their largest: batches of one dataset differ by less, and a wrong unit (255 for pixels, 1,000 for
    milli) by more. Data with long tails, whose largest batch is far above the median, are far outside only further out.

    Args:
        magnitudes: the largest magnitudes of the batches before, all above 0.
    """
    ordered = sorted(magnitudes)
    largest, median = ordered[-1], ordered[len(ordered) // 2]
    return largest * max(_FAR_OUTSIDE, (largest / median) ** 2)


def has_grown(growth: float) -> bool:
    """Whether a loss or gradient norm really rose over the recent steps, from how many times larger it is now.

    The noise of batches and a harder stretch of the data stay below 8.
    """
    return growth >= _GROWN
