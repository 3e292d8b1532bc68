# ruff: noqa: E501 - one attack a line
"""Files that run code when torch loads them: each makes a folder named `marker` where it is loaded, and nothing else.

`attacks()` gives them by name. All are real: a test loads each one in a child process and finds the marker.
"""

from __future__ import annotations

import io
import pickle
import struct
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import torch

MAGIC = 0x1950A86A20F9469CFC6C


REFUSED_BY_TORCH = ("a torch operation by its registry", "data.pkl in capitals behind", "another folder first")


def text(value: str) -> bytes:
    """A string on the stack."""
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def name(module: str, qualname: str) -> bytes:
    """A global on the stack, by STACK_GLOBAL."""
    return text(module) + text(qualname) + b"\x93"


MARK = text("marker") + b"\x85"  # ("marker",)
RUN = name("posix", "mkdir") + MARK + b"R"


def proto(body: bytes, number: int = 4) -> bytes:
    """A whole pickle."""
    return b"\x80" + bytes([number]) + body + b"."


def _pickles() -> dict[str, bytes]:
    return {
        "reduce": proto(RUN),
        "reduce protocol 2": proto(b"cposix\nmkdir\n" + MARK + b"R", 2),
        "os": proto(name("os", "mkdir") + MARK + b"R"),
        "walks through random": proto(name("random", "_os.mkdir") + MARK + b"R"),
        "walks through torch": proto(name("torch.serialization", "os.mkdir") + MARK + b"R"),
        "walks through dcp": proto(name("torch.distributed.checkpoint.filesystem", "os.mkdir") + MARK + b"R"),
        "walks through a listed module": proto(name("collections", "_sys.modules.__class__") + b"0" + RUN),
        "inst": proto(b"(" + text("marker") + b"iposix\nmkdir\n", 2),
        "obj": proto(b"(cposix\nmkdir\n" + text("marker") + b"o", 2),
        "eval": proto(name("builtins", "eval") + text("__import__('os').mkdir('marker')") + b"\x85R"),
        "exec of Python 2": proto(b"c__builtin__\neval\n" + text("__import__('os').mkdir('marker')") + b"\x85R", 2),
        "commands of Python 2": proto(b"ccommands\ngetoutput\n" + text("mkdir marker") + b"\x85R", 2),
        "popped": proto(RUN + b"0N"),
        "in the memo": proto(RUN + b"\x940N"),
        "behind a get": proto(name("posix", "mkdir") + b"\x940" + b"h\x00" + MARK + b"R"),
        "getattr": proto(name("builtins", "getattr") + name("torch.serialization", "os") + text("mkdir") + b"\x86R" + MARK + b"R"),
        "partial": proto(name("functools", "partial") + name("posix", "mkdir") + text("marker") + b"\x86R)R"),
        "map": proto(name("builtins", "list") + name("builtins", "map") + name("posix", "mkdir") + b"]" + text("marker") + b"a\x86R\x85R"),
        "methodcaller": proto(
            name("operator", "methodcaller") + text("mkdir") + text("marker") + b"\x86R" + name("torch.serialization", "os") + b"\x85R"
        ),
        "planted setstate": proto(
            name("collections", "OrderedDict") + b")R}" + text("__setstate__") + name("posix", "mkdir") + b"sb" + text("marker") + b"b"
        ),
        "planted append": proto(
            name("argparse", "Namespace") + b")\x81}" + text("append") + name("posix", "mkdir") + b"sb" + text("marker") + b"a"
        ),
        "rebuild from type": proto(
            name("torch._tensor", "_rebuild_from_type_v2") + b"(" + name("posix", "mkdir") + name("torch", "Tensor") + MARK + b"NtR"
        ),
        "reconstructor": proto(
            b"ccopy_reg\n_reconstructor\n(cpathlib\nPosixPath\nc__builtin__\nobject\nNtR0" + b"cposix\nmkdir\n" + MARK + b"R", 2
        ),
        "functools reduce": proto(name("functools", "reduce") + name("posix", "mkdir") + b"](" + text("marker") + b"K\x00e\x86R"),
        "a class made by type": proto(
            name("builtins", "type") + text("T") + b")}" + text("__setstate__") + name("posix", "mkdir") + b"s\x87R)\x81" + text("marker") + b"b"
        ),
        "opens a file": proto(name("io", "open") + text("marker") + text("w") + b"\x86R"),
        "truncates a file": proto(name("_io", "FileIO") + text("marker") + text("w") + b"\x86R"),
        "a memory map": proto(name("numpy", "memmap") + b"(" + text("marker") + text("u1") + text("w+") + b"K\x00K\x04\x85tR"),
        "ufunc": proto(
            name("numpy.core", "_ufunc_reconstruct") + text("os") + text("mkdir") + b"\x86R" + MARK + b"R"
        ),
        "generator": proto(
            name("numpy.random._pickle", "__generator_ctor") + text("marker") + name("posix", "mkdir") + b"\x86R"
        ),
        "a torch operation that writes a file": proto(
            name("torch", "from_file") + b"(" + text("marker") + b"\x88K\x01tR"
        ),
        "a torch operation by its registry": proto(
            name("torch.ops.aten", "from_file") + b"(" + text("marker") + b"\x88K\x01tR"
        ),
        "path methods": proto(name("pathlib", "Path.mkdir") + name("pathlib", "Path") + MARK + b"R\x85R"),
        "a path by getattr": proto(
            name("builtins", "getattr") + name("pathlib", "Path") + MARK + b"R" + text("mkdir") + b"\x86R)R"
        ),
    }  # fmt: skip


def _zip(records: list[tuple[str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w") as archive:
        warnings.simplefilter("ignore")  # a name that appears twice is the point
        for label, data in records:
            archive.writestr(zipfile.ZipInfo(label), data)
    return buffer.getvalue()


def _torch_zip(data: bytes, *more: tuple[str, bytes]) -> bytes:
    return _zip([("a/data.pkl", data), *more, ("a/version", b"3\n"), ("a/byteorder", b"little")])


def _ambiguous() -> dict[str, bytes]:
    good, evil = proto(b"}"), proto(RUN)
    twice = _torch_zip(evil, ("a/data.pkl", good))
    by_case = _zip([("a/DATA.PKL", evil), ("a/data.pkl", good), ("a/version", b"3\n")])
    by_case_reversed = _zip([("a/data.pkl", good), ("a/DATA.PKL", evil), ("a/version", b"3\n")])
    another_folder = _zip([("b/data.pkl", evil), ("a/data.pkl", good), ("b/version", b"3\n")])
    return {
        "data.pkl twice": twice,
        "data.pkl in capitals first": by_case,
        "data.pkl in capitals behind": by_case_reversed,
        "another folder first": another_folder,
        "an archive behind another": _torch_zip(good) + _appended(_torch_zip(evil), len(_torch_zip(good))),
    }


def _appended(archive: bytes, shift: int) -> bytes:
    """A zip archive as it must look behind `shift` other bytes."""
    moved = bytearray(archive)
    (begin,) = struct.unpack_from("<L", moved, len(moved) - 22 + 16)
    struct.pack_into("<L", moved, len(moved) - 22 + 16, begin + shift)
    position = begin
    while moved[position : position + 4] == b"PK\x01\x02":
        (offset,) = struct.unpack_from("<L", moved, position + 42)
        struct.pack_into("<L", moved, position + 42, offset + shift)
        position += 46 + sum(struct.unpack_from("<3H", moved, position + 28))
    return bytes(moved)


class _Payload:
    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def __reduce__(self) -> Any:
        return torch.storage._load_from_bytes, (self.raw,)


def _old_torch(place: int) -> bytes:
    """The five pickles of the old format, with the payload in one of them."""
    parts: list[Any] = [MAGIC, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}, {}, []]
    raw = [pickle.dumps(part, 2) for part in parts]
    evil = b"cposix\nmkdir\n" + MARK + b"R0"
    raw[place] = raw[place][:2] + evil + raw[place][2:]
    return b"".join(raw)


def attacks() -> dict[str, bytes]:
    """Every attack by its name: a file for `torch.load`. Those in `REFUSED_BY_TORCH` are tried and fail there."""
    found: dict[str, bytes] = {}
    wraps: dict[str, Callable[[bytes], bytes]] = {"zip": _torch_zip, "plain": lambda raw: raw}
    for form, wrap in wraps.items():
        found |= {f"{form}: {label}": wrap(raw) for label, raw in _pickles().items()}
    found |= {f"zip: {label}": raw for label, raw in _ambiguous().items()}
    found |= {f"old torch: pickle {place}": _old_torch(place) for place in range(5)}
    found["old torch: the magic number in digits"] = (
        b"\x80\x02L" + str(MAGIC).encode() + b"L\n." + _old_torch(2)[len(pickle.dumps(MAGIC, 2)) :]
    )
    buffer = io.BytesIO()
    torch.save(_Payload(_torch_zip(proto(RUN))), buffer)
    found["zip: another file in the bytes of a storage"] = buffer.getvalue()
    found["plain: another file in the bytes of a storage"] = pickle.dumps(_Payload(_torch_zip(proto(RUN))))
    return found
