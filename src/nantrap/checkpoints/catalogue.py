"""What is in a store: `manifest.json` with a hash for every file, and the pointer to the last good one.

{"schema": "nantrap.manifest/1", "files": {"step-000100.safetensors": {"step": 100, "sequence": 3, "bytes": 1234,
  "sha256": "…", "saved_at": "…", "pinned": false, "suspect": ""}}}

`sequence` counts the saves, since a step can be reached twice (after going back). A listed file that is not there, and
a file that is not listed, are both possible after a kill or a lost manifest: the first is ignored, the second is taken
in by what its own header says.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from nantrap.checkpoints.durable import write_whole
from nantrap.checkpoints.manifest import NAME as MANIFEST
from nantrap.checkpoints.manifest import SCHEMA, sha256_of
from nantrap.checkpoints.source import LocalSource
from nantrap.checkpoints.storefile import open_contents, read_file
from nantrap.errors import FormatError, UsageError

POINTER: Final = "last-good.json"
POINTER_SCHEMA: Final = "nantrap.last-good/1"
SUFFIX: Final = ".safetensors"


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """One checkpoint of a store. `suspect` says why it is not gone back to, `sha256` is empty if it is not known."""

    path: Path
    step: int
    sequence: int
    bytes: int = 0
    sha256: str = ""
    saved_at: str = ""
    pinned: bool = False
    suspect: str = ""


def read_catalogue(folder: Path) -> list[SavedCheckpoint]:
    """All checkpoints in the folder, the newest first. Needs no lock, and works while somebody saves."""
    listed = _listed(folder)
    found: list[SavedCheckpoint] = []
    for path in sorted(folder.glob(f"step-*{SUFFIX}")):
        entry = listed.get(path.name)
        if entry is None:
            found += _unlisted(path)
        else:
            found.append(replace(entry, path=path))
    return sorted(found, key=lambda saved: -saved.sequence)


def write_catalogue(folder: Path, entries: Iterable[SavedCheckpoint]) -> None:
    """Replace the manifest in one go."""
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
    write_whole(folder / MANIFEST, json.dumps({"schema": SCHEMA, "files": files}, indent=2) + "\n")


def write_pointer(folder: Path, entries: Iterable[SavedCheckpoint]) -> None:
    """Name the last good checkpoint for whoever reads the folder without nantrap."""
    good = newest_good(entries)
    if good is not None:
        document = {"schema": POINTER_SCHEMA, "file": good.path.name, "step": good.step, "sha256": good.sha256}
        write_whole(folder / POINTER, json.dumps(document, indent=2) + "\n")


def newest_good(entries: Iterable[SavedCheckpoint]) -> SavedCheckpoint | None:
    """The newest one that nothing is said against."""
    return max((e for e in entries if not e.suspect), key=lambda entry: entry.sequence, default=None)


def superseded(entries: Iterable[SavedCheckpoint], *, keep: int) -> list[SavedCheckpoint]:
    """What may be removed: all but the newest `keep`, the newest `keep` good ones, and the pinned ones."""
    newest_first = sorted(entries, key=lambda entry: -entry.sequence)
    good = [entry for entry in newest_first if not entry.suspect]
    kept = {entry.path for entry in (*newest_first[:keep], *good[:keep])}
    return [entry for entry in newest_first if entry.path not in kept and not entry.pinned]


def relisted(entries: Iterable[SavedCheckpoint]) -> list[SavedCheckpoint]:
    """The same with a hash for every file that had none and is whole by its own checksum."""
    return [_with_hash(entry) for entry in entries]


def free_path(folder: Path, step: int) -> Path:
    """The place for a step's file: nothing is ever overwritten."""
    path, number = folder / f"step-{step:06d}{SUFFIX}", 1
    while path.exists():
        number += 1
        path = folder / f"step-{step:06d}-{number}{SUFFIX}"
    return path


def _listed(folder: Path) -> dict[str, SavedCheckpoint]:
    path = folder / MANIFEST
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        warnings.warn(
            f"nantrap: {path} cannot be read ({error}); the checkpoints are listed by their own headers instead",
            RuntimeWarning,
            stacklevel=4,
        )
        return {}
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise UsageError(f"{path} is not a manifest of nantrap (schema {SCHEMA}); give the store a folder of its own")
    files = document.get("files")
    return {name: _entry(folder, name, value) for name, value in files.items()} if isinstance(files, dict) else {}


def _entry(folder: Path, name: str, value: dict[str, Any]) -> SavedCheckpoint:
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
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{folder / MANIFEST}: field files.{name}: {error!r}") from error


def _unlisted(path: Path) -> list[SavedCheckpoint]:
    """A file by its own header; one without a readable header is listed as the oldest, to be found damaged later."""
    try:
        with LocalSource(str(path)) as source:
            about = json.loads(open_contents(source)[1])["about"]
        return [SavedCheckpoint(path, int(about["step"]), int(about["sequence"]), saved_at=str(about["saved_at"]))]
    except FileNotFoundError:
        return []  # removed since the folder was listed
    except (FormatError, OSError, KeyError, TypeError, ValueError):
        digits = "".join(c for c in path.stem.split("-")[1] if c.isdigit())
        return [SavedCheckpoint(path, int(digits or 0), -1, suspect="its header cannot be read")]


def _with_hash(saved: SavedCheckpoint) -> SavedCheckpoint:
    if saved.sha256 or saved.suspect:
        return saved
    try:
        read_file(saved.path)
        with LocalSource(str(saved.path)) as source:
            return replace(saved, sha256=sha256_of(source), bytes=source.size)
    except (FormatError, OSError):
        return saved
