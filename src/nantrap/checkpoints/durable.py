"""Files that are there whole or not at all: written beside their place, flushed to the disk, then renamed."""

from __future__ import annotations

import contextlib
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


def write_whole(target: Path, text: str) -> None:
    """A small text file, replaced in one go."""
    with written_beside(target) as file:
        file.write(text.encode())
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
