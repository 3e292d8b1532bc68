"""Files that are there whole or not at all (written beside their place, flushed, then renamed), and their hash."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".writing-"
"""How a file that is being written is named; one that is left over belongs to a process that died."""


@contextlib.contextmanager
def written_beside(target: Path) -> Iterator[BinaryIO]:
    """A file to write into, which is flushed at the end. It is not yet in its place: `put_in_place` does that.

    Whatever goes wrong, the temporary file is removed and the target is as before.
    """
    temporary = temporary_of(target)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def put_in_place(target: Path) -> None:
    """Rename what `written_beside` wrote, and flush the folder, so that a power cut cannot take the name away."""
    os.replace(temporary_of(target), target)
    flush_folder(target.parent)


def write_atomically(target: Path, content: str | bytes) -> None:
    """Replace a small file in one go: a reader sees the old text or the new one, never half."""
    with written_beside(target) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    put_in_place(target)


def flush_folder(folder: Path) -> None:
    """Names live in the folder: they are safe once it is flushed."""
    with contextlib.suppress(OSError):  # Windows and some network file systems cannot open a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def temporary_of(target: Path) -> Path:
    """Where the file is written before it gets its name. Two processes never use the same place."""
    return target.with_name(f"{TEMPORARY}{os.getpid()}-{target.name}")


def remove_leftovers(folder: Path) -> list[Path]:
    """Remove what dead writers left. Only under the store's lock: then nobody else is writing."""
    left = [path for path in folder.glob(f"{TEMPORARY}*") if path.is_file()]
    for path in left:
        with contextlib.suppress(OSError):
            path.unlink()
    return left


def sha256_of(file: str | os.PathLike[str] | io.BufferedIOBase | io.RawIOBase) -> str:
    """The hash of a whole file, given by its path or open at its begin, in constant memory."""
    if isinstance(file, (str, os.PathLike)):
        with open(file, "rb", buffering=0) as opened:
            return sha256_of(opened)
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(1 << 20))
    while got := file.readinto(buffer):
        digest.update(buffer[:got])
    return digest.hexdigest()
