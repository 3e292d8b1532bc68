"""How large is too large: one limit for each question that several rules ask, with the reason for its value."""

from __future__ import annotations

from typing import Final

ABSURD_VALUE: Final = 1e12
"""No quantity of training is this large: of a value in a batch, or of one weight that lies as far above all others.

Its square is 1e24, which float32 still holds; the sums, products and powers of a network overflow soon after it.
"""
FLOAT16_MAX: Final = 65504
"""The largest finite float16."""
ABSURD_RATE: Final = 1e9
"""A learning rate above this is a mistake of the schedule, a division by 0 or a wrong unit; no trial is needed."""
HIGHEST_MEANT_RATE: Final = 1e3
"""Nobody sets a learning rate above this; a fraction of it may still be too high, so a usual rate is tried as well."""


def is_absurd(value: float) -> bool:
    """Whether a finite magnitude is far too large for any model."""
    return value >= ABSURD_VALUE
