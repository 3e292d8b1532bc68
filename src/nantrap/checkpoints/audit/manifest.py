"""The hashes a store keeps of its files: `manifest.json` in the same folder.

{"schema": "nantrap.manifest/1", "files": {"step-000100.pt": {"bytes": 1234, "sha256": "…"}}}
"""

from __future__ import annotations

import json
from typing import Final

from nantrap.checkpoints.audit.filesystem import FileSystem, read_text
from nantrap.checkpoints.audit.source import Source, as_file
from nantrap.checkpoints.audit.verdict import Problem

NAME: Final = "manifest.json"
SCHEMA: Final = "nantrap.manifest/1"


def expected_hash(files: FileSystem, path: str) -> str | None:
    """The SHA-256 that the manifest in the file's folder gives for it, or `None` if there is none."""
    name = path.replace("\\", "/").rpartition("/")[2]
    folder = path[: len(path) - len(name)] or "."
    entry = files.stat(files.join(folder, NAME))
    if entry is None or entry.is_folder:
        return None
    try:
        content = json.loads(read_text(files, entry.path))
        if content["schema"] != SCHEMA:
            return None
        digest = content["files"][name]["sha256"]
    except (ValueError, KeyError, TypeError, RecursionError, OSError):
        return None  # the manifest.json of another program
    return digest if isinstance(digest, str) else None


def check_hash(files: FileSystem, source: Source) -> list[Problem]:
    """One problem if the file is not the one that was hashed."""
    expected = expected_hash(files, source.name)
    if expected is None:
        return []
    from nantrap.record.durable import sha256_of  # takes a tenth of a second, so it is imported only for stores

    if sha256_of(as_file(source)) == expected:
        return []
    return [Problem("NT908", f"its SHA-256 is not the one in {NAME}: it was changed after it was saved")]
