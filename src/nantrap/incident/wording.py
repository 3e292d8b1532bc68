"""Words and numbers as people read them, which several layers share."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters, the escape of a terminal among them
    "\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"  # invisible, or they change the direction of the text
    "\ud800-\udfff]"  # half a character: no encoder takes it
)


NO_MEMORY = "the device has too little free memory"


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether PyTorch could not allocate memory of a device; asked by name, because torch is not imported here."""
    return type(error).__name__ == "OutOfMemoryError"


def failed_in_words(what: str, error: Exception) -> str:
    """`the diagnosis failed with ValueError: ...`; without memory it was given up."""
    if is_out_of_memory(error):
        return f"{what} was given up: {NO_MEMORY}"
    return f"{what} failed with {type(error).__name__}: {error}"


def counted(number: int, noun: str, several: str = "") -> str:
    """`1 step`, `1,204 steps`; `several` is the plural of a noun that does not end in `s`."""
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


def some_of(names: Sequence[str], shown: int = 3) -> str:
    """`a, b, c and 12 more`."""
    text = ", ".join(names[:shown])
    return text if len(names) <= shown else f"{text} and {len(names) - shown:,} more"


def place_text(file: str, line: int) -> str:
    """`model.py:41`, or `Cell In[3], line 41` for a cell of a notebook."""
    return f"{file}, line {line}" if is_cell(file) else f"{file}:{line}"


def duration(seconds: float) -> str:
    """`0.4 s`, `52 s`, `14 min`, `2.5 h`, `3 days`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    for limit, unit_seconds, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit_seconds:{'.3g' if unit == 'h' else '.0f'}} {unit}"
    return f"{seconds / 86_400:.0f} days"


def size(count: float) -> str:
    """`288 bytes`, `2.89 kB`, `15.3 MB`."""
    unit = "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if count < 999.5:
            break
        count, unit = count / 1000, larger
    return (
        f"{count:.0f} bytes" if unit == "bytes" else f"{count:.3g} {unit}" if count < 999.5 else f"{count:,.0f} {unit}"
    )


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


def typed_path(path: str | os.PathLike[str]) -> str:
    """A path as one would type it here: relative where it lies in the working folder."""
    given = Path(path)
    try:
        here = Path.cwd()
    except OSError:  # the folder is gone
        return str(path)
    return str(given.relative_to(here)) if given.is_absolute() and given.is_relative_to(here) else str(path)


def is_cell(file: str) -> bool:
    """Whether this names a cell of a notebook and not a file."""
    return file.startswith("Cell In[")


def escaped(text: str, *, most: int = 300) -> str:
    """Text from a file or a program, fit for a terminal, a log or a page.

    Control characters, line ends and marks that change the direction of the text become escapes, so that a name can
    neither move the cursor nor forge a line; text longer than `most` is cut in the middle.
    """
    if len(text) > most:
        text = f"{text[: most * 2 // 3]}…{text[-(most // 3) :]}"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def visible(text: object) -> str:
    r"""The text with every character that is not printed as itself spelled out: `\x1b`, `\u202e`.

    Names from a run are data: a module, a loss term or a file may hold any character. They are shown and never
    interpreted.
    """
    return _UNSAFE.sub(_spelled, str(text))


def visible_lines(text: object) -> str:
    """Makes text of several lines fit for a terminal, as `visible` does: line feeds stay, tabs become spaces."""
    return "\n".join(visible(line.expandtabs(4)) for line in str(text).split("\n"))


def _spelled(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
