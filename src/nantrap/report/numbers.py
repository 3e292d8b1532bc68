"""Numbers as people read them: the same in the terminal, on a page and in a table."""

from __future__ import annotations

import math
from collections.abc import Iterable


def value(number: float | None, digits: int = 6) -> str:
    """`NaN`, `+Inf`, `-Inf`, or the number in a few digits."""
    if number is None:
        return "unknown"
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    if 10.0**digits <= abs(number) < 1e7:
        return f"{number:,.0f}"
    return f"{number:.{digits}g}"


def percent(part: float, whole: float) -> str:
    """`99.4 %`: never rounded up to 100, never down to 0, and 100 for nothing at all."""
    if whole <= 0 or part >= whole:
        return "100 %"
    if part <= 0:
        return "0 %"
    share = 100.0 * part / whole
    for digits in (2, 3, 4) if share < 10 else (1, 2, 3, 4):
        text = f"{share:.{digits}f}"
        if 0.0 < float(text) < 100.0:
            return f"{text.rstrip('0').rstrip('.')} %"
    return "under 0.0001 %" if share < 50 else "over 99.9999 %"


def shape(sizes: Iterable[int]) -> str:
    """`16×4×18`, or `scalar`."""
    return "×".join(str(size) for size in sizes) or "scalar"
