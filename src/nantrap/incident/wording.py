"""Words that several layers share."""

from __future__ import annotations

from collections.abc import Sequence


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
