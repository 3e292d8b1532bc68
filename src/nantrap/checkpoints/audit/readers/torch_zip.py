"""The zip archive `torch.save` writes since 1.6, Lightning's `.ckpt` (the same), and TorchScript archives.

`NAME/data.pkl` holds the object, `NAME/data/KEY` one storage each, never compressed, so that a tensor's bytes can be
read straight from the file. The zip's directory keeps a CRC-32 of every record, which `torch.load` does not check.
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import NamedTuple

from nantrap.checkpoints.audit.contents import Contents, Extent, StoredTensor, UnreadableError
from nantrap.checkpoints.audit.files import ByteSource, BytesSource
from nantrap.checkpoints.audit.pickles import PickleError, TooLargeError, read_pickle
from nantrap.checkpoints.audit.readers.torch_tensors import TensorInStorage, checked, find_tensors
from nantrap.checkpoints.audit.trust import Imports, judge
from nantrap.incident.wording import escaped

# ---- The directory of a zip archive, read strictly, so that it has only one meaning.
#
# Readers of zip files differ in which of two directories, or of two records with the same name, they take, and torch
# ignores case. Whatever could be read in two ways is refused here, so that what was judged is what torch would load.

_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_MOST_ENTRIES = 2_000_000
_MOST_DIRECTORY = 256 << 20


class Record(NamedTuple):
    """One file in the archive: where its bytes lie."""

    name: str
    offset: int
    size: int
    crc32: int
    is_compressed: bool


def read_directory(source: ByteSource) -> list[Record]:
    """All records, in the order of the directory."""
    begin, size, count = _directory(source)
    if count > _MOST_ENTRIES or size > _MOST_DIRECTORY:
        raise UnreadableError("NT912", f"the archive has {count:,} records; more than {_MOST_ENTRIES:,} are not read")
    data = source.read(begin, size)
    records, position = [], 0
    for _ in range(count):
        record, position = _entry(source, data, position)
        records.append(record)
    if position != len(data):
        raise _ambiguous("its directory is longer than its records")
    _refuse_twins(records)
    _refuse_overlap(records, begin)
    return records


def _ambiguous(what: str) -> UnreadableError:
    return UnreadableError("NT910", f"the zip archive can be read in two ways: {what}; torch.save did not write it so")


def _directory(source: ByteSource) -> tuple[int, int, int]:
    """Begin, size and number of entries, by the one end record at the end of the file."""
    at = source.size - _END.size
    tail = source.read(at, _END.size) if at >= 0 else b""
    if len(tail) < _END.size or not tail.startswith(b"PK\x05\x06"):
        window = source.read(max(0, source.size - 70_000), 70_000)
        last = window.rfind(b"PK\x05\x06")
        if 0 <= last <= len(window) - _END.size:
            raise _ambiguous("something follows after its directory")
        raise UnreadableError("NT909", "the zip archive has no directory at its end: the file is cut short")
    _, disk, start_disk, here, count, size, begin, comment = _END.unpack(tail)
    if disk or start_disk or here != count or comment:
        raise _ambiguous("torch.save does not write such an end record")
    end = at
    locator = source.read(at - _LOCATOR.size, _LOCATOR.size) if at >= _LOCATOR.size else b""
    if locator.startswith(b"PK\x06\x07"):
        end = at - _LOCATOR.size - _END_64.size
        _, _, place, _ = _LOCATOR.unpack(locator)
        wide = source.read(max(end, 0), _END_64.size)
        if place != end or not wide.startswith(b"PK\x06\x06"):
            raise _ambiguous("its two end records are not next to each other")
        _, _, _, _, _, _, here64, count64, size64, begin64 = _END_64.unpack(wide)
        for narrow, full, most in ((count, count64, 0xFFFF), (size, size64, 0xFFFFFFFF), (begin, begin64, 0xFFFFFFFF)):
            if narrow not in (full, most):
                raise _ambiguous("its two end records disagree")
        if here64 != count64:
            raise _ambiguous("its two end records disagree")
        count, size, begin = count64, size64, begin64
    if begin + size != end:
        raise _ambiguous("its directory does not end where the end record begins")
    return begin, size, count


def _entry(source: ByteSource, data: bytes, position: int) -> tuple[Record, int]:
    """One record of the directory and where the next one begins; raises if its local header says something else."""
    if position + _ENTRY.size > len(data):
        raise UnreadableError("NT908", "the zip archive's directory ends in the middle of a record")
    fields = _ENTRY.unpack_from(data, position)
    signature, _, _, flags, method, _, _, crc, packed, size, name_length, extra_length, comment_length = fields[:13]
    offset = fields[16]
    if signature != b"PK\x01\x02":
        raise UnreadableError("NT908", "the zip archive's directory is damaged")
    position += _ENTRY.size
    name = data[position : position + name_length].decode("utf-8", "surrogateescape")
    extra = data[position + name_length : position + name_length + extra_length]
    packed, size, offset = _wide(extra, packed, size, offset)
    label = escaped(name)
    if not name.isprintable():
        raise _ambiguous(f"record {label} has a control character in its name")
    header = source.read(offset, _LOCAL.size + name_length)
    if len(header) < _LOCAL.size or not header.startswith(b"PK\x03\x04"):
        raise UnreadableError("NT908", f"record {label} does not begin where the directory says")
    local = _LOCAL.unpack_from(header)
    if local[9] != name_length or header[_LOCAL.size :] != data[position : position + name_length]:
        raise _ambiguous(f"record {label} has another name before its bytes")
    if local[3] != method:
        raise _ambiguous(f"record {label} is packed in another way before its bytes")
    if flags & 1:
        raise UnreadableError("NT912", f"record {label} is encrypted, and was not read")
    begin = offset + _LOCAL.size + local[9] + local[10]
    if begin + packed > source.size:
        raise UnreadableError("NT909", f"record {label} ends after the end of the file")
    if method == 0 and packed != size:
        raise UnreadableError("NT908", f"record {label} has two sizes")
    record = Record(name, begin, packed, crc, method != 0)
    return record, position + name_length + extra_length + comment_length


def _wide(extra: bytes, packed: int, size: int, offset: int) -> tuple[int, int, int]:
    """The 64-bit sizes and offset, where the 32-bit fields are too small."""
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, position)
        if kind == 1:
            values = list(struct.unpack_from(f"<{length // 8}Q", extra, position + 4))
            if size == 0xFFFFFFFF:
                size = values.pop(0)
            if packed == 0xFFFFFFFF:
                packed = values.pop(0)
            if offset == 0xFFFFFFFF:
                offset = values.pop(0)
            break
        position += 4 + length
    return packed, size, offset


def _refuse_twins(records: list[Record]) -> None:
    """Two records whose names differ in case alone: torch takes whichever comes first."""
    seen: dict[str, str] = {}
    for record in records:
        key = record.name.lower().replace("\\", "/")
        if key in seen:
            raise _ambiguous(f"it has both {escaped(seen[key])} and {escaped(record.name)}")
        seen[key] = record.name


def _refuse_overlap(records: list[Record], directory: int) -> None:
    """Records that share bytes, or reach into the directory: a small file could pretend to hold terabytes."""
    end, last = 0, ""
    for record in sorted(records, key=lambda record: (record.offset, record.size)):
        if record.offset < end:
            raise _ambiguous(f"records {escaped(last)} and {escaped(record.name)} share bytes")
        end, last = record.offset + record.size, record.name
    if end > directory:
        raise _ambiguous(f"record {escaped(last)} reaches into the directory")


_MAX_PICKLE = 256 << 20
_MAX_CODE = 64 << 20
_SCRIPT_REACHES_OUT = re.compile(
    rb"\b(from_file|_load_for_lite_interpreter|load_library|torch\.save|torch\.load|rpc_\w+|ops\.(?:c10d|distributed)\w*)\b"
)
_SCRIPT_OPERATION = re.compile(rb"\bops\.(\w+)\.(\w+)")
_SCRIPT_NAMESPACES = frozenset((b"prim", b"prims", b"aten", b"quantized", b"torchvision", b"torchaudio"))


def recognise(head: bytes) -> bool:
    """A zip archive begins with `PK`."""
    return head.startswith(b"PK\x03\x04")


def read(source: ByteSource) -> Contents:
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


def _records(source: ByteSource) -> tuple[dict[str, Extent], str]:
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


def _checked_pickle(source: ByteSource, record: Extent) -> bytes:
    """The pickle's bytes; their CRC is always checked, since everything else is read by what they say."""
    if record.size > _MAX_PICKLE:
        text = f"{escaped(record.label)} holds {record.size:,} bytes; more than {_MAX_PICKLE >> 20} MiB are not read"
        raise UnreadableError("NT912", text)
    data = source.read(record.offset, record.size)
    if zlib.crc32(data) != record.crc32:
        text = f"{escaped(record.label)}, which describes all tensors, does not match its CRC-32"
        raise UnreadableError("NT908", text)
    return data


def _script(source: ByteSource, records: dict[str, Extent]) -> Imports:
    """What the TorchScript code in the archive would do: `torch.load` passes it to `torch.jit.load`, no pickle is run.

    Only a few operations of the language reach files; `__setstate__` runs while it loads.
    """
    run: dict[str, str] = {}
    unclear: dict[str, str] = {}
    for name, record in records.items():
        if name.endswith(".py") and "/code/" in name:
            code = source.read(record.offset, min(record.size, _MAX_CODE))
            for match in _SCRIPT_REACHES_OUT.finditer(code):
                run[f"TorchScript {match[1].decode()}"] = "reaches files"
            for match in _SCRIPT_OPERATION.finditer(code):
                if match[1] not in _SCRIPT_NAMESPACES:
                    unclear[f"TorchScript {match[0].decode()}"] = "is an operation of another library"
            if record.size > _MAX_CODE:
                unclear[f"TorchScript {escaped(name)}"] = "is longer than what is read"
    return Imports(run, unclear=unclear)


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
