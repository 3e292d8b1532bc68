"""Read every tensor of a file once, in the order of the file, and say what it holds.

Each worker reads four megabytes into its own buffer and looks at them while they lie in the processor's cache:
`aminmax` for the values (33 GB/s, NaN and Inf show in the result), then CRC-32 for the bytes. Reading, `aminmax` and
numpy release the GIL, so several workers keep several cores busy. Values are counted exactly only in a chunk that
raised the alarm.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from queue import SimpleQueue

import numpy as np

from nantrap.checkpoints.audit.contents import Extent, StoredTensor
from nantrap.checkpoints.audit.crc32 import ROOM, Bytes, Checksum, combine
from nantrap.checkpoints.audit.jobs import GROUP_BYTES, Group, Job, Piece, jobs_of, share
from nantrap.checkpoints.audit.small import Placed, look_at_many
from nantrap.checkpoints.audit.tally import Tally, TensorScan, can_be_cut, look_at_whole
from nantrap.checkpoints.audit.verdict import Problem

__all__ = ["FileScan", "OnBytes", "TensorScan", "default_workers", "scan"]

_CHUNK_BYTES = 4 << 20
"""A multiple of every item size; small enough for the last level of cache, large enough that Python is not felt."""

OnBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class FileScan:
    """All tensors of a file, and what is wrong with its bytes."""

    tensors: tuple[TensorScan, ...]
    problems: tuple[Problem, ...]


@dataclass(slots=True)
class _Seen:
    """What one job saw of an extent. `crc` is of `size` bytes; both are of no use where the file became shorter.

    `strided` are the tensors that cannot be looked at in pieces.
    """

    extent: Extent
    size: int
    crc: int = 0
    is_short: bool = False
    tallies: list[Tally] = field(default_factory=list)
    done: list[TensorScan] = field(default_factory=list)
    strided: list[StoredTensor] = field(default_factory=list)


def scan(
    extents: Iterable[Extent], *, verify: bool, workers: int | None = None, on_bytes: OnBytes | None = None
) -> FileScan:
    """Look at all tensors. `verify` also checks each CRC-32 the file keeps, which needs every byte."""
    jobs = list(jobs_of(extent for extent in extents if _must_be_read(extent, verify=verify)))
    most = max(1, workers or default_workers())
    batches = list(share(jobs, most))
    count = max(1, min(most, len(batches)))

    # Fresh buffers would cost a page fault for every 4 KiB of each; these stay warm.
    room = max(GROUP_BYTES, _CHUNK_BYTES)
    largest = min(room, max((job.size for job in jobs), default=0))
    buffers: SimpleQueue[Bytes] = SimpleQueue()
    for _ in range(count):
        buffers.put(np.empty(ROOM + largest, np.uint8))

    def look(batch: list[Job]) -> list[_Seen]:
        buffer = buffers.get()
        try:
            return [seen for job in batch for seen in _look(job, buffer, verify=verify, on_bytes=on_bytes)]
        finally:
            buffers.put(buffer)

    if count == 1:
        results = [look(batch) for batch in batches]
    else:
        with ThreadPoolExecutor(count, thread_name_prefix="nantrap-audit") as pool:
            results = list(pool.map(look, batches))
    tensors: list[TensorScan] = []
    problems: list[Problem] = []
    everything = (seen for result in results for seen in result)
    for _, pieces in groupby(everything, key=lambda seen: id(seen.extent)):
        _conclude(list(pieces), tensors, problems, verify=verify)
    return FileScan(tuple(tensors), tuple(problems))


def default_workers() -> int:
    """As many as this process may use cores, shared among the ranks of this machine, at most four."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return max(1, min(4, cores // max(ranks, 1)))


def _must_be_read(extent: Extent, *, verify: bool) -> bool:
    return (verify and extent.crc32 is not None) or any(_has_floats(t) for t in extent.tensors)


def _has_floats(tensor: StoredTensor) -> bool:
    return (tensor.dtype.is_floating_point or tensor.dtype.is_complex) and 0 not in tensor.shape


def _look(job: Job, buffer: Bytes, *, verify: bool, on_bytes: OnBytes | None) -> Iterator[_Seen]:
    if isinstance(job, Piece):
        yield _look_at_piece(job, buffer, verify=verify, on_bytes=on_bytes)
    else:
        yield from _look_at_group(job, buffer, verify=verify)
        if on_bytes is not None:
            on_bytes(job.size)


def _look_at_piece(piece: Piece, buffer: Bytes, *, verify: bool, on_bytes: OnBytes | None) -> _Seen:
    extent = piece.extent
    seen = _Seen(extent, piece.size)
    spans = []
    for tensor in filter(_has_floats, extent.tensors):
        if not can_be_cut(tensor):
            seen.strided.append(tensor)
        elif tensor.offset < piece.end and tensor.end > piece.begin:
            spans.append((tensor, tensor.offset, tensor.end))
    seen.tallies = [Tally(tensor) for tensor, _, _ in spans]
    checksum = Checksum(buffer, piece.size) if verify and extent.crc32 is not None else None
    for begin in range(piece.begin, piece.end, _CHUNK_BYTES):
        end = min(begin + _CHUNK_BYTES, piece.end)
        chunk = buffer[ROOM : ROOM + end - begin].data
        if extent.source.read_into(extent.offset + begin, chunk) < end - begin:
            seen.is_short = True
            return seen
        for (tensor, first, last), tally in zip(spans, seen.tallies, strict=True):
            low, high = max(first, begin), min(last, end)
            if low < high:
                itemsize = tensor.dtype.itemsize
                tally.look(buffer, ROOM + low - begin, (high - low) // itemsize, (low - first) // itemsize)
        if checksum is not None:
            checksum.update(end - begin)  # destroys the chunk
        if on_bytes is not None:
            on_bytes(end - begin)
    if checksum is not None:
        seen.crc = checksum.value()
    return seen


def _look_at_group(group: Group, buffer: Bytes, *, verify: bool) -> Iterator[_Seen]:
    source, base = group.extents[0].source, group.begin
    view = buffer[: group.size].data
    got = source.read_into(base, view)
    every: list[_Seen] = []
    placed: list[Placed] = []
    owners: list[_Seen] = []
    for extent in group.extents:
        seen = _Seen(extent, extent.size)
        every.append(seen)
        begin = extent.offset - base
        if begin + extent.size > got:
            seen.is_short = True
            continue
        if verify and extent.crc32 is not None:
            seen.crc = zlib.crc32(view[begin : begin + extent.size])
        for tensor in filter(_has_floats, extent.tensors):
            if can_be_cut(tensor):
                placed.append(Placed(tensor, begin + tensor.offset, begin + tensor.end))
                owners.append(seen)
            else:
                seen.strided.append(tensor)
    for seen, result in zip(owners, look_at_many(buffer, placed), strict=True):
        seen.done.append(result)
    return iter(every)


def _conclude(pieces: list[_Seen], tensors: list[TensorScan], problems: list[Problem], *, verify: bool) -> None:
    """Put together what the pieces of one extent gave."""
    extent = pieces[0].extent
    wholes = [look_at_whole(extent, tensor) for tensor in pieces[0].strided]
    if any(piece.is_short for piece in pieces) or None in wholes:
        message = f"the file became shorter while it was read: {extent.label} is not whole"
        problems.append(Problem("NT909", message))
        return
    crc = pieces[0].crc
    for piece in pieces[1:]:
        crc = combine(crc, piece.crc, piece.size)
    if verify and extent.crc32 is not None and crc != extent.crc32:
        names = ", ".join(tensor.name for tensor in extent.tensors[:3])
        message = f"{extent.label} does not match its CRC-32: bytes were changed after they were saved"
        problems.append(Problem("NT908", message, tensor=names or None))
    if not wholes and not pieces[0].tallies and len(pieces) == 1:
        tensors += pieces[0].done  # of one group, already in order
        return
    tallies: dict[int, Tally] = {}
    for tally in (tally for piece in pieces for tally in piece.tallies):
        known = tallies.setdefault(id(tally.tensor), tally)
        if known is not tally:
            known.add(tally)
    found = {id(result.tensor): result for piece in pieces for result in piece.done}
    found |= {key: tally.result() for key, tally in tallies.items()}
    found |= {id(result.tensor): result for result in wholes if result is not None}
    tensors += [found[id(tensor)] for tensor in extent.tensors if id(tensor) in found]
