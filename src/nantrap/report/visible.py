"""Names from a run are data: a module, a loss term or a file may hold any character. They are shown and never
interpreted."""

from __future__ import annotations

import re

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters, the escape of a terminal among them
    "\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"  # invisible, or they change the direction of the text
    "\ud800-\udfff]"  # half a character: no encoder takes it
)


def visible(text: object) -> str:
    r"""The text with every character that is not printed as itself spelled out: `\x1b`, `\u202e`."""
    return _UNSAFE.sub(_spelled, str(text))


def visible_lines(text: object) -> str:
    """The same for text of several lines: line feeds stay, tabs become spaces."""
    return "\n".join(visible(line.expandtabs(4)) for line in str(text).split("\n"))


def _spelled(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
