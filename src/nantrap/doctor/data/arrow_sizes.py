"""How large the record batches of an Arrow file become in memory, read from their headers without decompressing them.

A compressed buffer begins with its size in memory. The headers are FlatBuffers: a table begins with the distance to its
list of fields, which holds where in the table each of them is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from nantrap.doctor.data.shards import UnreadableDataError

_MAGIC = b"ARROW1\0\0"
_CONTINUES = 0xFFFFFFFF
_MOST_HEADER = 64 << 20


def batch_sizes(stream: Any) -> Iterator[int]:
    """The bytes that each record batch and each dictionary takes in memory."""
    at = len(_MAGIC) if stream.read(len(_MAGIC)) == _MAGIC else 0
    while True:
        stream.seek(at)
        head = stream.read(8)
        if len(head) < 8:
            return
        first, length = struct.unpack("<II", head)
        if first != _CONTINUES:  # written before 2019
            length, at = first, at - 4
        if length == 0 or length > _MOST_HEADER:
            return
        stream.seek(at + 8)
        header = stream.read(length)
        try:
            body, buffers, is_compressed = _batch(header)
        except struct.error:
            raise UnreadableDataError("damaged: the header of a record batch is not whole") from None
        begin = at + 8 + length
        if buffers:
            yield sum(_expanded(stream, begin + offset, size, is_compressed) for offset, size in buffers)
        at = begin + body
        if body < 0:
            return


def _expanded(stream: Any, offset: int, size: int, is_compressed: bool) -> int:
    if not is_compressed or size < 8:
        return max(size, 0)
    stream.seek(offset)
    (expanded,) = struct.unpack("<q", stream.read(8))
    return int(expanded) if expanded >= 0 else size  # -1: this one is not compressed


def _batch(header: bytes) -> tuple[int, list[tuple[int, int]], bool]:
    """The bytes behind a header, its buffers (offset, bytes), and whether they are compressed."""

    def field(table: int, number: int) -> int:
        """Where a field of a table is; 0 if it is not there."""
        fields = table - struct.unpack_from("<i", header, table)[0]
        place = 4 + 2 * number
        if place >= struct.unpack_from("<H", header, fields)[0]:
            return 0
        offset = struct.unpack_from("<H", header, fields + place)[0]
        return int(table + offset) if offset else 0

    def target(place: int) -> int:
        return int(place + struct.unpack_from("<I", header, place)[0])

    message = target(0)
    length = field(message, 3)
    body = struct.unpack_from("<q", header, length)[0] if length else 0
    kind = field(message, 1)
    which = header[kind] if kind else 0
    if which not in (2, 3) or not field(message, 2):  # a dictionary holds a record batch
        return body, [], False
    batch = target(field(message, 2))
    if which == 2:
        if not field(batch, 1):
            return body, [], False
        batch = target(field(batch, 1))
    if not field(batch, 2):
        return body, [], False
    vector = target(field(batch, 2))
    (count,) = struct.unpack_from("<I", header, vector)
    if vector + 4 + 16 * count > len(header):
        raise struct.error
    buffers = [struct.unpack_from("<qq", header, vector + 4 + 16 * number) for number in range(count)]
    return body, buffers, bool(field(batch, 3))
