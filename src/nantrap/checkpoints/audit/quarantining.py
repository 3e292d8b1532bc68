"""Move bad checkpoints out of the way: never delete, never overwrite, always with the command that undoes it.

A link moves as a link. What is on another disk is copied, compared in size, and only then removed from its old place.
What may still be being written stays, and so does what cannot be moved: the caller is told why, and the others move.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from nantrap.checkpoints.audit.files import LOG_NAME, is_remote
from nantrap.checkpoints.audit.verdict import CheckpointAudit
from nantrap.errors import UsageError, path_argument
from nantrap.incident.wording import escaped

if sys.platform == "linux":
    import fcntl

_MAY_BE_WRITTEN = 10
"""A file that is cut short and was changed within so many seconds may be written by a program that opens it again for
each piece, or on another machine."""


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


def quarantine(
    audits: Iterable[CheckpointAudit],
    folder: str | os.PathLike[str],
    *,
    began: float | None = None,
    on_left: Callable[[str, str], None] | None = None,
) -> tuple[Move, ...]:
    """Move every unhealthy checkpoint into `folder`. What could not even be read stays where it is.

    Args:
        audits: what was found.
        folder: made if it is not there.
        began: the time at which the audit began; what was changed later is not what was read, and stays.
        on_left: called with the path of an unhealthy checkpoint that stays, and why; without it a warning says so.

    Returns:
        What was moved, each with the command that moves it back.
    """
    target_folder = Path(path_argument(folder, "quarantine", "the folder to move checkpoints into, such as 'bad'"))
    given = list(audits) if isinstance(audits, Iterable) else [audits]
    if not all(isinstance(audit, CheckpointAudit) for audit in given):
        raise UsageError(f"quarantine({audits!r:.200}): expected the checkpoints of a report: audit(path).checkpoints")
    bad = [audit for audit in given if not audit.healthy]
    if any(is_remote(audit.path) for audit in bad) or is_remote(os.fspath(folder)):
        raise UsageError("quarantine works on local files only; move remote checkpoints with their own tools")
    left = on_left or _warn
    moves: list[Move] = []
    for audit in bad:
        path = Path(audit.path)
        if reason := _why_it_stays(audit, began):
            left(audit.path, reason)
            continue
        _make_folder(target_folder, path)
        for source in _belongings(audit):
            target = _free_name(target_folder, source.name)
            try:
                _move(source, target)
            except OSError as error:
                if os.path.lexists(source) and not source.is_dir():
                    target.unlink(missing_ok=True)
                left(str(source), f"it could not be moved to {target}: {error.strerror or error}")
                break
            move = Move(os.path.abspath(source), os.path.abspath(target))
            moves.append(move)
            _log(target_folder / LOG_NAME, move, audit)
    return tuple(moves)


def _make_folder(folder: Path, path: Path) -> None:
    """Make the folder that a checkpoint is moved into. Raises `UsageError` if the checkpoint must not go there."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; give a folder to move checkpoints into")
    inside = folder.resolve()
    if path.resolve().parent == inside:
        raise UsageError(f"{path} is in {folder} already; give another folder to move it into")
    if path.resolve() == inside or path.resolve() in inside.parents:
        raise UsageError(f"{folder} lies inside {path}, which would be moved into it; give another folder")
    folder.mkdir(parents=True, exist_ok=True)


def _warn(path: str, reason: str) -> None:
    warnings.warn(escaped(f"nantrap: {path} was not moved: {reason}", most=2000), RuntimeWarning, stacklevel=3)


def _why_it_stays(audit: CheckpointAudit, began: float | None) -> str:
    """Why an unhealthy checkpoint is not moved: it could not be read, or may still be being written. Empty if it is
    moved."""
    if any(problem.code == "NT912" for problem in audit.problems):
        return "it could not be read"
    if any("while it was read" in problem.message for problem in audit.problems):
        return "it changed while it was read"
    is_cut = any(problem.code == "NT909" for problem in audit.problems)
    for file in _files_of(audit):
        try:
            changed = file.stat().st_mtime
        except OSError:
            continue
        if began is not None and changed >= began:
            return f"{file.name} was changed after the audit began"
        if is_open_for_writing(file):
            return f"a process has {file.name} open for writing"
        if is_cut and abs(time.time() - changed) < _MAY_BE_WRITTEN:
            return f"{file.name} is cut short and was changed less than {_MAY_BE_WRITTEN} seconds ago; audit it again"
    return ""


def _files_of(audit: CheckpointAudit) -> Iterator[Path]:
    path = Path(audit.path)
    if path.is_dir():
        yield from (each for each in path.rglob("*") if each.is_file())
    else:
        yield from _belongings(audit)


def is_open_for_writing(path: Path) -> bool:
    """Whether any process of this machine has a file open for writing. `False` also where the system cannot tell.

    Linux gives a read lease on a file only while nobody has it open for writing. The lease is given back at once; a
    process that opens the file in between waits for that, and the signal that it would send is one that is ignored.
    """
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError), path.open("rb") as file:
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except BlockingIOError:
            return True
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


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
