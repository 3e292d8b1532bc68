"""Rounds of a loop inside one pass: the same operation at the same line, repeated, and how its results grow."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nantrap.locate.trace import Op, Trace

_FEWEST = 4
"""Rounds from which on a repetition is a loop and not two or three layers."""
_FEWEST_ACCELERATING = 3
"""The same of a loop that squares its values: it overflows before it has more rounds."""
_MOST_ANCESTORS = 20_000
"""Bounds the time of the search in a trace of a very large step."""
_STEADY = 1.3
"""The factor of a round from which on a loop overflows within a few hundred rounds."""
_TENFOLD = 10.0
"""What the last seven rounds must have made of the values together: single factors are noisy."""
_SLOW = 1.01
"""The mean factor of a loop that grows slowly; below it the values hardly move."""
_MILLIONFOLD = 1e6
"""What a loop that grows slowly must have made of its values."""
_RISING = 0.6
"""The part of its rounds that must have grown: more than by chance."""
_ALIKE = 3.0
"""Factors within this of the typical one are given as that one; others by their range."""
_NEGLIGIBLE = 1e-9
"""A loop whose values end this far below those of another one did not carry them to the overflow."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """One operation of a loop: its largest magnitudes in the rounds that grew, and the typical factor between two."""

    op: Op
    values: tuple[float, ...]
    factor: float
    accelerates: bool = False
    last: tuple[int, ...] = ()
    """The last two operations, by their index in the trace."""

    @property
    def growth(self) -> str:
        """`about 2`, `54 to 4.8e+06`, or `more and more`."""
        if self.accelerates:
            return "more and more"
        factors = [after / before for before, after in itertools.pairwise(self.values)]
        low, high = min(factors, default=self.factor), max(factors, default=self.factor)
        alike = low > self.factor / _ALIKE and high < self.factor * _ALIKE
        return f"about {self.factor:.3g}" if alike else f"{low:.2g} to {high:.2g}"

    @property
    def size(self) -> str:
        """`2`, or `30 at first and 1e+08 at last`."""
        if not self.accelerates:
            return f"{self.factor:.3g}"
        return f"{self.values[1] / self.values[0]:.3g} at first and {self.values[-1] / self.values[-2]:.3g} at last"


def growing_rounds(trace: Trace, origin: Op) -> Rounds | None:
    """The loop that carried values up to the overflow at `origin`, in the pass that it belongs to."""
    own = _rounds(trace, origin, range(origin.index))
    if own is not None:
        return own
    groups: dict[object, Op] = {}
    ancestors = _ancestors(trace, origin)
    for index in ancestors:
        groups.setdefault(_place(trace.ops[index]), trace.ops[index])
    found = [rounds for op in groups.values() if (rounds := _rounds(trace, op, ancestors)) is not None]
    near = [rounds for rounds in found if rounds.values[-1] > _NEGLIGIBLE * max(one.values[-1] for one in found)]
    return max(near, key=lambda rounds: rounds.values[-1] / rounds.values[0], default=None)


def _rounds(trace: Trace, like: Op, among: range | list[int]) -> Rounds | None:
    """The operations at the place of `like`, if their results grow from round to round."""
    place = _place(like)
    same = [op for index in among if _place(op := trace.ops[index]) == place and op.absmax]
    values = [op.absmax for op in same if op.absmax]
    ratios = [after / before for before, after in itertools.pairwise(values)]
    if len(values) < (_FEWEST_ACCELERATING if _accelerates(ratios) else _FEWEST) or not _repeats(trace, same):
        return None
    last = tuple(op.index for op in same[-2:])
    total = values[-1] / values[0]
    tail = sorted(ratios[-7:])
    typical = tail[len(tail) // 2]
    mean = total ** (1 / len(ratios))
    rising = sum(ratio > 1 for ratio in ratios) / len(ratios)
    fast = typical >= _STEADY and values[-1] / values[max(0, len(values) - 8)] >= _TENFOLD
    slow = total >= _MILLIONFOLD and mean >= _SLOW and rising >= _RISING
    if fast:
        grown = tuple(_since_it_grows(values, ratios, typical))
        return Rounds(like, grown, typical, _accelerates(ratios), last)
    return Rounds(like, tuple(values), mean, last=last) if slow else None


def _since_it_grows(values: list[float], ratios: list[float], typical: float) -> list[float]:
    """The values of the last rounds, from where they began to grow as the last ones do; single rounds may differ."""
    if _accelerates(ratios):
        return values
    start, least = len(ratios), math.sqrt(typical)
    for index in reversed(range(len(ratios))):
        if ratios[index] >= least:
            start = index
        elif index + 1 != start:  # a second round in a row
            break
    return values[start:]


def _accelerates(ratios: list[float]) -> bool:
    """Whether each round multiplies by more than the one before (a square, a cube): such a loop overflows after few."""
    rising = all(later > earlier for earlier, later in itertools.pairwise(ratios))
    return len(ratios) >= _FEWEST_ACCELERATING - 1 and rising and ratios[0] > 1 and ratios[-1] >= _MILLIONFOLD**0.5


def _repeats(trace: Trace, rounds: list[Op]) -> bool:
    """Whether each round runs through the same modules. A loop over different layers is depth, not recurrence."""
    between = [
        frozenset(op.module for op in trace.ops[a.index : b.index + 1]) for a, b in itertools.pairwise(rounds[-6:])
    ]
    return len(set(between)) <= 1


def _place(op: Op) -> object:
    """Identifies a place in the program: the instruction of the user's code, in backward the node that it made."""
    place = None if op.place is None else (op.place.code, op.place.instruction)
    return op.name, op.phase, op.module, op.node, place


def _ancestors(trace: Trace, origin: Op) -> list[int]:
    """The operations of the same pass whose values flowed into the origin, in order of time."""
    seen: set[int] = set()
    stack = list(origin.sources)
    while stack and len(seen) < _MOST_ANCESTORS:
        index = stack.pop()
        if index >= 0 and index not in seen and trace.ops[index].phase == origin.phase:
            seen.add(index)
            stack += trace.ops[index].sources
    return sorted(seen)
