"""Numbers in sentences."""

from __future__ import annotations

import math


def number(value: float) -> str:
    """Four digits, as people write them: `2.341`, `1.23e-05`, `NaN`."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    return f"{value:.4g}"


def share(part: int, total: int) -> str:
    """`3 of 1,204 (0.25%)`."""
    return f"{part:,} of {total:,} ({100 * part / total:.3g}%)" if total else "0 of 0"


def duration(seconds: float) -> str:
    """`12 s`, `3 min`, `2.5 h`, `4 days`."""
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}" if unit == "h" else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"
