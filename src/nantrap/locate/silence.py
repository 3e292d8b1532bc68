"""What the user's code prints while a failed step is run again: it was printed when the step ran."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any


class _Muted:
    """A stream without what one thread writes; everything else is that of the stream below."""

    def __init__(self, below: Any) -> None:
        self._below = below
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        """Write the text, unless it comes from the thread of the replay."""
        if threading.get_ident() == self._thread:
            return len(text)
        written: int = self._below.write(text)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)


@contextlib.contextmanager
def silently() -> Iterator[None]:
    """No warning, and nothing on stdout from this thread. A sample that is run alone makes torch warn of its size."""
    below = sys.stdout
    if isinstance(below, _Muted) or below is None:
        yield
        return
    muted: Any = _Muted(below)
    sys.stdout = muted
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if sys.stdout is muted:
            sys.stdout = below
