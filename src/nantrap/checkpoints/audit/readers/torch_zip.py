"""The zip archive `torch.save` writes since 1.6, Lightning's `.ckpt` (the same), and TorchScript archives.

`NAME/data.pkl` holds the object, `NAME/data/KEY` one storage each, never compressed, so that a tensor's bytes can be
read straight from the file. The zip's directory keeps a CRC-32 of every record, which `torch.load` does not check.
"""

from __future__ import annotations

import re
import zlib

from nantrap.checkpoints.audit.contents import Contents, Extent, StoredTensor, UnreadableError
from nantrap.checkpoints.audit.pickle_objects import PickleError, TooLargeError
from nantrap.checkpoints.audit.pickles import read_pickle
from nantrap.checkpoints.audit.readers.torch_tensors import TensorInStorage, checked, find_tensors
from nantrap.checkpoints.audit.readers.zip_directory import read_directory
from nantrap.checkpoints.audit.source import BytesSource, Source
from nantrap.checkpoints.audit.trust import NOTHING, Imports, judge
from nantrap.incident.wording import escaped

_MAX_PICKLE = 256 << 20
_MAX_CODE = 64 << 20
_SCRIPT_REACHES_OUT = re.compile(rb"\b(from_file|_load_for_lite_interpreter|load_library|torch\.save|torch\.load)\b")


def recognise(head: bytes) -> bool:
    """A zip archive begins with `PK`."""
    return head.startswith(b"PK\x03\x04")


def read(source: Source) -> Contents:
    """Where everything lies in the archive."""
    records, prefix = _records(source)
    if f"{prefix}data.pkl" not in records:
        raise UnreadableError("NT911", "a zip archive without data.pkl: torch.save did not write it")
    byteorder = records.get(f"{prefix}byteorder")
    if byteorder and source.read(byteorder.offset, min(byteorder.size, 16)) == b"big":
        raise UnreadableError("NT912", "written on a big-endian machine, which this reader does not understand")
    pickled = _checked_pickle(source, records[f"{prefix}data.pkl"])
    try:
        pickle = read_pickle(pickled)
    except TooLargeError as error:
        raise UnreadableError("NT912", f"data.pkl was not read: {error}") from error
    except PickleError as error:
        raise UnreadableError("NT908", f"data.pkl is damaged: {error}") from error
    is_script = f"{prefix}constants.pkl" in records
    placed: dict[str, list[StoredTensor]] = {name: [] for name in records}
    extra: list[Extent] = []
    found = find_tensors(pickle.value)
    for item in found.tensors:
        if item.storage is None:
            extra.append(_embedded(item))
            continue
        record = f"{prefix}data/{item.storage.key}"
        if record not in records:
            name = escaped(item.tensor.name)
            text = f"tensor {name} lies in record {escaped(record)}, which the archive does not have"
            raise UnreadableError("NT908", text)
        placed[record].append(checked(item.tensor, records[record].size, f"record {record}"))
    extents = [
        Extent(e.source, e.offset, e.size, e.label, _distinct(placed[name]), e.crc32) for name, e in records.items()
    ]
    return Contents(
        format=_format(pickle.value, is_script=is_script),
        extents=(*sorted(extents, key=lambda extent: extent.offset), *extra),
        names=tuple(item.tensor.name for item in found.tensors),
        tree=pickle.value,
        imports=_script(source, records) if is_script else judge(pickle),
        problems=tuple(found.problems),
        numbers=tuple(found.numbers),
    )


def _records(source: Source) -> tuple[dict[str, Extent], str]:
    """The records by name, each with the place of its bytes, and the folder they are all in.

    torch takes the first record's folder for the archive's name, and looks for `data.pkl` there.
    """
    listed = read_directory(source)
    records = {}
    prefix = f"{listed[0].name.partition('/')[0]}/" if listed and "/" in listed[0].name else ""
    for record in listed:
        if record.is_compressed:
            text = f"record {escaped(record.name)} is compressed, and was not read: torch.save did not write it"
            raise UnreadableError("NT912", text)
        if not record.name.startswith(prefix):
            text = f"record {escaped(record.name)} is outside of {escaped(prefix)}: torch.save did not write it"
            raise UnreadableError("NT910", text)
        records[record.name] = Extent(source, record.offset, record.size, record.name, crc32=record.crc32)
    return records, prefix


def _checked_pickle(source: Source, record: Extent) -> bytes:
    """The pickle's bytes; their CRC is always checked, since everything else is read by what they say."""
    if record.size > _MAX_PICKLE:
        text = f"{escaped(record.label)} holds {record.size:,} bytes; more than {_MAX_PICKLE >> 20} MiB are not read"
        raise UnreadableError("NT912", text)
    data = source.read(record.offset, record.size)
    if zlib.crc32(data) != record.crc32:
        text = f"{escaped(record.label)}, which describes all tensors, does not match its CRC-32"
        raise UnreadableError("NT908", text)
    return data


def _script(source: Source, records: dict[str, Extent]) -> Imports:
    """What the TorchScript code in the archive would do: `torch.load` passes it to `torch.jit.load`, no pickle is run.

    Only a few operations of the language reach files; `__setstate__` runs while it loads.
    """
    run: dict[str, str] = {}
    for name, record in records.items():
        if name.endswith(".py") and "/code/" in name:
            code = source.read(record.offset, min(record.size, _MAX_CODE))
            for match in _SCRIPT_REACHES_OUT.finditer(code):
                run[f"TorchScript {match[1].decode()}"] = "reaches files"
    return Imports(run) if run else NOTHING


def _embedded(found: TensorInStorage) -> Extent:
    name = found.tensor.name
    source = BytesSource(found.raw, name=name)
    return Extent(source, 0, source.size, name, (found.tensor,))


def _distinct(tensors: list[StoredTensor]) -> tuple[StoredTensor, ...]:
    """Tied weights are the same bytes under several names: the first name is used for all."""
    same = {(t.offset, t.dtype.name, t.shape, t.stride): t for t in reversed(tensors)}
    return tuple(reversed(same.values()))


def _format(tree: object, *, is_script: bool) -> str:
    if is_script:
        return "torchscript"
    if isinstance(tree, dict) and "pytorch-lightning_version" in tree:
        return "lightning"
    return "torch"
