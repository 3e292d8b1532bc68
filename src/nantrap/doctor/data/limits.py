"""How much of one file is read. Every reader keeps to these limits, says which one was met, and counts the rest as not
read: a small file can describe more than a machine holds. docs/commands/data.md has the same numbers.
"""

from __future__ import annotations

from typing import Final

from nantrap.doctor.data.shards import UnreadableDataError

MOST_FIELDS: Final = 10_000
"""Arrays, columns or members of one file that are measured."""
MOST_MEMBERS: Final = 200_000
"""Members of a zip archive; its directory is read whole."""
MOST_DEEP: Final = 64
"""Groups inside of groups."""
MOST_AT_ONCE: Final = 128 << 20
"""Bytes of what can only be read whole: a compressed array in an unusual order, a member of a tar, a record batch."""
MOST_SAMPLE: Final = 256 << 20
"""Bytes of one sample of an array."""
MOST_LINE: Final = 16 << 20
"""Bytes of one line of text."""
MOST_LISTS: Final = 1_000_000
"""Lists and objects in one line of JSON; an empty one takes 30 times as much memory as its two bytes."""
_FREE: Final = 1 << 30
_TIMES: Final = 200


def refuse_expansion(expanded: int, stored: int) -> None:
    """Raise if a compressed part would become more than 1 GiB, and more than 200 times what it takes in the file."""
    if expanded > max(_FREE, _TIMES * stored):
        raise UnreadableDataError(
            f"not read: {stored:,} bytes would expand to {expanded:,}, more than {_TIMES} times as many"
        )


def refuse_size(size: int, what: str, most: int = MOST_AT_ONCE) -> None:
    """Raise if something that is read at once is larger than `most`."""
    if size > most:
        raise UnreadableDataError(f"not read: {what} takes {size:,} bytes, at most {most:,} are read at once")


def refuse_empty(samples: int, size: int) -> None:
    """Raise if very many samples take no bytes, as those of an array with a dimension of 0."""
    if size == 0 and samples > MOST_MEMBERS:
        raise UnreadableDataError(f"not read: {samples:,} samples without a value, at most {MOST_MEMBERS:,} are read")
