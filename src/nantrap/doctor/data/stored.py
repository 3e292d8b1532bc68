"""The one place that uses the checkpoint readers: where a file's bytes are, and what a torch file holds.

A `.pt` file is never unpickled. The readers follow its pickle opcode by opcode and return where each tensor is.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nantrap.checkpoints.audit.files import ByteSource, as_file, filesystem_of, walk
from nantrap.doctor.data.shards import UnreadableDataError

_JOURNAL = re.compile(r"journal-r\d+\.jsonl")


def open_source(path: str) -> ByteSource:
    """The bytes of a local file or of a URL that fsspec understands."""
    try:
        return filesystem_of(path).open(path)
    except OSError as error:
        raise UnreadableDataError(f"cannot be opened: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class StoredArray:
    """A tensor in a torch or safetensors file: its path in the saved object, and where its values are."""

    path: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    source: ByteSource
    offset: int


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A torch or safetensors file: its tensors by path, and the saved object with everything else in it.

    `runs` are the functions that loading it would run, `objects` the classes that it would make, `in_parts` the tensors
    that are stored as several (sparse and nested ones): their values are among the arrays.
    """

    arrays: dict[tuple[str, ...], StoredArray]
    tree: Any
    runs: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    in_parts: tuple[tuple[str, ...], ...] = ()


def read_stored(source: ByteSource, format: str | None = None) -> StoredObject:
    """What a torch or safetensors file holds, without unpickling it.

    Args:
        source: its bytes.
        format: what it should be, by its name.
    """
    from nantrap.checkpoints.audit.contents import UnreadableError  # only torch files need them
    from nantrap.checkpoints.audit.readers import read_contents

    try:
        contents = read_contents(source)
    except UnreadableError as error:
        kind = "safetensors" if format == "safetensors" else "torch.save"
        unknown = error.problem.code == "NT911"
        text = f"not a file of {kind}: no header of that kind at its beginning" if unknown else str(error)
        raise UnreadableDataError(text) from error
    for problem in contents.problems:
        if problem.severity == "error":
            raise UnreadableDataError(problem.message)
    arrays: dict[tuple[str, ...], StoredArray] = {}
    in_parts: dict[tuple[str, ...], None] = {}
    for extent in contents.extents:
        for tensor in extent.tensors:
            if tensor.path in arrays:
                in_parts[tensor.path] = None
                if not tensor.dtype.has_nan:
                    continue  # of the parts of a sparse or nested tensor, that with its values
            shape, stride, dtype = tensor.shape, tensor.stride, tensor.dtype.name
            if dtype == "complex32":  # numpy has none
                shape, stride, dtype = (*shape, 2), (*(2 * step for step in stride), 1), "float16"
            arrays[tensor.path] = StoredArray(
                tensor.path, dtype, shape, stride, extent.source, extent.offset + tensor.offset
            )
    imports = contents.imports
    runs, objects = tuple(imports.run), (*imports.unclear, *imports.unknown)
    return StoredObject(arrays, contents.tree, runs, objects, tuple(in_parts))


def values_of_bytes(dtype: str) -> Any:
    """The 256 numbers of a float8 as an array of float32; `None` for any other dtype."""
    if not dtype.startswith("float8"):
        return None
    import numpy as np

    from nantrap.checkpoints.audit.tally import byte_values

    return np.array(byte_values(dtype), dtype=np.float32)


def children(node: Any) -> Iterator[tuple[str, Any]]:
    """The entries of a container in a saved object, by name or number; none for anything else."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield str(key), value
    elif isinstance(node, (list, tuple)):
        for position, value in enumerate(node):
            yield str(position), value


def as_stream(source: ByteSource) -> io.BufferedReader:
    """The source as a file object, for `zipfile` and others."""
    return as_file(source)


def file_size(path: str) -> int:
    """The size of a file; 0 if that is not known."""
    entry = filesystem_of(path).stat(path)
    return entry.size if entry is not None else 0


def list_folder(path: str, closed: list[OSError], runs: list[str]) -> list[tuple[str, int]] | None:
    """All files below a folder with their sizes, by name; `None` if the path is a file.

    Hidden files and folders are left out, and the runs of nantrap: their journals and bundles are no data. Runs are put
    into `runs`, folders that may not be listed into `closed`.
    """
    system = filesystem_of(path)
    entry = system.stat(path)
    if entry is None or not entry.is_folder:
        return None
    found = []
    for folder, entries in walk(system, path, closed):
        if any(part.startswith(".") and part not in (".", "..") for part in folder[len(path) :].split("/")):
            continue
        if folder != path and any(_JOURNAL.fullmatch(each.name) for each in entries):
            runs.append(folder)
        if any(f"{folder}/".startswith(f"{run}/") for run in runs):
            continue
        for each in entries:
            if not each.is_folder and not each.name.startswith("."):
                found.append((each.path, each.size))
    return found
