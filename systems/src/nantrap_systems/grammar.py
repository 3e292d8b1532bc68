"""Text that has the same bytes on every machine and every Python: short descriptions made by a seeded grammar.

A text reads like the documentation of a function. Its name has two parts, `queue.sort_items`, and the text speaks of
what the name says, so that a model can learn something from a name. Lengths go from one short sentence to several
paragraphs. The random numbers are made here from integers alone: no library decides them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

COUNT = 1200
SEED = 2024

_PLACES = (
    "queue", "table", "stream", "matrix", "buffer", "parser", "ledger", "signal", "archive", "socket", "vector",
    "record", "window", "folder",
)  # fmt: skip
_VERBS = (
    ("sort", "Sort"), ("read", "Read"), ("merge", "Merge"), ("count", "Count"), ("find", "Find"), ("drop", "Drop"),
    ("copy", "Copy"), ("split", "Split"), ("check", "Check"), ("write", "Write"),
)  # fmt: skip
_THINGS = ("items", "rows", "names", "values", "lines", "blocks", "keys", "pairs", "parts", "times")
_ORDERS = ("in order", "one by one", "in place", "at once", "from the end", "by name", "without a copy")
_KINDS = ("a list", "a tuple", "a number", "a string", "a mapping", "an iterator")
_STATES = ("is empty", "is closed", "is too long", "is missing", "is not sorted", "has no name", "was changed")
_ERRORS = ("ValueError", "KeyError", "TypeError", "OSError")
_HINTS = ("The default is", "Most callers pass", "A good choice is", "It starts with")


class _Numbers:
    """Integers from a linear congruence of 64 bits; the upper bits are taken."""

    def __init__(self, seed: int) -> None:
        self._state = (seed * 2_654_435_769 + 1) % 2**64

    def below(self, limit: int) -> int:
        self._state = (self._state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
        return (self._state >> 33) % limit

    def one_of(self, choices: Sequence[str]) -> str:
        return choices[self.below(len(choices))]


@functools.cache
def texts(count: int = COUNT, *, seed: int = SEED) -> Mapping[str, str]:
    """A number of texts by name, always the same."""
    numbers = _Numbers(seed)
    found: dict[str, str] = {}
    for number in range(count):
        place, (verb, start), thing = (
            numbers.one_of(_PLACES),
            _VERBS[numbers.below(len(_VERBS))],
            numbers.one_of(_THINGS),
        )
        length = (1, 1, 2, 3, 3, 4, 5, 6, 7, 8)[numbers.below(10)]
        sentences = _sentences(numbers, place, start, thing)
        # numbered, since there are fewer names than texts; a name's first characters are what a model sees
        found[f"{place}.{verb}_{thing}_{number}"] = " ".join(next(sentences) for _ in range(length))
    return MappingProxyType(found)


def _sentences(numbers: _Numbers, place: str, start: str, thing: str) -> Iterator[str]:
    """Endless sentences about a thing in a place; the first names both."""
    yield f"{start} the {thing} of the {place}" + (f" {numbers.one_of(_ORDERS)}." if numbers.below(3) else ".")
    while True:
        match numbers.below(6):
            case 0:
                yield f"Return the {thing} as {numbers.one_of(_KINDS)}."
            case 1:
                yield f"If the {place} {numbers.one_of(_STATES)}, raise {numbers.one_of(_ERRORS)}."
            case 2:
                yield f"{numbers.one_of(_HINTS)} {numbers.below(100)}."
            case 3:
                yield f"The {place} {numbers.one_of(_STATES)} when no {thing} are left."
            case 4:
                yield f"All {thing} are taken {numbers.one_of(_ORDERS)}."
            case _:
                yield f"See {numbers.one_of(_PLACES)} for other {numbers.one_of(_THINGS)}."
