"""Files that are complete or absent (written under a temporary name, flushed, then renamed), and their hash."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import os
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".writing-"
"""How a file that is being written is named; one that is left over belongs to a process that died."""
REMOVED = ".removing-"
"""How a folder is named before it is removed, so that a kill leaves no half of it under its own name."""
_OWNED = re.compile(r"\.(?:writing|removing)-(?:(?P<host>[\w.]+)-)?(?P<pid>\d+)-.+")
_active: set[Path] = set()
_number = itertools.count()


@contextlib.contextmanager
def written_beside(target: Path, *, writer: str = "") -> Iterator[BinaryIO]:
    """A file to write into, which is flushed at the end. It is not yet in its place: `put_in_place` does that.

    Whatever goes wrong, the temporary file is removed and the target is as before.
    """
    temporary = temporary_of(target, writer=writer)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def put_in_place(target: Path, *, writer: str = "") -> None:
    """Rename what `written_beside` wrote, and flush the folder, so that a power cut cannot undo the rename."""
    temporary = temporary_of(target, writer=writer)
    try:
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    flush_folder(target.parent)


def write_atomically(target: Path, content: str | bytes, *, writer: str = "") -> None:
    """Replace a small file atomically: a reader sees the old text or the new one, never half."""
    with written_beside(target, writer=writer) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    put_in_place(target, writer=writer)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, each flushed into the one above it: a power cut cannot take them away again."""
    missing = []
    for place in (folder, *folder.parents):
        if place.exists():
            break
        missing.append(place)
    folder.mkdir(parents=True, exist_ok=True)
    for place in missing:
        flush_folder(place.parent)


def flush_folder(folder: Path) -> None:
    """Names are stored in the folder: they are safe once it is flushed."""
    with contextlib.suppress(OSError):  # Windows and some network file systems cannot open a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def temporary_of(target: Path, *, writer: str = "") -> Path:
    """Where the file is written before it gets its name: by the writer's process, or by a writer that holds a lock."""
    return target.with_name(f"{TEMPORARY}{writer or os.getpid()}-{target.name}")


def remove_leftovers(folder: Path, *, writer: str) -> None:
    """Remove what dead writers of this name left. Only under their lock: then none of them is writing."""
    for path in [path for path in folder.glob(f"{TEMPORARY}{writer}-*") if path.is_file()]:
        with contextlib.suppress(OSError):
            path.unlink()


@contextlib.contextmanager
def folder_beside(folder: Path, name: str) -> Iterator[Path]:
    """A new folder to write into, which the caller renames into its place. Whatever goes wrong, it is removed."""
    while True:
        # a name of its own for each call: a thread that is done must not remove the folder of another one
        temporary = folder / f"{TEMPORARY}{_host()}-{os.getpid()}-{name}-{next(_number)}"
        with contextlib.suppress(FileExistsError):  # left by a dead process that had our number
            temporary.mkdir()
            break
    _active.add(temporary)
    try:
        yield temporary
    finally:
        _active.discard(temporary)
        shutil.rmtree(temporary, ignore_errors=True)  # nothing is there once it was renamed


def remove_folder(path: Path) -> None:
    """Remove a folder as a whole: it loses its name first. One that another process removed meanwhile is no error."""
    doomed = path.with_name(f"{REMOVED}{_host()}-{os.getpid()}-{path.name}")
    with contextlib.suppress(OSError):
        os.rename(path, doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def remove_orphans(folder: Path) -> None:
    """Remove what processes of this machine left half written or half removed when they died."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            match = _OWNED.fullmatch(path.name)
            if match and match["host"] in (None, _host()) and path not in _active and not _lives(int(match["pid"])):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _host() -> str:
    return re.sub(r"[^\w.]", "_", socket.gethostname()) or "host"


def _lives(pid: int) -> bool:
    """Whether another process of this number is alive. Our own number may be that of one that died in a container."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # it belongs to another user
    return True


def sha256_of(file: str | os.PathLike[str] | io.BufferedIOBase | io.RawIOBase) -> str:
    """The hash of a whole file, given by its path or as an open file at its start, in constant memory."""
    if isinstance(file, (str, os.PathLike)):
        with open(file, "rb", buffering=0) as opened:
            return sha256_of(opened)
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(1 << 20))
    while got := file.readinto(buffer):
        digest.update(buffer[:got])
    return digest.hexdigest()
