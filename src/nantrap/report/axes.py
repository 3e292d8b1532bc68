"""Axes: from values to heights, from steps to places, and the round numbers of the ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from nantrap.report.columns import Columns

_LARGEST = 1e300
"""Beyond it the height of a curve has no meaning, and differences overflow."""
_FLOOR = 14.0
"""Height of the strip for values that a logarithmic axis cannot show."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A value to a height, 0 at the top. On a logarithmic axis what is not above zero goes to a floor strip.

    `clipped` says that some values lie outside of `low` to `high` and are drawn at the edge.
    """

    low: float
    high: float
    height: float
    logarithmic: bool = False
    floor: bool = False
    clipped: bool = False

    @property
    def bottom(self) -> float:
        """The height at which `low` is drawn."""
        return self.height - (_FLOOR if self.floor else 0.0)

    def __call__(self, number: float) -> float:
        if self.logarithmic:
            if number <= 0:
                return self.height - 5.0 if self.floor else self.bottom
            low, high = math.log10(self.low), math.log10(self.high)
            share = (math.log10(number) - low) / (high - low)
        else:
            share = (number - self.low) / (self.high - self.low)
        return self.bottom - min(1.0, max(0.0, share)) * self.bottom

    def ticks(self, most: int = 5) -> list[float]:
        """Round numbers for the axis."""
        if not self.logarithmic:
            return round_numbers(self.low, self.high, most)
        low, high = math.log10(self.low), math.log10(self.high)
        powers = range(math.floor(low), math.floor(high) + 1)
        for factors in ((1, 2, 5), (1, 3), (1,)):
            found = [factor * 10.0**power for power in powers for factor in factors]
            found = [tick for tick in found if low - 1e-9 <= math.log10(tick) <= high + 1e-9]
            if len(found) <= most:
                return found if len(found) > 1 else round_numbers(self.low, self.high, most)
        every = math.ceil(len(found) / most)
        return [tick for tick in found if round(math.log10(tick)) % every == 0]


def scale_for(
    curves: Iterable[Columns], *, height: float, include: Sequence[float] = (), logarithmic: bool | None = None
) -> Scale:
    """The axis that shows these curves whole, except for values so far away that nothing else could be seen.

    Args:
        curves: what is drawn.
        height: of the plot.
        include: values that must be on the axis, such as a limit.
        logarithmic: `None` chooses it for positive values of several magnitudes.
    """
    lows = np.concatenate([np.asarray(include, dtype=float), *(curve.low for curve in curves)])
    highs = np.concatenate([np.asarray(include, dtype=float), *(curve.high for curve in curves)])
    lows, highs = lows[np.isfinite(lows)], highs[np.isfinite(highs)]
    if not len(lows):
        return Scale(0.0, 1.0, height)
    low, high = float(lows.min()), float(highs.max())
    positive = lows[lows > 0]
    if logarithmic is None:
        logarithmic = len(positive) > 0 and low >= 0 and high > 4 * float(positive.min())
    if logarithmic and len(positive) and high > 0:
        return _logarithmic(low, high, positive, height)
    return _linear(lows, highs, [number for number in include if math.isfinite(number)], height)


def _logarithmic(low: float, high: float, positive: np.ndarray, height: float) -> Scale:
    first, last = math.log10(max(float(positive.min()), 1e-260)), math.log10(min(high, 1e260))
    room = max(0.06 * (last - first), 0.06)
    return Scale(10 ** (first - room), 10 ** (last + room), height, logarithmic=True, floor=low <= 0)


def _linear(lows: np.ndarray, highs: np.ndarray, include: Sequence[float], height: float) -> Scale:
    """A linear scale for the usual values: a few extreme ones must not flatten all others, so they are cut off.

    Those of `include` never are. It begins at 0 where the values are not far from it, and leaves some room at both
    ends.
    """
    lows, highs = np.clip(lows, -_LARGEST, _LARGEST), np.clip(highs, -_LARGEST, _LARGEST)
    low, high = float(lows.min()), float(highs.max())
    usual_low, usual_high = float(np.quantile(lows, 0.02)), float(np.quantile(highs, 0.98))
    room = max(usual_high - usual_low, 1e-12 * max(abs(usual_low), abs(usual_high)), 1e-300)
    least, most = min([usual_low, *include]), max([usual_high, *include])
    clipped = False
    if high > most + 8 * room:
        high, clipped = most + room, True
    if low < least - 8 * room:
        low, clipped = least - room, True
    if high - low <= 1e-9 * max(abs(high), abs(low)):
        middle = (high + low) / 2
        margin = abs(middle) * 0.1 or 1.0
        return Scale(middle - margin, middle + margin, height, clipped=clipped)
    margin = 0.06 * (high - low)
    bottom = 0.0 if 0 <= low < 0.4 * high else low - margin
    return Scale(bottom, high + margin, height, clipped=clipped)


def round_numbers(low: float, high: float, most: int) -> list[float]:
    """At most about `most` round numbers from low to high."""
    rough = (high - low) / max(1, most)
    if not math.isfinite(rough) or rough <= 0:
        return [low]
    magnitude = 10.0 ** math.floor(math.log10(rough))
    size = next(magnitude * factor for factor in (1, 2, 5, 10, 20) if magnitude * factor >= rough * 0.999)
    first = math.ceil(low / size - 1e-9)
    return [number * size for number in range(first, math.floor(high / size + 1e-9) + 1)]


def tick_text(number: float) -> str:
    """`0.05`, `1`, `4e-4`, `1e5`, `30,000`."""
    if number == 0:
        return "0"
    if 1e-3 <= abs(number) < 1e5:
        return f"{number:,.10g}" if abs(number) >= 1000 else f"{number:.4g}"
    mantissa, _, power = f"{number:.2e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"


def step_texts(steps: Sequence[float]) -> list[str]:
    """Steps on an axis: `4k`, `1.5M` where all of them are that round, whole numbers otherwise."""
    largest = max(steps, default=0)
    for unit, name in ((1_000_000, "M"), (1_000, "k")):
        if largest >= unit and all(step % (unit / 10) == 0 for step in steps):
            return [f"{step / unit:g}{name}" if step else "0" for step in steps]
    return [f"{step:,.0f}" for step in steps]
