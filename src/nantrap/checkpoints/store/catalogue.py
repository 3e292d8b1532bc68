"""What is in a store: `manifest.json` with a hash for every file, and the pointer to the last good one.

{"schema": "nantrap.manifest/1", "files": {"step-000100.safetensors": {"step": 100, "sequence": 3, "bytes": 1234,
  "sha256": "…", "saved_at": "…", "pinned": false, "suspect": ""}}}

`sequence` counts the saves, since a step can be reached twice (after a rollback). docs/checkpoints.md has the protocol:
a file is in the manifest before it gets its name. So a listed file that does not exist is what a killed writer left,
and a file that is not listed was put there by somebody else: it can be loaded by its own header, and is never removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from nantrap._version import __version__
from nantrap.checkpoints.audit.files import LocalSource
from nantrap.checkpoints.audit.quarantining import quarantine
from nantrap.checkpoints.audit.readers.nantrap_file import MANIFEST, MANIFEST_SCHEMA
from nantrap.checkpoints.audit.verdict import CheckpointAudit, checkpoint_problem
from nantrap.checkpoints.store.storefile import NotOursError, Packed, check_file, open_contents, write_file
from nantrap.errors import FormatError, UsageError
from nantrap.incident.wording import escaped
from nantrap.record.durable import (
    make_folder,
    put_in_place,
    remove_leftovers,
    sha256_of,
    temporary_of,
    write_atomically,
)

POINTER: Final = "last-good.json"
POINTER_SCHEMA: Final = "nantrap.last-good/1"
SUFFIX: Final = ".safetensors"
QUARANTINE: Final = "quarantine"
_WRITER: Final = "store"
"""In the names of temporary files that are written under the lock; `guard.save` into the same folder has none."""
_MOST_LOOKS: Final = 100
"""How often a reader looks again at a folder that changes while it is read."""


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """One checkpoint. `suspect`: why it must not be resumed from; `sha256` is empty if no manifest lists it."""

    path: Path
    step: int
    sequence: int
    bytes: int = 0
    sha256: str = ""
    saved_at: str = ""
    pinned: bool = False
    suspect: str = ""


def read_catalogue(folder: Path) -> list[SavedCheckpoint]:
    """All checkpoints in the folder, the newest first. Needs no lock, and works while another process saves."""
    for _ in range(_MOST_LOOKS):
        text = _manifest_text(folder)
        paths = sorted(folder.glob(f"step-*{SUFFIX}"))
        if _manifest_text(folder) == text:  # so the list of files is of the same moment
            break
    listed = _listed(folder, text)
    found: list[SavedCheckpoint] = []
    for path in paths:
        entry = listed.get(path.name)
        if entry is None:
            found += _unlisted(path)
        else:
            found.append(replace(entry, path=path))
    return sorted(found, key=lambda saved: -saved.sequence)


def own_catalogue(folder: Path) -> list[SavedCheckpoint]:
    """The checkpoints, for the holder of the lock; without a manifest, the files that say they are ours are listed."""
    entries = read_catalogue(folder)
    if any(entry.sha256 for entry in entries):
        return entries
    return [_with_hash(entry) for entry in entries]


def write_catalogue(folder: Path, entries: Iterable[SavedCheckpoint]) -> None:
    """Replace the manifest atomically."""
    files = {
        entry.path.name: {
            "step": entry.step,
            "sequence": entry.sequence,
            "bytes": entry.bytes,
            "sha256": entry.sha256,
            "saved_at": entry.saved_at,
            "pinned": entry.pinned,
            "suspect": entry.suspect,
        }
        for entry in sorted(entries, key=lambda entry: entry.sequence)
        if entry.sha256
    }
    text = json.dumps({"schema": MANIFEST_SCHEMA, "files": files}, indent=2) + "\n"
    write_atomically(folder / MANIFEST, text, writer=_WRITER)


def write_pointer(folder: Path, entries: Iterable[SavedCheckpoint]) -> None:
    """Write the name of the last good checkpoint, for programs that read the folder without nantrap."""
    good = newest_good(entries)
    if good is None:
        (folder / POINTER).unlink(missing_ok=True)
        return
    document = {"schema": POINTER_SCHEMA, "file": good.path.name, "step": good.step, "sha256": good.sha256}
    write_atomically(folder / POINTER, json.dumps(document, indent=2) + "\n", writer=_WRITER)


def newest_good(entries: Iterable[SavedCheckpoint]) -> SavedCheckpoint | None:
    """The newest one that is not marked as suspect."""
    return max((e for e in entries if not e.suspect), key=lambda entry: entry.sequence, default=None)


def superseded(entries: Iterable[SavedCheckpoint], *, keep: int) -> list[SavedCheckpoint]:
    """What may be removed of the store's own: all but the newest `keep`, the newest `keep` good ones, and the pinned
    ones.
    """
    newest_first = sorted((entry for entry in entries if entry.sha256), key=lambda entry: -entry.sequence)
    good = [entry for entry in newest_first if not entry.suspect]
    kept = {entry.path for entry in (*newest_first[:keep], *good[:keep])}
    return [entry for entry in newest_first if entry.path not in kept and not entry.pinned]


def free_path(folder: Path, step: int) -> Path:
    """The place for a step's file: nothing is ever overwritten."""
    path, number = folder / f"step-{step:06d}{SUFFIX}", 1
    while path.exists():
        number += 1
        path = folder / f"step-{step:06d}-{number}{SUFFIX}"
    return path


def _is_foreign(document: dict[str, Any]) -> bool:
    """Whether a manifest belongs to another program: it names another schema, or none of our fields."""
    schema = document.get("schema")
    if isinstance(schema, str):
        return schema != MANIFEST_SCHEMA
    return bool(document) and not {"schema", "files"} & document.keys()


def _manifest_text(folder: Path) -> bytes | OSError | None:
    """The manifest as it is now; `None` if there is none, or the reason why it cannot be read."""
    try:
        return (folder / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return error


def _listed(folder: Path, text: bytes | OSError | None) -> dict[str, SavedCheckpoint]:
    """The files that the manifest lists; raises if it belongs to another program."""
    path = folder / MANIFEST
    if text is None:
        return {}
    if isinstance(text, OSError):
        return _unreadable(path, str(text))
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        return _unreadable(path, str(error))
    if isinstance(document, dict) and _is_foreign(document):
        raise UsageError(
            f"{path} is not a manifest of nantrap (schema {MANIFEST_SCHEMA}); give the store its own folder"
        )
    files = document.get("files") if isinstance(document, dict) and document.get("schema") == MANIFEST_SCHEMA else None
    if not isinstance(files, dict):
        return _unreadable(path, "it does not say which files there are")
    try:
        return {name: _entry(folder, name, value) for name, value in files.items()}
    except FormatError as error:
        return _unreadable(path, str(error))


def _unreadable(path: Path, reason: str) -> dict[str, SavedCheckpoint]:
    """The files carry step, order and checksum themselves; the next save writes a new manifest."""
    warnings.warn(
        escaped(f"nantrap: {path} cannot be read ({reason})", most=4000)
        + "; the checkpoints are listed by their own headers instead",
        RuntimeWarning,
        stacklevel=5,
    )
    return {}


def _entry(folder: Path, name: str, value: dict[str, Any]) -> SavedCheckpoint:
    """One line of the manifest; raises `FormatError` that names the field."""
    try:
        return SavedCheckpoint(
            path=folder / name,
            step=int(value["step"]),
            sequence=int(value["sequence"]),
            bytes=int(value["bytes"]),
            sha256=str(value["sha256"]),
            saved_at=str(value.get("saved_at", "")),
            pinned=bool(value.get("pinned", False)),
            suspect=str(value.get("suspect", "")),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FormatError(f"{folder / MANIFEST}: field files.{name}: {error!r}") from error


def _unlisted(path: Path) -> list[SavedCheckpoint]:
    """A file by its own header; one without a readable header is listed as the oldest, to be found damaged later."""
    try:
        with LocalSource(str(path)) as source:
            about = json.loads(open_contents(source)[1])["about"]
        return [SavedCheckpoint(path, int(about["step"]), int(about["sequence"]), saved_at=str(about["saved_at"]))]
    except FileNotFoundError:
        return []  # removed since the folder was listed
    except NotOursError:
        why = "it was not written by nantrap"
    except (FormatError, OSError, KeyError, TypeError, ValueError, OverflowError):
        why = "its header cannot be read"
    digits = "".join(c for c in path.stem.split("-")[1] if c.isascii() and c.isdecimal())
    return [SavedCheckpoint(path, int(digits or 0), -1, suspect=why)]


def _with_hash(saved: SavedCheckpoint, *, foreign: bool = False) -> SavedCheckpoint:
    """Adds the hash of a checkpoint if it is whole and says that a store wrote it under this name, or in any case of
    `foreign`."""
    if saved.sha256 or saved.suspect:
        return saved
    try:
        if check_file(saved.path).get("file") != saved.path.name and not foreign:
            return saved
        return replace(saved, sha256=sha256_of(saved.path), bytes=saved.path.stat().st_size)
    except (FormatError, OSError):
        return saved


def write_checkpoint(
    folder: Path, packed: Packed, *, step: int, pin: bool, keep: int, lock_seconds: float
) -> SavedCheckpoint:
    """Write, list, rename, tidy up. An `OSError` says what happened, and that the last good one still exists."""
    target = folder
    try:
        make_folder(folder)
        with locked(folder, seconds=lock_seconds):
            remove_leftovers(folder, writer=_WRITER)
            entries = own_catalogue(folder)
            target = free_path(folder, step)
            sequence = 1 + max((entry.sequence for entry in entries), default=0)
            saved_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
            about = {"step": step, "sequence": sequence, "saved_at": saved_at, "nantrap": __version__}
            written = write_file(target, packed, {**about, "file": target.name}, writer=_WRITER)
            entry = SavedCheckpoint(target, step, sequence, written.bytes, written.sha256, saved_at, pinned=pin)
            try:
                write_catalogue(folder, [entry, *entries])
                put_in_place(target, writer=_WRITER)
            except BaseException:
                with contextlib.suppress(OSError):
                    temporary_of(target, writer=_WRITER).unlink()
                raise
            _tidy(folder, [entry, *entries], keep=keep)
            return entry
    except OSError as error:
        left = (
            "there is none yet" if (good := last_good_in(folder)) is None else f"the last good one is {good.path.name}"
        )
        message = f"the checkpoint of step {step:,} was not saved: {error.strerror or error}; {left}"
        raise OSError(error.errno, message, str(target)) from error


def change_entry(folder: Path, saved: SavedCheckpoint, *, lock_seconds: float, **changes: Any) -> None:
    """Write another value of a field of one checkpoint into the manifest."""
    with locked(folder, seconds=lock_seconds):
        changed = [
            replace(_with_hash(entry, foreign=True), **changes) if entry.path.name == saved.path.name else entry
            for entry in own_catalogue(folder)
        ]
        write_catalogue(folder, changed)
        write_pointer(folder, changed)


def put_aside(folder: Path, saved: SavedCheckpoint, *, lock_seconds: float) -> str | None:
    """Move a damaged file into quarantine. It is read again under the lock: a whole one is never moved.

    Returns:
        The name that it has there, or `None` if it is whole now, or gone: another process has saved meanwhile.
    """
    with locked(folder, seconds=lock_seconds):
        try:
            check_file(saved.path)
            return None
        except FileNotFoundError:
            return None
        except FormatError as error:
            target = _to_quarantine(folder, saved, str(error))
        entries = own_catalogue(folder)
        write_catalogue(folder, entries)
        write_pointer(folder, entries)
    return target


def _to_quarantine(folder: Path, saved: SavedCheckpoint, reason: str) -> str:
    audit = CheckpointAudit(str(saved.path), "nantrap", 0, saved.bytes, (checkpoint_problem("NT908", reason),))

    def refuse(path: str, reason: str) -> None:
        raise OSError(f"{path}: {reason}; it is still in its place")

    return Path(quarantine([audit], folder / QUARANTINE, on_left=refuse)[0].target).name


def last_good_in(folder: Path) -> SavedCheckpoint | None:
    """The newest checkpoint that is not marked as suspect; `None` also if the folder cannot be read."""
    try:
        return newest_good(read_catalogue(folder))
    except OSError:
        return None


def _tidy(folder: Path, entries: list[SavedCheckpoint], *, keep: int) -> None:
    """The pointer, then what is superseded. The checkpoint is safe by now: nothing here may fail the save."""
    with contextlib.suppress(OSError, UsageError):
        write_pointer(folder, entries)
        whole = [entry for entry in entries if _has_its_size(entry)]  # one that was cut does not count
        removed = superseded(whole, keep=keep)
        for entry in removed:
            _remove(folder, entry)
        if removed:
            write_catalogue(folder, [entry for entry in entries if entry not in removed])


def _has_its_size(entry: SavedCheckpoint) -> bool:
    with contextlib.suppress(OSError):
        return entry.path.stat().st_size == entry.bytes
    return False


def _remove(folder: Path, entry: SavedCheckpoint) -> None:
    """Remove a file if it is whole and the one that was saved. A damaged one is moved to quarantine, another stays."""
    try:
        about = check_file(entry.path)
    except (FileNotFoundError, NotOursError):
        return
    except FormatError as error:
        _to_quarantine(folder, entry, str(error))
        return
    if (about.get("step"), about.get("sequence")) == (entry.step, entry.sequence):
        entry.path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidates in the order in which to try them. A file outside the store has no older one."""

    candidates: tuple[SavedCheckpoint, ...]
    in_store: bool = True


def choose(resume: str | int | os.PathLike[str], folder: Path, newest_first: list[SavedCheckpoint]) -> Choice:
    """What `resume` asks for: `last_good`, `latest`, a step, or a path."""
    good = [saved for saved in newest_first if not saved.suspect]
    if resume == "last_good":
        return Choice(_some(good, folder, newest_first))
    if resume == "latest":
        return Choice(_some(newest_first, folder, newest_first))
    if isinstance(resume, bool) or not isinstance(resume, (int, str, os.PathLike)):
        raise UsageError(
            f"load({resume!r}): expected last_good, latest, a step (an integer) or the path of a file; "
            f"{_there(newest_first)}"
        )
    if isinstance(resume, int):
        wanted = next((saved for saved in newest_first if saved.step == resume), None)
        if wanted is None:
            raise UsageError(f"{folder} has no checkpoint of step {resume:,}; {_there(newest_first)}")
        return Choice((wanted, *(saved for saved in good if saved.sequence < wanted.sequence)))
    path = Path(resume)
    for place in (path, folder / path):
        wanted = next((s for s in newest_first if place.exists() and _same(s.path, place)), None)
        if wanted is not None:
            return Choice((wanted, *(saved for saved in good if saved.sequence < wanted.sequence)))
        if place.is_file():
            return Choice((SavedCheckpoint(place, 0, 0),), in_store=False)
    raise UsageError(
        f"resume={os.fspath(resume)!r}: neither last_good, latest, a step (an integer) nor a file that exists; "
        f"{_there(newest_first)}"
    )


def _some(
    candidates: list[SavedCheckpoint], folder: Path, everything: list[SavedCheckpoint]
) -> tuple[SavedCheckpoint, ...]:
    """The candidates; an error that says what there is if there are none."""
    if candidates:
        return tuple(candidates)
    if everything:
        named = ", ".join(f"{saved.path.name}: {saved.suspect}" for saved in everything[:3])
        raise UsageError(f"{folder} has no good checkpoint left ({named}); resume='latest' takes one anyway")
    raise UsageError(f"{folder} has no checkpoint; save one first, or give the folder of another run")


def _there(newest_first: list[SavedCheckpoint]) -> str:
    if not newest_first:
        return "there is none at all"
    steps = ", ".join(f"{saved.step:,}" for saved in newest_first[:8])
    return f"there are steps {steps}" + (", …" if len(newest_first) > 8 else "")


def _same(left: Path, right: Path) -> bool:
    return os.path.realpath(left) == os.path.realpath(right)


# ---- one writer at a time


LOCK: Final = ".lock"


@contextlib.contextmanager
def locked(folder: Path, *, seconds: float) -> Iterator[None]:
    """Hold the folder's lock, which ends with its process. `UsageError` names the holder after this many seconds."""
    path = folder / LOCK
    lock = FileLock(path)
    try:
        lock.acquire(timeout=seconds, poll_interval=0.02)
    except Timeout:
        raise UsageError(
            f"{path} has been held by {_holder(path)} for {seconds:g} s: another process writes checkpoints "
            "into this folder. Give each run its own folder, or end that process"
        ) from None
    try:
        with contextlib.suppress(OSError):  # only for the message of others; a full disk must not matter here
            path.write_text(f"{os.getpid()}\n", encoding="ascii")
        yield
    finally:
        lock.release()


def _holder(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return f"process {int(path.read_text(encoding='ascii'))}"
    return "another process"
