"""A plain `pickle.dump` of a state: each tensor stands inside it, as a small legacy torch file."""

from __future__ import annotations

from nantrap.checkpoints.audit.contents import Contents, Extent, StoredTensor, UnreadableError
from nantrap.checkpoints.audit.pickles import LOADER, Call, PickleError, read_pickle
from nantrap.checkpoints.audit.readers import torch_legacy
from nantrap.checkpoints.audit.readers.torch_tensors import Storage, checked, find_tensors, storage_of
from nantrap.checkpoints.audit.source import BytesSource, Source, as_file


def recognise(head: bytes) -> bool:
    """A pickle of protocol 2 to 5 begins with its number."""
    return len(head) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5


def read(source: Source) -> Contents:
    """The tensors inside the pickle."""
    try:
        with as_file(source) as file:
            pickle = read_pickle(file)
    except PickleError as error:
        code = "NT909" if error.truncated else "NT908"
        raise UnreadableError(code, f"the pickle does not end: {error}") from error
    storages = {id(call): _storage(call, source) for call in pickle.embedded}
    imports = dict.fromkeys(pickle.names)
    if pickle.all_embedded:
        imports.pop(LOADER, None)  # all it would load was looked into
    imports.update(dict.fromkeys(name for inner in storages.values() for name in inner.imports))
    extents: dict[str, Extent] = {}
    placed: dict[str, list[StoredTensor]] = {}

    def resolve(reference: object) -> Storage:
        inner = storages.get(id(reference))
        if inner is None or len(inner.extents) != 1:
            raise UnreadableError("NT908", "a tensor in the pickle refers to no storage")
        key = str(id(reference))
        extents.setdefault(key, inner.extents[0])
        bare = storage_of(inner.tree)
        return Storage(key, bare.dtype, bare.numel)

    names: list[str] = []
    for found in find_tensors(pickle.value, resolve):
        names.append(found.tensor.name)
        if found.storage is None:
            raw = BytesSource(found.raw, name=source.name)
            extents[f"array {len(names)}"] = Extent(raw, 0, raw.size, found.tensor.name)
            placed[f"array {len(names)}"] = [found.tensor]
        else:
            key = found.storage.key
            placed.setdefault(key, []).append(checked(found.tensor, extents[key].size, "its storage"))
    return Contents(
        format="pickle",
        extents=tuple(
            Extent(e.source, e.offset, e.size, e.label, tuple(placed.get(key, ()))) for key, e in extents.items()
        ),
        names=tuple(names),
        tree=pickle.value,
        imports=tuple(imports),
    )


def _storage(call: Call, source: Source) -> Contents:
    """The small torch file that stands in the pickle for one storage."""
    raw = call.arguments[0] if call.arguments else None
    if not isinstance(raw, bytes):
        raise UnreadableError("NT908", "a storage in the pickle holds no bytes")
    if not torch_legacy.recognise(raw[:64]):
        raise UnreadableError("NT910", f"the pickle wants to load another one through {LOADER}, which is no storage")
    return torch_legacy.read(BytesSource(raw, name=source.name))
