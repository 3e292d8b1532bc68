"""The zip archive `torch.save` writes since 1.6, Lightning's `.ckpt` (the same), and TorchScript archives.

`NAME/data.pkl` holds the object, `NAME/data/KEY` one storage each, never compressed, so that a tensor's bytes can be
read straight from the file. The zip's directory keeps a CRC-32 of every record, which `torch.load` does not check.
"""

from __future__ import annotations

import struct
import zipfile
import zlib

from nantrap.checkpoints.audit.contents import Contents, Extent, StoredTensor, UnreadableError
from nantrap.checkpoints.audit.pickles import PickleError, read_pickle
from nantrap.checkpoints.audit.readers.torch_tensors import TensorInStorage, checked, find_tensors
from nantrap.checkpoints.audit.source import BytesSource, Source, as_file

_LOCAL_HEADER = struct.Struct("<4s22xHH")
_MAX_PICKLE = 1 << 30


def recognise(head: bytes) -> bool:
    """A zip archive begins with `PK`."""
    return head.startswith(b"PK\x03\x04")


def read(source: Source) -> Contents:
    """Where everything lies in the archive."""
    records = _records(source)
    names = [name for name in records if name.rpartition("/")[2] == "data.pkl" and name.count("/") <= 1]
    if not names:
        raise UnreadableError("NT911", "a zip archive without data.pkl: torch.save did not write it")
    prefix = names[0].removesuffix("data.pkl")
    byteorder = records.get(f"{prefix}byteorder")
    if byteorder and source.read(byteorder.offset, byteorder.size) == b"big":
        raise UnreadableError("NT912", "written on a big-endian machine, which this reader does not understand")
    pickled = _checked_pickle(source, records[names[0]])
    try:
        pickle = read_pickle(pickled)
    except PickleError as error:
        raise UnreadableError("NT908", f"{names[0]} is damaged: {error}") from error
    placed: dict[str, list[StoredTensor]] = {name: [] for name in records}
    extra: list[Extent] = []
    tensor_names: list[str] = []
    for found in find_tensors(pickle.value):
        tensor_names.append(found.tensor.name)
        if found.storage is None:
            extra.append(_embedded(found))
            continue
        record = f"{prefix}data/{found.storage.key}"
        if record not in records:
            raise UnreadableError(
                "NT908", f"tensor {found.tensor.name} lies in record {record}, which the archive does not have"
            )
        placed[record].append(checked(found.tensor, records[record].size, f"record {record}"))
    extents = [
        Extent(e.source, e.offset, e.size, e.label, _distinct(placed[name]), e.crc32) for name, e in records.items()
    ]
    return Contents(
        format=_format(pickle.value, is_script=f"{prefix}constants.pkl" in records),
        extents=(*sorted(extents, key=lambda extent: extent.offset), *extra),
        names=tuple(tensor_names),
        tree=pickle.value,
        imports=pickle.names,
    )


def _records(source: Source) -> dict[str, Extent]:
    """The records by name, each with the place of its bytes."""
    try:
        with as_file(source) as file, zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
    except zipfile.BadZipFile as error:
        raise UnreadableError(
            "NT909", f"the zip archive has no readable directory at its end ({error}): the file is cut short"
        ) from error
    records = {}
    for info in infos:
        header = source.read(info.header_offset, _LOCAL_HEADER.size)
        if len(header) < _LOCAL_HEADER.size or not header.startswith(b"PK\x03\x04"):
            raise UnreadableError("NT908", f"record {info.filename} does not begin where the directory says")
        _, name_length, extra_length = _LOCAL_HEADER.unpack(header)
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise UnreadableError("NT911", f"record {info.filename} is compressed: torch.save did not write it")
        offset = info.header_offset + _LOCAL_HEADER.size + name_length + extra_length
        if offset + info.file_size > source.size:
            raise UnreadableError("NT909", f"record {info.filename} ends behind the end of the file")
        records[info.filename] = Extent(source, offset, info.file_size, info.filename, crc32=info.CRC)
    return records


def _checked_pickle(source: Source, record: Extent) -> bytes:
    """The pickle's bytes; their CRC is always checked, since everything else is read by what they say."""
    if record.size > _MAX_PICKLE:
        raise UnreadableError("NT912", f"{record.label} holds {record.size:,} bytes; more than 1 GiB is not read")
    data = source.read(record.offset, record.size)
    if zlib.crc32(data) != record.crc32:
        raise UnreadableError("NT908", f"{record.label}, which describes all tensors, does not match its CRC-32")
    return data


def _embedded(found: TensorInStorage) -> Extent:
    name = found.tensor.name
    source = BytesSource(found.raw, name=name)
    return Extent(source, 0, source.size, name, (found.tensor,))


def _distinct(tensors: list[StoredTensor]) -> tuple[StoredTensor, ...]:
    """Tied weights are the same bytes under several names: the first name stands for all."""
    same = {(t.offset, t.dtype, t.shape, t.stride): t for t in reversed(tensors)}
    return tuple(reversed(same.values()))


def _format(tree: object, *, is_script: bool) -> str:
    if is_script:
        return "torchscript"
    if isinstance(tree, dict) and "pytorch-lightning_version" in tree:
        return "lightning"
    return "torch"
