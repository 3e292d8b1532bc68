"""To TensorBoard: an event file in `RUN/tensorboard`, written without TensorBoard (see `event_files`)."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from nantrap.incident import Incident
from nantrap.record.event_files import masked_crc32c

_FLUSH_SECONDS = 2.0


def start(run_dir: str | None, facts: dict[str, Any]) -> TensorBoard:
    """Begin an event file below the run's folder, or below `runs/nantrap` where there is none."""
    return TensorBoard(Path(run_dir or Path("runs", "nantrap")) / "tensorboard")


class TensorBoard:
    """Writes an event file. Holds it open."""

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
        self._write(_event(3, b"brain.Event:2"))

    def values(self, step: int, values: Mapping[str, float]) -> None:
        """One event with all values of the step."""
        summary = b"".join(_bytes(1, _bytes(1, name.encode()) + b"\x15" + struct.pack("<f", _single(value)))
                           for name, value in values.items())  # fmt: skip
        self._write(_event(5, summary, step=step))

    def incident(self, incident: Incident, text: str) -> None:
        """The diagnostic as a text, in TensorBoard's Text tab."""
        words = ("    " + text.replace("\n", "\n    ")).encode("utf-8", "replace")  # Markdown: code
        tensor = b"\x08\x07" + _bytes(2, _bytes(2, b"\x08\x01")) + _bytes(8, words)
        metadata = _bytes(1, _bytes(1, b"text"))
        value = _bytes(1, b"incidents/text_summary") + _bytes(8, tensor) + _bytes(9, metadata)
        self._write(_event(5, _bytes(1, value), step=incident.step))
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


def _event(field: int, content: bytes, *, step: int = 0) -> bytes:
    return b"\x09" + struct.pack("<d", time.time()) + b"\x10" + _varint(step) + _bytes(field, content)


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
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
