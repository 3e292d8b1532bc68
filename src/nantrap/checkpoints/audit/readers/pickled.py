"""Files that begin with a pickle: what `torch.save` wrote before 1.6, and a plain `pickle.dump`.

The old torch format is five pickles in a row (magic number, protocol, machine, the object, the keys of the storages),
then the storages in the order of the keys, each preceded by its number of elements. The bytes have no checksum: damage
shows only as wrong values. A plain pickle has its storages inside, each as a small file of the old format. `torch.load`
runs the first pickle of either before it knows which it is, so the first pickle's value decides here too.
"""

from __future__ import annotations

import struct
from typing import IO

from nantrap.checkpoints.audit.contents import Contents, Extent, StoredTensor, UnreadableError
from nantrap.checkpoints.audit.files import ByteSource, BytesSource, as_file
from nantrap.checkpoints.audit.known_names import LOADER
from nantrap.checkpoints.audit.pickles import Persistent, Pickle, PickleCall, PickleError, TooLargeError, read_pickle
from nantrap.checkpoints.audit.readers.torch_tensors import (
    Found,
    Storage,
    checked,
    find_tensors,
)
from nantrap.checkpoints.audit.trust import NOTHING, Imports, judge
from nantrap.incident.wording import escaped

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_COUNT = struct.Struct("<q")
_MOST_PICKLES = 1000
_TAR_BLOCK = 512


def recognise(head: bytes) -> bool:
    """A pickle of protocol 2 to 5 begins with its number."""
    return len(head) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5


def read(source: ByteSource) -> Contents:
    """Where everything lies in the file."""
    if _is_tar(source.read(0, _TAR_BLOCK)):
        text = "a tar archive, the torch format of 2016: torch.load would unpickle what is inside, and it was not read"
        raise UnreadableError("NT912", text)
    with as_file(source) as file:
        first = _next(file, source)
        if isinstance(first.value, int) and first.value == _MAGIC:
            pickles = [first, *(_next(file, source) for _ in range(4))]
            return _old_torch(source, pickles, file.tell())
        return _plain(source, first, _others(file, source))


def _next(file: IO[bytes], source: ByteSource) -> Pickle:
    try:
        return read_pickle(file, size=source.size)
    except TooLargeError as error:
        raise UnreadableError("NT912", f"the pickle was not read: {error}") from error
    except PickleError as error:
        code = "NT909" if error.truncated else "NT908"
        raise UnreadableError(code, f"the pickle is not whole: {error}") from error


def _others(file: IO[bytes], source: ByteSource) -> Imports:
    """What further pickles in a plain file would do: several may be dumped one after the other."""
    imports = NOTHING
    for _ in range(_MOST_PICKLES):
        if file.tell() >= source.size:
            break
        try:
            imports += judge(read_pickle(file, size=source.size))
        except PickleError:  # what it does before it fails is done
            return imports + Imports({}, unclear={"(the bytes after the first pickle)": "they are no whole pickle"})
    return imports


def _is_tar(block: bytes) -> bool:
    """Whether `torch.load` would take the file for a tar archive: by the checksum in its first block."""
    if len(block) < _TAR_BLOCK:
        return False
    field = block[148:156].strip(b" \0")
    if not field or any(digit not in b"01234567" for digit in field):
        return False
    unsigned = 256 + sum(block[:148]) + sum(block[156:])
    signed = unsigned - 256 * sum(byte > 127 for byte in block[:148] + block[156:])
    return int(field, 8) in (unsigned, signed)


# ---- the old format of torch


def _old_torch(source: ByteSource, pickles: list[Pickle], position: int) -> Contents:
    """The contents of a file in torch's format before 1.6: five pickles, then the storages."""
    tree, keys = pickles[3].value, pickles[4].value
    if pickles[1].value != _PROTOCOL:
        raise UnreadableError("NT908", "the version of the format is not the one that torch writes")
    found = find_tensors(tree)
    imports = NOTHING
    for pickle in pickles:
        imports += judge(pickle)
    return Contents(
        format="lightning" if isinstance(tree, dict) and "pytorch-lightning_version" in tree else "torch-legacy",
        extents=tuple(_extents(source, position, keys, found)),
        names=tuple(item.tensor.name for item in found.tensors),
        tree=tree,
        imports=imports,
        problems=tuple(found.problems),
        numbers=tuple(found.numbers),
    )


def _extents(source: ByteSource, position: int, keys: object, found: Found) -> list[Extent]:
    """Where the storages of an old file lie, each with its tensors; raises where file and pickle disagree."""
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise UnreadableError("NT908", "the list of storages after the object is not a list of names")
    storages = {item.storage.key: item.storage for item in found.tensors if item.storage}
    placed: dict[str, dict[object, StoredTensor]] = {}
    extents = []
    for item in found.tensors:
        if item.storage is None:
            raw = BytesSource(item.raw, name=item.tensor.name)
            extents.append(Extent(raw, 0, raw.size, item.tensor.name, (item.tensor,)))
        else:
            t = item.tensor
            placed.setdefault(item.storage.key, {}).setdefault((t.offset, t.dtype.name, t.shape, t.stride), t)
    for key in map(str, keys):
        label = f"storage {escaped(key)}"
        if key not in storages:
            raise UnreadableError("NT908", f"{label} is written in the file but not described in its pickle")
        head = source.read(position, _COUNT.size)
        if len(head) < _COUNT.size:
            raise UnreadableError("NT909", f"the file ends before {label}")
        size = _COUNT.unpack(head)[0] * storages[key].dtype.itemsize
        position += _COUNT.size
        if size < 0 or position + size > source.size:
            text = f"{label} should hold {size:,} bytes, and {source.size - position:,} are left"
            raise UnreadableError("NT909", text)
        tensors = tuple(checked(t, size, label) for t in placed.pop(key, {}).values())
        extents.append(Extent(source, position, size, label, tensors))
        position += size
    if placed:
        raise UnreadableError("NT909", f"storage {escaped(next(iter(placed)))} is described but not in the file")
    return extents


# ---- a plain pickle


def _plain(source: ByteSource, pickle: Pickle, others: Imports) -> Contents:
    """The contents of a plain pickle: arrays, and tensors whose storages are pickled inside it."""
    loads = [call for call in pickle.calls if call.is_call_of(LOADER)]
    storages = {id(call): _storage(call, source) for call in loads}
    imports = judge(pickle, loads=lambda call: id(call) in storages, compared=True) + others
    for inner in storages.values():
        imports += inner.imports
    extents: dict[str, Extent] = {}
    placed: dict[str, list[StoredTensor]] = {}

    def resolve(reference: object) -> Storage:
        inner = storages.get(id(reference))
        if inner is None or len(inner.extents) != 1 or not inner.extents[0].tensors:
            raise UnreadableError("NT908", "a tensor in the pickle refers to no storage")
        key = str(id(reference))
        extents.setdefault(key, inner.extents[0])
        bare = inner.extents[0].tensors[0]
        return Storage(key, bare.dtype, bare.numel)

    found = find_tensors(pickle.value, resolve)
    for number, item in enumerate(found.tensors):
        if item.storage is None:
            raw = BytesSource(item.raw, name=source.name)
            extents[f"array {number}"] = Extent(raw, 0, raw.size, item.tensor.name)
            placed[f"array {number}"] = [item.tensor]
        else:
            key = item.storage.key
            placed.setdefault(key, []).append(checked(item.tensor, extents[key].size, "its storage"))
    return Contents(
        format="pickle",
        extents=tuple(
            Extent(e.source, e.offset, e.size, e.label, tuple(placed.get(key, ()))) for key, e in extents.items()
        ),
        names=tuple(item.tensor.name for item in found.tensors),
        tree=pickle.value,
        imports=imports,
        problems=tuple(found.problems),
        numbers=tuple(found.numbers),
    )


def _storage(call: PickleCall, source: ByteSource) -> Contents:
    """The small torch file that represents one storage in the pickle."""
    raw = call.arguments[0] if call.arguments else None
    if not isinstance(raw, bytes):
        raise UnreadableError("NT908", "a storage in the pickle holds no bytes")
    inner = BytesSource(raw, name=source.name)
    with as_file(inner) as file:
        pickles = []
        if not _is_tar(raw[:_TAR_BLOCK]) and raw[:1] == b"\x80":
            pickles = [_next(file, inner)]
        if not pickles or pickles[0].value != _MAGIC:
            text = f"the pickle wants to load another one through {LOADER}, which is not a storage"
            raise UnreadableError("NT910", text)
        pickles += [_next(file, inner) for _ in range(4)]
        if not isinstance(pickles[3].value, Persistent):  # only a storage is allowed here
            imports = NOTHING
            for pickle in pickles:
                imports += judge(pickle)
            unknown = Imports({LOADER: "loads something that is not a storage"})
            return Contents("pickle", imports=imports if imports.run else unknown)
        return _old_torch(inner, pickles, file.tell())
