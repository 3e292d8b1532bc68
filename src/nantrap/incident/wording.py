"""Words that several layers share."""

from __future__ import annotations

from collections.abc import Sequence


def some_of(names: Sequence[str], shown: int = 3) -> str:
    """`a, b, c and 12 more`."""
    text = ", ".join(names[:shown])
    return text if len(names) <= shown else f"{text} and {len(names) - shown:,} more"


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
