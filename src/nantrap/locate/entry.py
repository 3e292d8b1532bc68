"""The call by which a framework computes the loss of a batch, noted while it is made.

Lightning calls `training_step`, transformers calls `compute_loss`. When the guard finds a step bad, that function has
returned, and its frame is gone with it. So its arguments are kept by reference until the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """A call: `function(*before, batch, *after, **named)`. The loss is its result, or `"loss"` in its result."""

    function: Callable[..., Any]
    batch: Any
    before: tuple[Any, ...] = ()
    after: tuple[Any, ...] = ()
    named: Mapping[str, Any] = {}

    @property
    def code(self) -> CodeType | None:
        """The code of the function; `None` for one that has none in Python."""
        inner = self.function.__func__ if isinstance(self.function, MethodType) else self.function
        return inner.__code__ if isinstance(inner, FunctionType) else None


_last: list[Entry] = []


def note_entry(entry: Entry) -> None:
    """A framework is about to compute a loss."""
    _last[:] = [entry]


def last_entry() -> Entry | None:
    """The last call that was noted."""
    return _last[0] if _last else None


def forget_entry() -> None:
    """The training is over: nothing of it is kept alive."""
    _last.clear()
