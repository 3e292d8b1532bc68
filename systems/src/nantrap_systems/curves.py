"""Losses over steps as a picture: an SVG that needs no library, no script and no font.

A curve that is no longer finite ends in a cross, with the step at which it did: a plotting library would leave out
exactly that. Steps that were skipped are ticks at the bottom, and the curve continues over them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a8a")
"""The palette of Okabe and Ito, which colour-blind readers can distinguish."""
_STRONG = "#111111"
_WIDTH, _HEIGHT = 800, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 230, 52, 44
_LETTER = 7
"""How wide a letter of a label is at most, on average."""
_LIMIT = 1e100
"""Beyond it the height of a curve has no meaning."""
_FONT = "font-family='ui-sans-serif, system-ui, sans-serif'"


@dataclass(frozen=True, slots=True)
class Curve:
    """One run.

    Attributes:
        name: shown at its end.
        values: one per step; what is not finite is not drawn.
        skipped: steps that were not applied, whose value is left out.
        strong: drawn thicker: the main run.
        note: shown after its name, unless the run was lost.
    """

    name: str
    values: Sequence[float]
    skipped: frozenset[int] = frozenset()
    strong: bool = False
    note: str = ""

    def points(self) -> list[tuple[int, float]]:
        """Steps and values that can be drawn."""
        return [
            (step, min(max(value, -_LIMIT), _LIMIT))
            for step, value in enumerate(self.values)
            if math.isfinite(value) and step not in self.skipped
        ]

    @property
    def lost_at(self) -> int | None:
        """The step from which on nothing is finite any more: after it, no step has a value."""
        tried = [i for i in range(len(self.values)) if i not in self.skipped]
        if not tried or math.isfinite(self.values[tried[-1]]):
            return None
        last = max((i for i, _ in self.points()), default=-1)
        return next(i for i in tried if i > last)


def draw_curves(curves: Sequence[Curve], *, title: str, value: str = "loss", step: str = "step") -> str:
    """The picture as SVG text.

    Args:
        curves: the runs; the first is drawn first, the last on top.
        title: above it.
        value: what the vertical axis shows.
        step: what the horizontal axis shows.
    """
    scale = _Scale.of(curves)
    longest = max((len(_label(curve)) for curve in curves), default=0)
    width = max(_WIDTH, _WIDTH - _RIGHT + 20 + _LETTER * longest)
    size = f"viewBox='0 0 {width} {_HEIGHT}' width='{width}' height='{_HEIGHT}'"
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} role='img' {_FONT} font-size='12'>",
        f"<title>{escape(title)}</title>",
        f"<rect width='{width}' height='{_HEIGHT}' fill='white'/>",
        f"<text x='{_LEFT}' y='22' font-size='14' font-weight='600' fill='#222'>{escape(title)}</text>",
        *scale.axes(value, step),
    ]
    ends: list[tuple[float, str, str]] = []
    for index, curve in enumerate(curves):
        colour = _STRONG if curve.strong else _COLOURS[index % len(_COLOURS)]
        parts += _line(curve, scale, colour)
        ends.append((_end_height(curve, scale), _label(curve), colour))
    parts += _labels(ends)
    return "\n".join([*parts, "</svg>"]) + "\n"


@dataclass(frozen=True, slots=True)
class _Scale:
    """From steps and values to places in the picture."""

    low: float
    high: float
    steps: int
    logarithmic: bool

    @classmethod
    def of(cls, curves: Sequence[Curve]) -> _Scale:
        values = [value for curve in curves for _, value in curve.points()]
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        logarithmic = low > 0 and high / low > 50
        if logarithmic:
            low, high = math.log10(low), math.log10(high)
        room = 0.06 * (high - low) or 0.5
        return cls(low - room, high + room, max([1, *(len(curve.values) for curve in curves)]), logarithmic)

    def x(self, step: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * step / max(1, self.steps - 1)

    def y(self, value: float) -> float:
        place = math.log10(value) if self.logarithmic else value
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (place - self.low) / (self.high - self.low)

    def axes(self, value: str, step: str) -> list[str]:
        """Grid lines, numbers and names of both axes. `value` and `step` are the names."""
        bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        parts = []
        for tick in self._values():
            y = self.y(tick)
            parts.append(f"<path d='M{_LEFT} {y:.1f}H{right}' stroke='#e4e4e4'/>")
            parts.append(f"<text x='{_LEFT - 8}' y='{y + 4:.1f}' text-anchor='end' fill='#666'>{tick:.6g}</text>")
        for tick in _round_numbers(0, self.steps - 1, 6):
            parts.append(
                f"<text x='{self.x(tick):.1f}' y='{bottom + 18}' text-anchor='middle' fill='#666'>{tick:.6g}</text>"
            )
        parts.append(f"<path d='M{_LEFT} {bottom}H{right}' stroke='#999'/>")
        parts.append(f"<text x='{right}' y='{bottom + 34}' text-anchor='end' fill='#666'>{escape(step)}</text>")
        name = value + (" (logarithmic)" if self.logarithmic else "")
        return [*parts, f"<text x='{_LEFT}' y='{_TOP - 10}' fill='#666'>{escape(name)}</text>"]

    def _values(self) -> list[float]:
        if not self.logarithmic:
            return _round_numbers(self.low, self.high, 6)
        powers = range(math.floor(self.low), math.floor(self.high) + 1)
        every = max(1, math.ceil(len(powers) / 6))
        factors = (1, 2, 5) if len(powers) <= 3 else (1,)
        ticks = [10.0**power * factor for power in powers if power % every == 0 for factor in factors]
        return [tick for tick in ticks if self.low <= math.log10(tick) <= self.high]


def _round_numbers(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers from low to high."""
    rough = (high - low) / max(1, count) or 1.0
    magnitude = 10.0 ** math.floor(math.log10(rough))
    size = next(magnitude * factor for factor in (1, 2, 5, 10) if magnitude * factor >= rough)
    first = math.ceil(low / size)
    return [number * size for number in range(first, math.floor(high / size + 1e-9) + 1)]


def _line(curve: Curve, scale: _Scale, colour: str) -> list[str]:
    """One curve in SVG, with a short mark for each skipped step and a cross where the loss was lost."""
    points = curve.points()
    stroke = f"stroke='{colour}' stroke-width='{2.4 if curve.strong else 1.4}'"
    parts = []
    if points:
        places = " ".join(f"{scale.x(step):.1f},{scale.y(value):.1f}" for step, value in points)
        parts.append(f"<polyline points='{places}' fill='none' stroke-linejoin='round' {stroke}/>")
    bottom = _HEIGHT - _BOTTOM
    for step in sorted(curve.skipped):
        parts.append(f"<path d='M{scale.x(step):.1f} {bottom}v-9' {stroke}/>")
    if curve.lost_at is not None:
        x, y = scale.x(curve.lost_at), scale.y(points[-1][1]) if points else bottom - 12
        parts.append(f"<path d='M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10' stroke='{colour}' stroke-width='2.4'/>")
    return parts


def _label(curve: Curve) -> str:
    said = [f"{len(curve.skipped)} skipped"] if curve.skipped else []
    if curve.lost_at is not None:
        said.append(f"NaN from {curve.lost_at}")
    elif curve.note:
        said.append(curve.note)
    return f"{curve.name}: {', '.join(said)}" if said else curve.name


def _end_height(curve: Curve, scale: _Scale) -> float:
    points = curve.points()
    return scale.y(points[-1][1]) if points else _HEIGHT - _BOTTOM - 12.0


def _labels(ends: list[tuple[float, str, str]]) -> list[str]:
    """The names at the right, each near the end of its curve, none over another."""
    gap, bottom = 16.0, _HEIGHT - _BOTTOM
    placed: list[tuple[float, str, str]] = []
    for height, text, colour in sorted(ends):
        placed.append((max(height, placed[-1][0] + gap) if placed else height, text, colour))
    parts = []
    limit = float(bottom)
    for height, text, colour in reversed(placed):  # those that were pushed out at the bottom are pulled back
        y = min(height, limit)
        limit = y - gap
        parts.append(f"<text x='{_WIDTH - _RIGHT + 12}' y='{y + 4:.1f}' fill='{colour}'>{escape(text)}</text>")
    return parts
