"""TensorBoard event files, read and written without TensorBoard.

A file is a row of records: length (8 bytes), its checksum (4), the event (a protocol buffer), its checksum (4). Only
the few fields that hold scalars are decoded, with the time at which they were written. A record that is not complete
yet is read the next time.

    Event:    1 wall_time (double)   2 step (varint)   5 summary
    Summary:  1 value (repeated)     Value: 1 tag   2 simple_value (float)   8 tensor   9 metadata
    Tensor:   1 dtype   2 shape   4 content   5 float_val   6 double_val   7 int_val   10 int64_val
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from nantrap.errors import FormatError
from nantrap.incident import Incident

_HEADER = struct.Struct("<QI")
_LARGEST = 256 << 20
_BATCH = 20_000
_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 14: None, 19: "<f2"}
_POLYNOMIAL = 0x82F63B78
_FLUSH_SECONDS = 2.0


def _checksums() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _checksums()


def masked_crc32c(data: bytes) -> int:
    """The checksum that TFRecord files use: CRC-32C, rotated and offset."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


class EventFile:
    """Reads a growing event file. Holds the offset up to which it has read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.modified = 0.0
        self._offset = 0

    def records(self) -> Iterator[list[dict[str, object]]]:
        """Batches of new records: `{"step": 3, "wall_time": 1.7e9, "loss": 0.5}`, one per summary."""
        with self.path.open("rb") as file:
            self.modified = self.path.stat().st_mtime
            file.seek(self._offset)
            found: list[dict[str, object]] = []
            while len(header := file.read(12)) == 12:
                length, checksum = _HEADER.unpack(header)
                if length > _LARGEST or masked_crc32c(header[:8]) != checksum:
                    raise FormatError(
                        f"{self.path}: byte {self._offset:,}: not a TensorBoard record (its checksum is wrong); "
                        "the file is damaged or is of another kind"
                    )
                data = file.read(length + 4)
                if len(data) < length + 4:
                    break
                self._offset += 16 + length
                record = _event(data[:length])
                if record is not None:
                    found.append(record)
                if len(found) >= _BATCH:
                    yield found
                    found = []
            if found:
                yield found


def _event(data: bytes) -> dict[str, object] | None:
    """The step and the scalars of an event of TensorBoard; `None` if it has no scalar."""
    record: dict[str, object] = {"step": 0}
    scalars = False
    for field, value in _fields(data):
        if field == 1 and isinstance(value, bytes) and len(value) == 8:
            record["wall_time"] = struct.unpack("<d", value)[0]
        elif field == 2 and isinstance(value, int):
            record["step"] = value - (1 << 64) if value >> 63 else value
        elif field == 5 and isinstance(value, bytes):
            for inner, content in _fields(value):
                if inner == 1 and isinstance(content, bytes):
                    tag, number = _value(content)
                    if number is not None:
                        record[tag] = number
                        scalars = True
    return record if scalars else None


def _value(data: bytes) -> tuple[str, float | None]:
    """Tag and number of one summary value; `None` in place of a number that is no scalar."""
    tag, number = "", None
    for field, value in _fields(data):
        if not isinstance(value, bytes):
            continue
        if field == 1:
            tag = value.decode("utf-8", "replace")
        elif field == 2 and len(value) == 4:
            number = struct.unpack("<f", value)[0]
        elif field == 8:
            number = _tensor(value)
    return tag, number


def _tensor(data: bytes) -> float | None:
    """The value of a tensor of one number; anything else (text, images, histograms) is ignored."""
    dtype, content = 0, b""
    for field, value in _fields(data):
        if field == 1 and isinstance(value, int):
            dtype = value
        elif field == 4 and isinstance(value, bytes):
            content = value
        elif field in (5, 6) and isinstance(value, bytes):
            dtype, content = (1 if field == 5 else 2), value
        elif field in (7, 10) and isinstance(value, int):
            return float(value - (1 << 64) if value >> 63 else value)
    form = _DTYPES.get(dtype)
    if form is None or len(content) != np.dtype(form).itemsize:
        return None
    return float(np.frombuffer(content, dtype=form)[0])


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protocol buffer: number and value, bytes for all but varints. Ends at bytes that are none."""
    position, end = 0, len(data)
    while position < end:
        key, position = _varint(data, position)
        kind = key & 7
        if kind == 0:
            value, position = _varint(data, position)
            yield key >> 3, value
            continue
        if kind == 2:
            length, position = _varint(data, position)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            return
        if position + length > end:
            return
        yield key >> 3, data[position : position + length]
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A protobuf integer of variable length, and the position after it."""
    value = shift = 0
    while position < len(data) and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            break
        shift += 7
    return value, position


# ---- writing


class EventWriter:
    """Writes an event file: the exporter to TensorBoard. Holds the file open."""

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        number = 0
        while (path := folder / f"{stem}.{number}").exists():
            number += 1
        self.path = path
        self._file: BinaryIO = path.open("xb")
        self._flush_after = 0.0
        self._write(_event_bytes(3, b"brain.Event:2"))

    def values(self, step: int, values: Mapping[str, float]) -> None:
        """One event with all values of the step."""
        summary = b"".join(_field_bytes(1, _field_bytes(1, name.encode()) + b"\x15" + struct.pack("<f", _single(value)))
                           for name, value in values.items())  # fmt: skip
        self._write(_event_bytes(5, summary, step=step))

    def incident(self, incident: Incident, text: str) -> None:
        """The diagnostic as a text, in TensorBoard's Text tab."""
        words = ("    " + text.replace("\n", "\n    ")).encode("utf-8", "replace")  # Markdown: code
        tensor = b"\x08\x07" + _field_bytes(2, _field_bytes(2, b"\x08\x01")) + _field_bytes(8, words)
        metadata = _field_bytes(1, _field_bytes(1, b"text"))
        value = _field_bytes(1, b"incidents/text_summary") + _field_bytes(8, tensor) + _field_bytes(9, metadata)
        self._write(_event_bytes(5, _field_bytes(1, value), step=incident.step))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        checksums = struct.pack("<I", masked_crc32c(length)), struct.pack("<I", masked_crc32c(event))
        self._file.write(length + checksums[0] + event + checksums[1])
        if time.monotonic() >= self._flush_after:
            self._file.flush()
            self._flush_after = time.monotonic() + _FLUSH_SECONDS


def _event_bytes(field: int, content: bytes, *, step: int = 0) -> bytes:
    return b"\x09" + struct.pack("<d", time.time()) + b"\x10" + _varint_bytes(step) + _field_bytes(field, content)


def _field_bytes(field: int, content: bytes) -> bytes:
    return _varint_bytes(field << 3 | 2) + _varint_bytes(len(content)) + content


def _varint_bytes(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _single(value: float) -> float:
    """What a float32 makes of it: too large is infinite, as it would be on a GPU."""
    if abs(value) > 3.4028235677973366e38:
        return float("inf") if value > 0 else float("-inf")
    return value
