"""Readers: which format a file has, how it is cut into shards, and how a shard is measured.

The name decides first, the content second: a file called .png that holds HTML is a damaged image, not a text file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from nantrap.doctor.data.readers import arrays, arrow_files, csv_files, json_lines, tar_files
from nantrap.doctor.data.readers.array_files import open_npy, open_npz, open_torch
from nantrap.doctor.data.readers.arrays import digests
from nantrap.doctor.data.readers.hdf5_files import open_hdf5
from nantrap.doctor.data.readers.images import EXTENSIONS, is_image
from nantrap.doctor.data.readers.text_pieces import plan_lines
from nantrap.doctor.data.roles import DataOptions
from nantrap.doctor.data.rows import Array
from nantrap.doctor.data.shards import Plan, Scanned, Shard, UnreadableDataError

_ARRAYS: Final[dict[str, arrays.Opener]] = {
    "npy": open_npy,
    "npz": open_npz,
    "torch": open_torch,
    "safetensors": open_torch,
    "hdf5": open_hdf5,
}


class _Streamed(NamedTuple):
    plan: Callable[[str, str], Plan]
    scan: Callable[[Shard, DataOptions], Scanned]


_STREAMED: Final = {
    "csv": _Streamed(plan_lines, csv_files.scan),
    "jsonl": _Streamed(plan_lines, json_lines.scan),
    "parquet": _Streamed(arrow_files.plan, arrow_files.scan),
    "arrow": _Streamed(arrow_files.plan, arrow_files.scan),
    "tar": _Streamed(tar_files.plan, tar_files.scan),
}
_LINES: Final = {"csv": csv_files.combine, "jsonl": json_lines.combine}
"""Formats whose shards count their samples from 0."""
_EXTENSIONS: Final = {
    ".npy": "npy", ".npz": "npz", ".pt": "torch", ".pth": "torch", ".ckpt": "torch", ".safetensors": "safetensors",
    ".h5": "hdf5", ".hdf5": "hdf5", ".he5": "hdf5", ".hdf": "hdf5", ".csv": "csv", ".tsv": "csv", ".tab": "csv",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow",
    ".feather": "arrow", ".ipc": "arrow", ".tar": "tar", ".tgz": "tar",
}  # fmt: skip


def format_of(path: str) -> str | None:
    """The format by the file's name; `None` if the name does not show it."""
    name = os.path.basename(path).lower()
    if name.endswith((".tar.gz", ".tar.bz2", ".tar.xz")):
        return "tar"
    extension = os.path.splitext(name)[1]
    return "image" if extension in EXTENSIONS else _EXTENSIONS.get(extension)


def format_of_content(head: bytes) -> str | None:
    """The format by the file's first bytes, for a file whose name does not show it."""
    if head.startswith(b"\x93NUMPY"):
        return "npy"
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(b"ARROW1"):
        return "arrow"
    if head.startswith(b"\x89HDF"):
        return "hdf5"
    if head.startswith((b"PK\x03\x04", b"\x80")):
        return "torch"
    if head[257:262] == b"ustar":
        return "tar"
    if is_image(head):
        return "image"
    return "jsonl" if head.lstrip()[:1] == b"{" else None


def plan_file(path: str, format: str) -> Plan:
    """Cut a file into shards. Raises `UnreadableDataError` if it is not what it should be."""
    if format in _ARRAYS:
        return arrays.plan(path, format, _ARRAYS[format])
    return _STREAMED[format].plan(path, format)


def scan_shard(shard: Shard, options: DataOptions) -> Scanned:
    """Measure one shard: the function that every engine runs."""
    if shard.format in _ARRAYS:
        return arrays.scan(shard, options, _ARRAYS[shard.format])
    return _STREAMED[shard.format].scan(shard, options)


def combined(path: str, format: str | None, pieces: Sequence[Scanned], options: DataOptions) -> list[Scanned]:
    """What the shards of one file gave, in order, with samples counted through the whole file."""
    if format not in _LINES or not pieces:
        return list(pieces)
    return [_LINES[format](path, pieces, options)]


def open_arrays(path: str, format: str) -> contextlib.AbstractContextManager[arrays.ArrayFile]:
    """A file of arrays, to read samples again that have to be compared."""
    return _ARRAYS[format](path)


def read_array(file: arrays.ArrayFile, field: str | None) -> Array | None:
    """A whole field of a file of arrays, for the few rules that compare fields; `None` if it is no plain array."""
    each = file.field(field)
    if each.samples is not None or each.kind not in ("int", "float", "bool", "image"):
        return None
    return each.read(0, each.shape[0]).copy()


__all__ = [
    "UnreadableDataError", "combined", "digests", "format_of", "format_of_content", "open_arrays", "plan_file",
    "read_array",
    "scan_shard",
]  # fmt: skip
