"""One writer at a time. The kernel holds the lock, so it dies with its process: kill -9 leaves none behind.

The lock file says who holds it, for the message only. It stays where it is; removing it would let two processes lock
two different files of the same name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from nantrap.errors import UsageError

NAME = ".lock"
_POLL_SECONDS = 0.02
_HELD = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)


@contextlib.contextmanager
def locked(folder: Path, *, seconds: float) -> Iterator[None]:
    """Hold the folder's lock. Raises `UsageError`, which names the other process, after waiting so many seconds."""
    path = folder / NAME
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
    try:
        _acquire(descriptor, path, time.monotonic() + seconds, seconds)
        # only for the message of others; a full disk must not keep anybody from the lock
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)  # which lets the lock go


def _acquire(descriptor: int, path: Path, deadline: float, seconds: float) -> None:
    while True:
        try:
            _try_lock(descriptor)
            return
        except OSError as error:
            if error.errno not in _HELD:
                warnings.warn(
                    f"nantrap: {path}: this file system knows no locks ({error.strerror}); make sure that only one "
                    "process writes checkpoints here",
                    RuntimeWarning,
                    stacklevel=4,
                )
                return
        if time.monotonic() >= deadline:
            raise UsageError(
                f"{path} has been held by {_holder(descriptor)} for {seconds:g} s: another process writes checkpoints "
                "into this folder. Give each run a folder of its own, or end that process"
            )
        time.sleep(_POLL_SECONDS)


def _holder(descriptor: int) -> str:
    with contextlib.suppress(OSError, ValueError):
        os.lseek(descriptor, 0, os.SEEK_SET)
        return f"process {int(os.read(descriptor, 32).decode())}"
    return "another process"


if os.name == "nt":
    import msvcrt

    def _try_lock(descriptor: int) -> None:
        os.lseek(descriptor, 64, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
else:
    import fcntl

    def _try_lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
