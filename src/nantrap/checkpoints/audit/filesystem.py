"""Names and folders: the few questions the audit asks a file system, answered by `os` or by fsspec.

A path is a plain local path or a URL with a protocol (`s3://bucket/run`, `memory://ckpt`, `file:///data`).
"""

from __future__ import annotations

import glob
import os
import posixpath
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from nantrap.checkpoints.audit.source import LocalSource, Source, StreamSource
from nantrap.errors import MissingExtraError, UsageError

LOG_NAME = "quarantine.jsonl"
"""Marks a folder of checkpoints that were moved away, with a line for each. Audits leave such a folder out."""


class Entry(NamedTuple):
    """An entry of a folder."""

    path: str
    name: str
    is_folder: bool
    size: int = 0
    modified: float = 0.0


class FileSystem(Protocol):
    """What the audit needs from a file system."""

    def stat(self, path: str) -> Entry | None:
        """The file or folder at `path`, or `None` if there is none."""

    def entries(self, folder: str) -> list[Entry]:
        """The entries of the folder, by name."""

    def glob(self, pattern: str) -> list[str]:
        """The paths that match, by name."""

    def join(self, folder: str, name: str) -> str:
        """The path of `name` in `folder`."""

    def identity(self, path: str) -> str:
        """The same text for two paths that lead to the same file."""

    def is_link(self, path: str) -> bool:
        """Whether the path itself is a link."""

    def open(self, path: str) -> Source:
        """The file's bytes."""


class LocalFiles:
    """The files of this machine."""

    def stat(self, path: str) -> Entry | None:
        """The file or folder at a path, a broken link included; `None` if nothing is there."""
        try:
            status = os.stat(path)
        except (OSError, ValueError):  # nothing there, or a name with a zero byte
            try:
                os.lstat(path)
            except (OSError, ValueError):
                return None
            return Entry(path, os.path.basename(path), is_folder=False)  # a broken link, or a link to itself
        name = os.path.basename(os.path.normpath(path))
        return Entry(path, name, os.path.isdir(path), status.st_size, status.st_mtime)

    def entries(self, folder: str) -> list[Entry]:
        found = (self.stat(os.path.join(folder, name)) for name in sorted(os.listdir(folder)))
        return [entry for entry in found if entry is not None]

    def glob(self, pattern: str) -> list[str]:
        return sorted(glob.glob(pattern, recursive=True))

    def join(self, folder: str, name: str) -> str:
        return os.path.join(folder, name)

    def identity(self, path: str) -> str:
        return os.path.realpath(path)

    def is_link(self, path: str) -> bool:
        return os.path.islink(path)

    def open(self, path: str) -> Source:
        return LocalSource(path)


class RemoteFiles:
    """Whatever fsspec can reach. Paths keep their protocol."""

    def __init__(self, protocol: str) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise MissingExtraError("fsspec", extra="remote") from error
        try:
            self._files: Any = fsspec.filesystem(protocol)
        except (ImportError, ValueError) as error:
            raise UsageError(
                f"cannot open {protocol}:// addresses: {error}. "
                "Install the fsspec package for that protocol, or copy the file here first"
            ) from error

    def stat(self, path: str) -> Entry | None:
        try:
            return self._entry(self._files.info(path))
        except FileNotFoundError:
            return None

    def entries(self, folder: str) -> list[Entry]:
        found = [self._entry(info) for info in self._files.ls(folder, detail=True)]
        return sorted((entry for entry in found if entry.name), key=lambda entry: entry.name)

    def glob(self, pattern: str) -> list[str]:
        return sorted(self._files.unstrip_protocol(path) for path in self._files.glob(pattern))

    def join(self, folder: str, name: str) -> str:
        return posixpath.join(folder, name)

    def identity(self, path: str) -> str:
        return str(self._files.unstrip_protocol(path))

    def is_link(self, path: str) -> bool:
        return False

    def open(self, path: str) -> Source:
        size = int(self._files.size(path))
        stream = self._files.open(path, "rb", block_size=8 << 20)
        return StreamSource(stream, name=path, size=size)

    def _entry(self, info: dict[str, Any]) -> Entry:
        """A file or folder as the remote file system lists it."""
        path = self._files.unstrip_protocol(info["name"])
        return Entry(
            path=path,
            name=posixpath.basename(path.rstrip("/")),
            is_folder=info.get("type") == "directory",
            size=int(info.get("size") or 0),
            modified=_timestamp(info),
        )


def filesystem_of(path: str) -> FileSystem:
    """The file system a path belongs to."""
    protocol, separator, _ = path.partition("://")
    return RemoteFiles(protocol) if separator else LocalFiles()


def is_remote(path: str) -> bool:
    """Whether the path is a URL."""
    return "://" in path


def _timestamp(info: dict[str, Any]) -> float:
    for key in _TIME_KEYS:
        value = info.get(key)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    return 0.0


_TIME_KEYS = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")


def read_text(files: FileSystem, path: str, *, limit: int = 32 << 20) -> str:
    """A small text file; of a larger one, its start."""
    with files.open(path) as source:
        return source.read(0, limit).decode("utf-8", errors="replace")


def walk(files: FileSystem, folder: str, closed: list[OSError]) -> Iterator[tuple[str, list[Entry]]]:
    """Every folder below `folder`, itself first, each with its entries. A loop of links ends.

    A folder that may not be listed is put into `closed`.
    """
    seen: set[str] = set()
    pending = [folder]
    while pending:
        current = pending.pop()
        identity = files.identity(current)
        if identity in seen:
            continue
        seen.add(identity)
        try:
            entries = files.entries(current)
        except OSError as error:
            closed.append(error)
            continue
        yield current, entries
        pending.extend(entry.path for entry in reversed(entries) if entry.is_folder)
