"""What `torch.save` wrote before 1.6, and still writes with `_use_new_zipfile_serialization=False`.

Five pickles in a row (magic number, protocol, machine, the object, the keys of the storages), then the storages in
the order of the keys, each preceded by its number of elements. Nothing guards the bytes: damage shows only as values.
"""

from __future__ import annotations

import struct

from nantrap.checkpoints.audit.contents import Contents, Extent, StoredTensor, UnreadableError
from nantrap.checkpoints.audit.pickles import PickleError, read_pickle
from nantrap.checkpoints.audit.readers.torch_tensors import (
    Storage,
    TensorInStorage,
    checked,
    find_tensors,
    storage_of,
)
from nantrap.checkpoints.audit.source import BytesSource, Source, as_file

_MAGIC = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_COUNT = struct.Struct("<q")


def recognise(head: bytes) -> bool:
    """A pickle of torch's magic number, in whatever pickle protocol."""
    return head[:1] == b"\x80" and _MAGIC in head[:24]


def read(source: Source) -> Contents:
    """Where everything lies in the file."""
    try:
        with as_file(source) as file:
            pickles = [read_pickle(file) for _ in range(5)]
            position = file.tell()
    except PickleError as error:
        code = "NT909" if error.truncated else "NT908"
        raise UnreadableError(code, f"the pickles at the begin of the file do not end: {error}") from error
    tree, keys = pickles[3].value, pickles[4].value
    found = list(find_tensors(tree))
    storages = {tensor.storage.key: tensor.storage for tensor in found if tensor.storage}
    if not storages and isinstance(keys, list) and keys:
        bare = storage_of(tree)  # a storage saved by itself, as plain pickles of tensors hold one
        storages = {bare.key: bare}
    return Contents(
        format="lightning" if isinstance(tree, dict) and "pytorch-lightning_version" in tree else "torch-legacy",
        extents=tuple(_extents(source, position, keys, storages, found)),
        names=tuple(item.tensor.name for item in found),
        tree=tree,
        imports=tuple(dict.fromkeys(name for pickle in pickles for name in pickle.names)),
    )


def _extents(
    source: Source,
    position: int,
    keys: object,
    storages: dict[str, Storage],
    found: list[TensorInStorage],
) -> list[Extent]:
    if not isinstance(keys, list):
        raise UnreadableError("NT908", "the list of storages behind the object is no list")
    placed: dict[str, dict[object, StoredTensor]] = {}
    extents = []
    for item in found:
        if item.storage is None:
            raw = BytesSource(item.raw, name=item.tensor.name)
            extents.append(Extent(raw, 0, raw.size, item.tensor.name, (item.tensor,)))
        else:
            t = item.tensor
            placed.setdefault(item.storage.key, {}).setdefault((t.offset, t.dtype, t.shape, t.stride), t)
    for key in map(str, keys):
        if key not in storages:
            raise UnreadableError("NT908", f"storage {key} is written in the file but not described in its pickle")
        head = source.read(position, _COUNT.size)
        if len(head) < _COUNT.size:
            raise UnreadableError("NT909", f"the file ends before storage {key}")
        size = _COUNT.unpack(head)[0] * storages[key].dtype.itemsize
        position += _COUNT.size
        if size < 0 or position + size > source.size:
            raise UnreadableError(
                "NT909", f"storage {key} should hold {size:,} bytes, and {source.size - position:,} are left"
            )
        tensors = tuple(checked(t, size, f"storage {key}") for t in placed.pop(key, {}).values())
        extents.append(Extent(source, position, size, f"storage {key}", tensors))
        position += size
    if placed:
        raise UnreadableError("NT909", f"storage {next(iter(placed))} is described but not in the file")
    return extents
