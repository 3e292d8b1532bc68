"""One checkpoint in one file: safetensors, with the rest of the state as JSON in its header. No pickle anywhere.

Every safetensors library opens it and finds the tensors under `model.…`, `optimizer.…`, `ema.…`. It is written here
rather than by the library for three reasons: the bytes are hashed while they are written, no second copy of them is
made, and a full disk is an ordinary `OSError`. It is read with `read`, not mapped: a mapped tensor would break when its
file is removed.

    {"__metadata__": {"nantrap.checkpoint": "1", "structure": "…JSON…", "crc32": "…"}, "model.weight": {…}, …}
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import torch
from torch import Tensor

from nantrap.checkpoints.audit.contents import Contents, Extent, UnreadableError
from nantrap.checkpoints.audit.files import ByteSource, LocalSource
from nantrap.checkpoints.audit.readers import safetensors
from nantrap.checkpoints.audit.readers.nantrap_file import line_of
from nantrap.errors import FormatError, UsageError
from nantrap.record.durable import written_beside
from nantrap.record.structure import Packer, unpack

MARK: Final = "nantrap.checkpoint"
VERSION: Final = "1"

_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.int64: "I64", torch.int32: "I32",
    torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip

_DAMAGE = (
    UnreadableError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, MemoryError,
    struct.error,
)  # fmt: skip
"""What reading a damaged or forged header can raise."""
_PIECE_BYTES: Final = 1 << 20


class NotOursError(FormatError):
    """The file belongs to another program or cannot be reached: not known to be damaged, so it is not moved."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A state ready to be written: independent of the live tensors once `copied`."""

    sections: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def copied(self) -> Packed:
        """A copy with its own tensors, on the CPU: training may continue while it is written."""
        return Packed(self.sections, {name: _own(tensor) for name, tensor in self.tensors.items()})


@dataclass(frozen=True, slots=True)
class Written:
    """What the manifest stores about a file."""

    bytes: int
    sha256: str


def pack_state(state: Mapping[str, Any]) -> Packed:
    """Describe a state. Raises `UsageError`, which names the place, for what cannot be stored."""
    packer = Packer()
    sections = {name: packer.pack(value, name) for name, value in state.items()}
    for name, tensor in packer.tensors.items():
        if tensor.dtype not in _DTYPES:
            raise UsageError(f"{name} is {tensor.dtype}, which safetensors does not keep; convert it before saving")
    return Packed(sections, packer.tensors)


def write_file(target: Path, packed: Packed, about: Mapping[str, Any], *, writer: str = "") -> Written:
    """Write under a temporary name next to `target`, flushed. The caller renames it. `about` is what the file stores
    about itself."""
    with written_beside(target, writer=writer) as file:
        return _write(file, json.dumps({"about": dict(about), "state": packed.sections}), packed.tensors)


def read_file(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a file stores about itself, and the state, with its checksum verified. `FormatError` if it is damaged."""
    tensors: dict[str, Tensor] = {}

    def whole(extent: Extent) -> Iterator[memoryview]:
        stored = extent.tensors[0]
        dtype = getattr(torch, stored.dtype.name)
        tensors[extent.label] = torch.empty(stored.shape, dtype=dtype, device="cpu")
        yield _bytes_of(tensors[extent.label])

    described = _verified(path, whole)
    return described["about"], {name: unpack(value, tensors) for name, value in described["state"].items()}


def check_file(path: Path) -> dict[str, Any]:
    """What a file stores about itself, with its checksum verified in little memory. `FormatError` if it is damaged."""
    buffer = memoryview(bytearray(_PIECE_BYTES))

    def pieces(extent: Extent) -> Iterator[memoryview]:
        for begin in range(0, extent.size, _PIECE_BYTES):
            yield buffer[: min(_PIECE_BYTES, extent.size - begin)]

    about: dict[str, Any] = _verified(path, pieces)["about"]
    return about


def _verified(path: Path, memory: Callable[[Extent], Iterable[memoryview]]) -> dict[str, Any]:
    """The description in the header, once all bytes were read into the memory that is given for each tensor."""
    with LocalSource(str(path)) as source:
        contents, structure, expected = open_contents(source)
        crc = zlib.crc32(structure.encode())
        for extent in contents.extents:
            if not extent.tensors:
                raise FormatError(f"{path}: tensor {extent.label} has a dtype that is not written here")
            stored, offset = extent.tensors[0], extent.offset
            crc = zlib.crc32(line_of(extent.label, stored.dtype.name, stored.shape), crc)
            for view in memory(extent):
                if source.read_into(offset, view) != len(view):
                    raise FormatError(f"{path}: tensor {extent.label} is cut short")
                crc = zlib.crc32(view, crc)
                offset += len(view)
            if offset != extent.offset + extent.size:
                raise FormatError(f"{path}: tensor {extent.label} has {extent.size} bytes, which its shape does not")
    if f"{crc:08x}" != expected:
        raise FormatError(f"{path}: its bytes do not match their checksum; the file is damaged")
    described: dict[str, Any] = json.loads(structure)
    return described


def open_contents(source: ByteSource) -> tuple[Contents, str, str]:
    """Where the tensors lie, the structure as JSON text, and the checksum. `FormatError` if it is not such a file."""
    try:
        contents = safetensors.read(source)
    except _DAMAGE as error:
        raise FormatError(f"{source.name}: {error}") from error
    if contents.problems:
        raise FormatError(f"{source.name}: {contents.problems[0].message}")
    metadata = contents.tree["metadata"] if isinstance(contents.tree, dict) else {}
    if metadata.get(MARK) != VERSION:
        raise NotOursError(
            f"{source.name}: not written by nantrap (its header has {MARK} {metadata.get(MARK)!r}, expected "
            f"{VERSION!r}); load it with the library that wrote it"
        )
    return contents, str(metadata.get("structure")), str(metadata.get("crc32"))


def _write(file: BinaryIO, structure: str, tensors: Mapping[str, Tensor]) -> Written:
    """Write header and tensors in the safetensors format; gives size and hash of what was written."""
    if sys.byteorder != "little":
        raise UsageError("safetensors are little-endian, and this machine is not")
    # the widest dtypes first keep every tensor aligned, as the library does it
    names = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    crc = zlib.crc32(structure.encode())
    entries: dict[str, Any] = {}
    end = 0
    for name in names:
        tensor = tensors[name]
        begin, end = end, end + tensor.numel() * tensor.itemsize
        entries[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        crc = zlib.crc32(line_of(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)), crc)
        crc = zlib.crc32(_bytes_of(_own(tensor, copy=False)), crc)
    metadata = {MARK: VERSION, "structure": structure, "crc32": f"{crc:08x}"}
    text = json.dumps({"__metadata__": metadata, **entries}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest, size = hashlib.sha256(), 0
    for chunk in (struct.pack("<Q", len(text)), text):
        file.write(chunk)
        digest.update(chunk)
        size += len(chunk)
    for name in names:
        view = _bytes_of(_own(tensors[name], copy=False))
        file.write(view)
        digest.update(view)
        size += len(view)
    return Written(size, digest.hexdigest())


def _own(tensor: Tensor, *, copy: bool = True) -> Tensor:
    """The tensor on the CPU, in order; a copy if asked for."""
    moved = tensor.detach().to("cpu", copy=copy)
    return moved.contiguous()


def _bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor."""
    flat = tensor.reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8, device="cpu")
    data: Any = flat.numpy()
    return memoryview(data)
