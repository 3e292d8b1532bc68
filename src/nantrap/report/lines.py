"""Lines that do not tear a progress bar: `tqdm` is asked to step aside while something is written."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, TextIO


def write_line(text: str, stream: TextIO | None = None) -> None:
    """Write a line (or several) to a stream, standard error by default, around any progress bar that stands there."""
    out = stream or sys.stderr
    with contextlib.ExitStack() as aside:
        for bars in _bars():
            aside.enter_context(bars.external_write_mode(file=out))
        print(text, file=out, flush=True)


def _bars() -> list[Any]:
    """The classes of progress bars that are in use now."""
    std = sys.modules.get("tqdm.std")
    if std is None:
        return []
    classes, waiting = [], [std.tqdm]
    while waiting:
        bar = waiting.pop()
        waiting += bar.__subclasses__()
        if len(vars(bar).get("_instances", ())):
            classes.append(bar)
    return classes
