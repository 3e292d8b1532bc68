"""Numbers in sentences."""

from __future__ import annotations

import math

from nantrap.incident.wording import percent


def number(value: float) -> str:
    """Four digits, as people write them: `2.341`, `1.23e-05`, `NaN`."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    return f"{value:.4g}"


def share(part: int, total: int) -> str:
    """`3 of 1,204 (0.25%)`; less than all is never called 100%."""
    return f"{part:,} of {total:,} ({percent(part, total).replace(' ', '')})" if total else "0 of 0"
