"""Move bad checkpoints out of the way: never delete, never overwrite, always with the command that undoes it.

A link moves as a link. What is on another disk is copied, compared in size, and only then removed from its old place.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from nantrap.checkpoints.audit.files import LOG_NAME, is_remote
from nantrap.checkpoints.audit.verdict import CheckpointAudit
from nantrap.errors import UsageError


class Move(NamedTuple):
    """One checkpoint that was moved."""

    source: str
    target: str

    @property
    def undo(self) -> str:
        """The command that moves it back, and overwrites nothing either."""
        return f"mv -n -- {_quoted(self.target)} {_quoted(self.source)}"

    def to_dict(self) -> dict[str, str]:
        """The move as plain JSON values."""
        return {"from": self.source, "to": self.target, "undo": self.undo}


def quarantine(audits: Iterable[CheckpointAudit], folder: str | os.PathLike[str]) -> tuple[Move, ...]:
    """Move every unhealthy checkpoint into `folder`. What could not even be read stays where it is."""
    target_folder = Path(folder)
    bad = [audit for audit in audits if not audit.healthy and may_be_moved(audit)]
    if any(is_remote(audit.path) for audit in bad) or is_remote(os.fspath(folder)):
        raise UsageError("quarantine works on local files only; move remote checkpoints with their own tools")
    if not bad:
        return ()
    if target_folder.exists() and not target_folder.is_dir():
        raise UsageError(f"{folder} is a file; give a folder to move checkpoints into")
    target_folder.mkdir(parents=True, exist_ok=True)
    inside = target_folder.resolve()
    moves = []
    for audit in bad:
        path = Path(audit.path)
        if path.resolve().parent == inside:
            raise UsageError(f"{path} is in {folder} already; give another folder to move it into")
        if path.resolve() == inside or path.resolve() in inside.parents:
            raise UsageError(f"{folder} lies inside {path}, which would be moved into it; give another folder")
        for source in _belongings(audit):
            target = _free_name(target_folder, source.name)
            _move_or_leave(source, target)
            move = Move(os.path.abspath(source), os.path.abspath(target))
            moves.append(move)
            _log(target_folder / LOG_NAME, move, audit)
    return tuple(moves)


def may_be_moved(audit: CheckpointAudit) -> bool:
    """Not if it may not be read or is still being written: then it is not known to be bad."""
    return not any(p.code == "NT912" or "while it was read" in p.message for p in audit.problems)


def _belongings(audit: CheckpointAudit) -> list[Path]:
    """The folder or file; for an index, also its shards."""
    path = Path(audit.path)
    if path.name.endswith(".index.json") and path.is_file():
        return [path, *(path.parent / name for name in audit.files)]
    return [path]


def _free_name(folder: Path, name: str) -> Path:
    target, number = folder / name, 0
    while os.path.lexists(target):
        number += 1
        target = folder / f"{name}.{number}"
    return target


def _quoted(path: str) -> str:
    """A path as a word of a shell; bytes that are not text are written as numbers."""
    if path.isascii() or path.encode(errors="replace").decode() == path:
        return shlex.quote(path)
    return "$'" + "".join(f"\\x{byte:02x}" for byte in os.fsencode(path)) + "'"


def _move_or_leave(source: Path, target: Path) -> None:
    """Move it, or say that it is still where it was: what was made at the target is removed again."""
    try:
        _move(source, target)
    except OSError as error:
        if os.path.lexists(source) and not source.is_dir():
            target.unlink(missing_ok=True)
        reason = f"it could not be moved to {target}: {error.strerror or error}; it is still in its place"
        raise OSError(error.errno, reason, str(source)) from error


def _move(source: Path, target: Path) -> None:
    """Move a file, link or folder without ever replacing what is at the target; copied where it cannot be moved."""
    if source.is_symlink():
        os.symlink(os.path.realpath(source), target)
        source.unlink()
        return
    if source.is_dir():
        try:
            os.rename(source, target)  # refuses a folder that holds anything
        except OSError:
            shutil.copytree(source, target, symlinks=True)
            shutil.rmtree(source)
        return
    try:
        os.link(source, target)  # unlike a rename, a link never replaces what is there
    except OSError:
        with source.open("rb") as old, target.open("xb") as new:
            shutil.copyfileobj(old, new, 16 << 20)
            new.flush()
            os.fsync(new.fileno())
        if target.stat().st_size != source.stat().st_size:
            raise OSError(f"{source} changed while it was copied to {target}; both are kept") from None
        shutil.copystat(source, target)
    source.unlink()


def _log(path: Path, move: Move, audit: CheckpointAudit) -> None:
    codes = sorted({problem.code for problem in audit.problems if problem.severity == "error"})
    line = {**move.to_dict(), "codes": codes, "time": time.time()}
    with path.open("a", encoding="utf-8") as log:
        log.write(json.dumps(line) + "\n")
