"""Tar shards as webdataset writes them: members with the same name up to the first dot are one sample.

The rest of the name is the field: `00017.jpg` and `00017.cls` are the fields `jpg` and `cls` of one sample. Pickled
members (.pyd, .pickle, .pth) are not run and not judged.
"""

from __future__ import annotations

import io
import json
import lzma
import posixpath
import tarfile
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from nantrap.doctor.data.limits import refuse_expansion, refuse_size
from nantrap.doctor.data.measures import Measures, joined
from nantrap.doctor.data.readers import images
from nantrap.doctor.data.readers.records import measure_records
from nantrap.doctor.data.roles import DataOptions
from nantrap.doctor.data.shards import CHANGED, DataProblem, Plan, Scanned, Shard, UnreadableDataError
from nantrap.doctor.data.stored import as_stream, open_source
from nantrap.incident.wording import counted

_BATCH = 64 << 20
_NUMBERS = frozenset(("cls", "cls2", "index", "inx", "id", "label", "target"))
_DAMAGE = (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, ValueError)


def plan(path: str, format: str) -> Plan:
    """One shard: a tar has no table of contents."""
    with open_source(path) as source:
        if source.size == 0:
            raise UnreadableDataError("the file is empty")
        return Plan((Shard(path, format, bytes=source.size),))


def scan(shard: Shard, options: DataOptions) -> Scanned:
    """Measure all samples. What comes before the damage in a cut file is read."""
    made = Scanned()
    parts: dict[str | None, list[Measures]] = {}
    batch: list[tuple[int, Any]] = []
    held = 0
    with open_source(shard.path) as source:
        with as_stream(source) as stream:
            try:
                for key, members in _samples(stream, source.size, made.problems):
                    index = made.samples
                    record: dict[str, Any] = {}
                    for field, data in members:
                        held += len(data)
                        try:
                            value = _decode(field, data)
                        except UnreadableDataError as error:
                            made.problems.append(DataProblem(f"{key}.{field}: {error}", field, (index,)))
                            continue
                        record[field] = value
                    batch.append((index, record))
                    made.samples += 1
                    if held > _BATCH:
                        measure_records(batch, options, parts)
                        batch, held = [], 0
            except UnreadableDataError as error:
                made.problems.append(DataProblem(f"after {counted(made.samples, 'sample')}: {error}"))
            except _DAMAGE as error:
                made.problems.append(DataProblem(_damage(error, made.samples, is_tar=_is_tar(source))))
            measure_records(batch, options, parts)
        if source.changed():
            made.problems.append(DataProblem(CHANGED))
    made.measures = [joined(found) for found in parts.values()]
    return made


def _damage(error: Exception, samples: int, *, is_tar: bool) -> str:
    """What is wrong with an archive. Of the attempts to open it, tarfile names every one in a line of its own."""
    reason = str(error).partition("\n")[0].rstrip(":")
    if not samples and not is_tar:
        return "not a tar archive"
    if not samples:
        return "the archive is cut or damaged before its first sample"
    return f"the archive is cut after {counted(samples, 'sample')}: {reason}"


def _samples(stream: Any, size: int, problems: list[DataProblem]) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """Samples in the order of the archive. Raises `TarError` where the archive is cut, `UnreadableDataError` at a
    limit.

    Args:
        stream: the archive.
        size: its bytes.
        problems: gets one for all links and devices, which are not followed.
    """
    others = 0
    current: str | None = None
    members: list[tuple[str, bytes]] = []
    with tarfile.open(fileobj=stream, mode="r:*") as archive:
        for member in archive:
            archive.members = []  # type: ignore[attr-defined] # all headers would be kept
            refuse_expansion(member.offset_data + member.size, size)
            if not member.isfile():
                others += not member.isdir()
                continue
            refuse_size(member.size, member.name)
            folder, name = posixpath.split(member.name)
            stem, _, extension = name.partition(".")
            if not stem or name.startswith("._"):
                continue
            key = posixpath.join(folder, stem)
            if current is not None and key != current:
                yield current, members
                members = []
            current = key
            opened = archive.extractfile(member)
            assert opened is not None
            data = opened.read()
            if len(data) < member.size:
                raise tarfile.ReadError(f"{member.name} ends after {len(data):,} of {member.size:,} bytes")
            members.append((extension.lower(), data))
        if current is not None:
            yield current, members
        if others:
            problems.append(DataProblem(f"{counted(others, 'member')} not read: links and devices are not followed"))
        if archive.fileobj is not None:  # an archive ends with two blocks of zeros; tarfile does not insist on them
            archive.fileobj.seek(archive.offset)
            if not archive.fileobj.read(512).startswith(b"\0" * 512):
                raise tarfile.ReadError("it has no end mark")


def _decode(field: str, data: bytes) -> Any:
    """The value of a member: an array, a number, an object, a text."""
    last = field.rpartition(".")[2]
    if f".{last}" in images.EXTENSIONS:
        return images.decode(data)
    if last == "npy":
        try:
            return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise UnreadableDataError(f"not a whole NumPy array: {error}") from error
    if last == "json":
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise UnreadableDataError(f"not JSON: {error}") from error
    if last in _NUMBERS:
        try:
            return int(data)
        except ValueError:
            return data.decode("utf-8", "replace")
    return "text"


def _is_tar(source: Any) -> bool:
    head: bytes = source.read(0, 512)
    return head[257:262] == b"ustar" or head[:2] == b"\x1f\x8b" or head[:3] == b"BZh" or head[:6] == b"\xfd7zXZ\0"
