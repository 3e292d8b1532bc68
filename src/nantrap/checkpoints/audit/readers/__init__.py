"""Readers: one module per file format, chosen by what the file begins with, never by its name.

To add one, write a module with `recognise(head)` and `read(source)` and put a line into `READERS`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from nantrap.checkpoints.audit.contents import Contents, UnreadableError
from nantrap.checkpoints.audit.files import ByteSource
from nantrap.checkpoints.audit.readers import nantrap_file, pickled, safetensors, torch_zip

HEAD_BYTES = 64
"""How many bytes of a file `recognise` gets."""


class Reader(NamedTuple):
    """A file format: does the file begin like it, and where everything is in it."""

    format: str
    recognise: Callable[[bytes], bool]
    read: Callable[[ByteSource], Contents]


READERS: list[Reader] = [
    Reader("torch", torch_zip.recognise, torch_zip.read),
    Reader("nantrap", nantrap_file.recognise, nantrap_file.read),
    Reader("safetensors", safetensors.recognise, safetensors.read),
    Reader("pickle", pickled.recognise, pickled.read),
]
"""Tried in this order; the first that recognises the file reads it."""


_DAMAGE = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError,
    EOFError, MemoryError, struct.error,
)  # fmt: skip


def reader_of(head: bytes) -> Reader | None:
    """The reader for a file that begins with `head`, or `None`."""
    return next((reader for reader in READERS if reader.recognise(head)), None)


def read_contents(source: ByteSource) -> Contents:
    """Read any known file. Raises `UnreadableError` with the problem if that is impossible."""
    if source.size == 0:
        raise UnreadableError("NT909", "the file is empty")
    reader = reader_of(source.read(0, HEAD_BYTES))
    if reader is None:
        raise UnreadableError("NT911", "no reader knows a file that begins like this")
    try:
        return reader.read(source)
    except _DAMAGE as error:
        # Forged or damaged bytes can make any field anything; a reader need not handle them all.
        raise UnreadableError("NT908", f"damaged beyond reading as {reader.format}: {error!r}") from error
