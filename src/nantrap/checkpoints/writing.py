"""One checkpoint into the folder of a store, so that a kill at any moment loses nothing that was there before.

The order matters. A temporary file, flushed; the manifest, which then knows the hash; the file under its name; the
pointer; and only then what is superseded goes. A kill between any two of these leaves a leftover that the next save
removes, or a line in the manifest without a file, which nobody minds.
"""

from __future__ import annotations

import contextlib
from datetime import datetime, timezone
from pathlib import Path

from nantrap._version import __version__
from nantrap.checkpoints.catalogue import (
    SavedCheckpoint,
    free_path,
    newest_good,
    read_catalogue,
    relisted,
    superseded,
    write_catalogue,
    write_pointer,
)
from nantrap.checkpoints.durable import put_in_place, remove_leftovers, temporary_of
from nantrap.checkpoints.locking import locked
from nantrap.checkpoints.storefile import Packed, write_file


def write_checkpoint(
    folder: Path, packed: Packed, *, step: int, pin: bool, keep: int, lock_seconds: float
) -> SavedCheckpoint:
    """Write, list, rename, tidy up. An `OSError` says what happened, and that the last good one is still there."""
    target = folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, seconds=lock_seconds):
            remove_leftovers(folder)
            entries = relisted(read_catalogue(folder))
            target = free_path(folder, step)
            sequence = 1 + max((entry.sequence for entry in entries), default=0)
            saved_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
            about = {"step": step, "sequence": sequence, "saved_at": saved_at, "nantrap": __version__}
            written = write_file(target, packed, about)
            entry = SavedCheckpoint(target, step, sequence, written.bytes, written.sha256, saved_at, pinned=pin)
            try:
                write_catalogue(folder, [entry, *entries])
                put_in_place(target)
            except BaseException:
                with contextlib.suppress(OSError):
                    temporary_of(target).unlink()
                raise
            _tidy(folder, [entry, *entries], keep=keep)
            return entry
    except OSError as error:
        left = (
            "there is none yet" if (good := last_good_in(folder)) is None else f"the last good one is {good.path.name}"
        )
        message = f"the checkpoint of step {step:,} was not saved: {error.strerror or error}; {left}"
        raise OSError(error.errno, message, str(target)) from error


def last_good_in(folder: Path) -> SavedCheckpoint | None:
    """The newest checkpoint that nothing is said against; `None` also if the folder cannot be read."""
    try:
        return newest_good(read_catalogue(folder))
    except OSError:
        return None


def _tidy(folder: Path, entries: list[SavedCheckpoint], *, keep: int) -> None:
    """The pointer, then what is superseded. The checkpoint is safe by now: nothing here may fail the save."""
    with contextlib.suppress(OSError):
        write_pointer(folder, entries)
        removed = superseded(entries, keep=keep)
        for entry in removed:
            entry.path.unlink(missing_ok=True)
        if removed:
            write_catalogue(folder, [entry for entry in entries if entry not in removed])
