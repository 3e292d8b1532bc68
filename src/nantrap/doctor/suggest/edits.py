"""Exact edits of single values: everything else in the file, comments and order included, stays unchanged."""

from __future__ import annotations

import difflib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nantrap.doctor.configuration.setting import Span
from nantrap.errors import UsageError
from nantrap.record.durable import put_in_place, written_beside


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the text of one value. `why` is shown above the patch."""

    file: str
    span: Span
    new: str
    why: str


def patch_of(edits: Sequence[Edit]) -> str:
    """The edits as one unified diff."""
    parts = []
    for file in sorted({edit.file for edit in edits}):
        before, _, _ = _read(file)
        after = _edited(before, [edit for edit in edits if edit.file == file])
        lines = difflib.unified_diff(
            before.splitlines(keepends=True),
            after.splitlines(keepends=True),
            f"a/{file.lstrip('/')}",
            f"b/{file.lstrip('/')}",
        )
        for line in lines:
            parts.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
    return "".join(parts)


def apply_edits(edits: Sequence[Edit]) -> list[tuple[str, str]]:
    """Write the edits. Returns (file, backup) for each file; a backup never replaces an older one.

    Raises:
        UsageError: A file cannot be written; nothing of it is changed then.
    """
    done = []
    for file in sorted({edit.file for edit in edits}):
        before, mark, newline = _read(file)
        after = _edited(before, [edit for edit in edits if edit.file == file])
        try:
            backup = _backup(file)
            _replace(file, mark + after.replace("\n", newline).encode())
        except OSError as error:
            raise UsageError(f"{file}: cannot be changed: {error.strerror or error}") from error
        done.append((file, backup))
    return done


def _read(file: str) -> tuple[str, bytes, str]:
    """The text as the readers saw it, the byte order mark, and the line ending."""
    try:
        with open(file, "rb") as stream:
            data = stream.read()
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror or error}") from error
    mark = b"\xef\xbb\xbf" if data.startswith(b"\xef\xbb\xbf") else b""
    try:
        text = data[len(mark) :].decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: is not UTF-8, so it cannot be edited safely") from error
    newline = "\r\n" if "\r\n" in text else "\n"
    return text.replace("\r\n", "\n"), mark, newline


def _edited(text: str, edits: Sequence[Edit]) -> str:
    for edit in sorted(edits, key=lambda each: each.span.start, reverse=True):
        text = text[: edit.span.start] + edit.new + text[edit.span.end :]
    return text


def _backup(file: str) -> str:
    """Copy a file in its folder under a free name."""
    with open(file, "rb") as stream:
        data = stream.read()
    number = 0
    while True:
        name = f"{file}.bak" if number == 0 else f"{file}.bak{number}"
        try:
            with open(name, "xb") as target:
                target.write(data)
            return name
        except FileExistsError:
            number += 1


def _replace(file: str, data: bytes) -> None:
    """Write a new file and replace the old one atomically, with the old one's permissions."""
    target = Path(os.path.realpath(file))
    with written_beside(target) as stream:
        shutil.copymode(target, stream.name)
        stream.write(data)
    put_in_place(target)
