"""Charts as inline SVG without a script: axes with round numbers, curves, and the marks on them.

A curve is drawn in a stretched inner picture, text and marks outside of it in per cent. Text never scales, colours come
from the page's style, and every chart has a description for screen readers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

from nantrap.incident.wording import visible
from nantrap.record import Envelope

_LARGEST = 1e300
"""Beyond it the height of a curve has no meaning, and differences overflow."""
_FLOOR = 14.0
"""Height of the strip for values that a logarithmic axis cannot show."""
_WIDTH = 1000
_SPIKE = 3.0
"""A largest value beyond this many times the middle one is drawn as a separate stroke."""


# ---- axes


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
    curves: Iterable[Envelope], *, height: float, include: Sequence[float] = (), logarithmic: bool | None = None
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


# ---- curves and what is drawn over them


@dataclass(frozen=True, slots=True)
class Range:
    """The steps that a chart shows; every chart of a page shares it."""

    first: int
    last: int

    def percent(self, step: float) -> float:
        """Where a step is, from 0 to 100."""
        return 100.0 * (step - self.first + 0.5) / max(1, self.last - self.first + 1)

    def ticks(self, most: int = 11) -> list[tuple[float, str, bool]]:
        """Place, text, and whether the label is left out on a phone."""
        numbers = [n for n in round_numbers(self.first, self.last, most) if n == int(n)]
        texts = step_texts(numbers)
        return [(self.percent(n), text, i % 2 == 1) for i, (n, text) in enumerate(zip(numbers, texts, strict=True))]


def curve(found: Envelope, scale: Scale, *, kind: str = "l1", band: bool = True, stairs: bool = False) -> Markup:
    """A curve with gaps where nothing is finite; a lone finite column stays visible as a short stroke."""
    size = _WIDTH / max(1, len(found))
    parts: list[str] = []
    for first, last in _runs(found.finite == 0):
        if found.nonfinite[first : last + 1].any():
            start, width = first * size, max(1.5, (last - first + 1) * size)
            parts.append(f'<rect class="hatch" x="{start:.1f}" y="0" width="{width:.1f}" height="{scale.bottom:.0f}"/>')
    for first, last in _joined(found):
        places = [i for i in range(first, last + 1) if found.finite[i]]
        line = [(f"{(i + 0.5) * size:.1f}", f"{scale(float(found.middle[i])):.1f}") for i in places]
        if band and len(places) > 1:
            up = " ".join(f"{x} {scale(float(found.high[i])):.1f}" for i, (x, _) in zip(places, line, strict=True))
            down = " ".join(
                f"{x} {scale(float(found.low[i])):.1f}" for i, (x, _) in reversed([*zip(places, line, strict=True)])
            )
            parts.append(f'<path class="band" d="M{up} {down}z"/>')
        if spikes := "".join(_spikes(found, scale, places, size)):
            parts.append(f'<path class="l {kind} thin" d="{spikes}"/>')
        parts.append(f'<path class="l {kind}" d="{_line(line, places, found, size, stairs=stairs)}"/>')
    return Markup("".join(parts))  # numbers only


def hatched(step: int, span: Range, scale: Scale) -> Markup:
    """One step, hatched over the whole height and wide enough to be seen."""
    size = _WIDTH / (span.last - span.first + 1)
    width = max(6.0, size)
    start = min((step - span.first) * size, _WIDTH - width)
    return Markup('<rect class="hatch" x="{:.1f}" y="0" width="{:.1f}" height="{:.0f}"/>').format(
        start, width, scale.bottom
    )


def chart(
    title: str,
    *,
    describe: str,
    scale: Scale,
    span: Range,
    inner: str,
    over: str = "",
    caption: str = "",
    now: str = "",
    ident: str = "",
    lifted: bool = False,
) -> Markup:
    """The frame of a chart: axes, labels, title. `inner` is stretched; `over` and `caption` are markup."""
    height = scale.height
    ticks = scale.ticks(6 if height > 150 else 4 if height > 70 else 3)
    if scale.floor:
        ticks = [t for t in ticks if scale(t) < scale.bottom - 8]
    grid = "".join(f'<path class="grid" d="M0 {scale(t):.1f}H{_WIDTH}"/>' for t in ticks)
    grid += "".join(f'<path class="grid" d="M{place * 10:.1f} 0V{height:.0f}"/>' for place, _, _ in span.ticks())
    labels = "".join(f'<text x="-7" y="{scale(t) + 4:.1f}" text-anchor="end">{tick_text(t)}</text>' for t in ticks)
    if scale.floor:
        labels += f'<text x="-7" y="{height - 1:.0f}" text-anchor="end">≤ 0</text>'
        labels += f'<line class="axis" x1="0" x2="100%" y1="{scale.bottom + 3:.0f}" y2="{scale.bottom + 3:.0f}"/>'
    labels += str(step_labels(span, height))
    identity = f' id="{escape(ident)}"' if ident else ""
    return Markup(
        f"<figure{identity}><figcaption><b>{escape(visible(title))}</b>{caption}"
        f'<span class="now">{escape(visible(now))}</span></figcaption>'
        f'<div class="plot{" lifted" if lifted else ""}">'
        f'<svg width="100%" height="{height + 18:.0f}" role="img" aria-label="{escape(visible(describe))}">'
        f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" width="100%" height="{height:.0f}" preserveAspectRatio="none">'
        f'{grid}{inner}</svg><line class="axis" x1="0" x2="100%" y1="{height:.0f}" y2="{height:.0f}"/>'
        f"{labels}{over}</svg></div></figure>"
    )


def step_labels(span: Range, height: float) -> Markup:
    """The numbers of the steps below a picture of this height."""
    labels = ""
    for place, text, hidden in span.ticks():
        anchor = "start" if place < 2 else "end" if place > 98 else "middle"
        klass = ' class="wide"' if hidden else ""
        labels += f'<text x="{place:.2f}%" y="{height + 14:.0f}" text-anchor="{anchor}"{klass}>{text}</text>'
    return Markup(labels)  # numbers only


def note(text: str) -> Markup:
    """A grey remark in the caption of a chart."""
    return Markup("<span>{}</span>").format(visible(text))


def rug(steps: Iterable[int], span: Range, height: float, *, length: float = 7) -> Markup:
    """A tick at the bottom for each of these steps; several at one place are one tick."""
    places = sorted({round(span.percent(step) * 10) for step in steps if span.first <= step <= span.last})
    path = "".join(f"M{place} {height - length:.0f}v{length:.0f}" for place in places)
    return Markup(f'<path class="l lbad thin" d="{path}"/>') if path else Markup("")


def guides(steps: Iterable[int], span: Range, height: float) -> Markup:
    """Dotted verticals."""
    places = sorted({f"{span.percent(step):.2f}" for step in steps})
    return Markup("".join(f'<line class="guide" x1="{p}%" x2="{p}%" y1="0" y2="{height:.0f}"/>' for p in places))


def limit_line(limit: float, text: str, scale: Scale, *, tone: str = "warn", lifted: bool = False) -> Markup:
    """A dashed horizontal at a limit (of a dtype, of the norm) with its name above it, or below it at the top.

    A chart that is lifted has room above.
    """
    y = scale(limit)
    below = y + 13 if y < 16 and not lifted else y - 4
    return Markup(
        f'<line x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}" class="l l{tone} dash"/>'
        f'<text x="4" y="{below:.1f}" class="t{tone} halo">{escape(visible(text))}</text>'
    )


def flag(step: int, span: Range, y: float, text: str, *, tone: str = "bad", short: str = "") -> Markup:
    """Words at a step, on the side where there is room. `short` is all that a phone shows."""
    place = span.percent(step)
    left = place > 55
    anchor, offset = ("end", -0.8) if left else ("start", 0.8)
    rest = escape(visible(text.removeprefix(short))) if short else ""
    words = f'{escape(visible(short))}<tspan class="wide">{rest}</tspan>' if short else escape(visible(text))
    klass = f"t{tone}" if tone else "t"
    return Markup(
        f'<text x="{place + offset:.2f}%" y="{y:.0f}" text-anchor="{anchor}" class="{klass} halo">{words}</text>'
    )


def numbered(step: int, span: Range, y: float, text: str) -> Markup:
    """A numbered disc."""
    place = f"{min(99.3, max(0.7, span.percent(step))):.2f}%"
    return Markup(
        f'<circle cx="{place}" cy="{y:.0f}" r="8.5" class="fbad"/>'
        f'<text x="{place}" y="{y + 4:.0f}" text-anchor="middle" class="b fbg">{escape(text)}</text>'
    )


def diamond(step: int, number: float, span: Range, scale: Scale) -> Markup:
    """One measurement among others, such as an evaluation."""
    place = f"{min(99.6, span.percent(step)):.2f}%"
    return Markup(
        f'<svg x="{place}" y="{scale(number):.1f}" overflow="visible">'
        '<path d="M0 -5L5 0L0 5L-5 0z" class="fbg l3 thick"/></svg>'
    )


def swatch(kind: str, name: str) -> Markup:
    """An entry of a legend: a piece of line and a name."""
    return Markup(
        '<span class="key"><svg width="22" height="4" aria-hidden="true">'
        '<path class="l {}" d="M0 2H22"/></svg>{}</span>'
    ).format(kind, visible(name))


_SPARK = 60


def spark(values: Sequence[float]) -> Markup:
    """A small curve without axes, of `spark_paths`."""
    line, ticks = spark_paths(values)
    return Markup(f'<path class="l l1" d="{line}"/>') + Markup(f'<path class="l lbad" d="{ticks}"/>' if ticks else "")


def spark_paths(values: Sequence[float]) -> tuple[str, str]:
    """The paths of a small curve: the largest finite value of each of at most 60 groups, logarithmic where it can be,
    and a tick below each group in which a value is not finite. Only a group without any finite value breaks the curve.
    """
    many = min(_SPARK, len(values))
    groups = [values[len(values) * i // many : len(values) * (i + 1) // many] for i in range(many)]
    highest = [max((v for v in group if math.isfinite(v)), default=None) for group in groups]
    good = [v for v in highest if v is not None]
    low, high = (min(good), max(good)) if good else (0.0, 0.0)
    width, height = 120, 22
    scale = Scale(low / 1.03, high * 1.03, height, logarithmic=True) if low > 0 else Scale(low, high + 1e-12, height)
    line, ticks, pen = "", "", False
    for i, (group, top) in enumerate(zip(groups, highest, strict=True)):
        x = f"{(i + 0.5) * width / many:.1f}"
        if top is not None:
            line += f"{'L' if pen else 'M'}{x} {scale(top):.1f}" + ("" if pen else "h.1")
        pen = top is not None
        if not all(map(math.isfinite, group)):
            ticks += f"M{x} {height - 5}v5"
    return line, ticks


def _runs(flags: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """First and last index of each stretch of true values."""
    start = None
    for i, flagged in enumerate(flags):
        if flagged and start is None:
            start = i
        elif not flagged and start is not None:
            yield start, i - 1
            start = None
    if start is not None:
        yield start, len(flags) - 1


def _joined(found: Envelope) -> Iterator[tuple[int, int]]:
    """Stretches that one line may cross: columns without any value (a rare measurement) do not break it, nor do a few
    that are not finite (steps that were skipped); many do."""
    broken = (found.finite == 0) & (found.nonfinite > 0)
    for first, last in _runs(broken):
        if last - first < len(found) // 40:
            broken[first : last + 1] = False
    for first, last in _runs(~broken):
        if found.finite[first : last + 1].any():
            yield first, last


def _spikes(found: Envelope, scale: Scale, places: Sequence[int], size: float) -> Iterator[str]:
    """Thin lines for single steps far above or below the rest of their column, which the curve would hide."""
    for i in places:
        low, middle, high = float(found.low[i]), float(found.middle[i]), float(found.high[i])
        above = high > _SPIKE * abs(middle) and abs(scale(high) - scale(middle)) > 6
        below = low < 0 and -low > _SPIKE * abs(middle) and abs(scale(low) - scale(middle)) > 6
        if above:
            yield f"M{(i + 0.5) * size:.1f} {scale(middle):.1f}V{scale(high):.1f}"
        if below:
            yield f"M{(i + 0.5) * size:.1f} {scale(middle):.1f}V{scale(low):.1f}"


def _line(line: Sequence[tuple[str, str]], places: Sequence[int], found: Envelope, size: float, *, stairs: bool) -> str:
    """The SVG path of a curve without gaps: straight from point to point, or in stairs for values that jump."""
    if len(line) == 1:
        x, y = places[0] * size, line[0][1]
        return f"M{x:.1f} {y}H{x + max(size, 2):.1f}"
    if not stairs:
        return "M" + " ".join(f"{x} {y}" for x, y in line)
    path = f"M{places[0] * size:.1f} {line[0][1]}"
    for i, (_, y), (_, earlier) in zip(places[1:], line[1:], line, strict=False):
        if y != earlier:
            path += f"H{i * size:.1f}V{y}"
    return path + f"H{(places[-1] + 1) * size:.1f}"
