"""Read every tensor of a file once, in the order of the file, and report what it holds.

Each worker reads a few megabytes into its own buffer and checks them while they are in the processor's cache: two
integer reductions for the values (`tally`), then CRC-32 for the bytes. Reading and numpy release the GIL, so several
workers keep several cores busy. Values are counted exactly only in a chunk that may hold a non-finite value.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nantrap.checkpoints.audit.contents import Extent, StoredTensor
from nantrap.checkpoints.audit.crc32 import combine, crc32
from nantrap.checkpoints.audit.tally import Placed, Rough, TensorScan, TensorTally, look_at_many, look_at_view
from nantrap.checkpoints.audit.verdict import CheckpointProblem, checkpoint_problem
from nantrap.incident.wording import escaped

if TYPE_CHECKING:
    from nantrap.checkpoints.audit.tally import Bytes


__all__ = ["FileScan", "OnBytes", "TensorScan", "default_workers", "scan"]

_CHUNK_BYTES = 1 << 20
"""A multiple of every item size; small enough for a core's cache, large enough that Python's overhead is small."""

OnBytes = Callable[[int], None]
_Choice = Callable[[StoredTensor], Rough]


class FileScan(NamedTuple):
    """All tensors of a file, what is wrong with its bytes, and the CRC-32 of sealed extents by their label."""

    tensors: tuple[TensorScan, ...]
    problems: tuple[CheckpointProblem, ...]
    crcs: dict[str, int]


class _Seen:
    """What one job saw of an extent. `crc` is of `size` bytes; both are of no use where the file became shorter."""

    def __init__(self, extent: Extent, size: int) -> None:
        self.extent = extent
        self.size = size
        self.crc = 0
        self.is_short = False
        self.tallies: list[TensorTally] = []
        self.done: list[TensorScan] = []


def scan(
    extents: Iterable[Extent],
    *,
    verify: bool,
    workers: int | None = None,
    on_bytes: OnBytes | None = None,
    rough: _Choice = lambda tensor: "never",
) -> FileScan:
    """Check all tensors.

    Args:
        extents: where they lie.
        verify: also check each CRC-32 the file keeps, which needs every byte.
        workers: threads; by default one per core, at most four.
        on_bytes: called with the number of bytes read, from several threads.
        rough: the tensors whose extremes need not be exact; see `TensorTally`.
    """
    wanted = (part for extent in extents for part in _simplified(extent) if _must_be_read(part, verify=verify))
    jobs = list(jobs_of(wanted))
    most = max(1, workers or default_workers())
    batches = list(share(jobs, most))
    count = max(1, min(most, len(batches)))
    # Fresh buffers would cost a page fault for every 4 KiB of each chunk; each worker keeps its own.
    room = min(max(GROUP_BYTES, _CHUNK_BYTES), max((job.size for job in jobs), default=0))

    def look(batch: list[Job], buffer: Bytes) -> list[_Seen]:
        return [seen for job in batch for seen in _look(job, buffer, verify=verify, on_bytes=on_bytes, rough=rough)]

    results = _in_threads(look, batches, count, room)
    tensors: list[TensorScan] = []
    problems: list[CheckpointProblem] = []
    crcs: dict[str, int] = {}
    everything = (seen for result in results for seen in result)
    for _, pieces in groupby(everything, key=lambda seen: id(seen.extent)):
        _conclude(list(pieces), tensors, problems, crcs, verify=verify)
    return FileScan(tuple(tensors), tuple(problems), crcs)


def _in_threads(
    look: Callable[[list[Job], Bytes], list[_Seen]], batches: list[list[Job]], count: int, room: int
) -> list[list[_Seen]]:
    """The results of all batches, in their order, by this many threads; of several errors, that of the first batch."""
    results: list[list[_Seen]] = [[] for _ in batches]
    waiting = iter(range(len(batches)))
    errors: dict[int, BaseException] = {}

    def work() -> None:
        """One thread: take the next batch until none is left or another thread failed."""
        buffer = np.empty(room, np.uint8)
        for number in waiting:  # a range's iterator may be shared: `next` holds the GIL
            if errors:
                return
            try:
                with np.errstate(all="ignore"):
                    results[number] = look(batches[number], buffer)
            except BaseException as error:  # raised below, in the caller's thread
                errors[number] = error

    others = [threading.Thread(target=work, name="nantrap-audit") for _ in range(count - 1)]
    for thread in others:
        thread.start()
    work()
    for thread in others:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return results


def default_workers() -> int:
    """The cores that this process may use, shared among the ranks of this machine, at most four."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    text = os.environ.get("LOCAL_WORLD_SIZE") or ""
    ranks = int(text) if text.isdecimal() else 1
    return max(1, min(4, cores // max(ranks, 1)))


def _simplified(extent: Extent) -> Iterator[Extent]:
    """The extent with each of its bytes in few tensors.

    Thousands of views may share a storage, each as large as all of it: then the storage is read once, under the name of
    the first of them. A tensor that begins between two values gets its own extent.
    """
    floats = [tensor for tensor in extent.tensors if _has_floats(tensor)]
    odd = [tensor for tensor in floats if tensor.offset % tensor.dtype.itemsize]
    for tensor in odd[:_MOST_VIEWS]:
        start, size = extent.offset + tensor.offset, tensor.end - tensor.offset
        yield Extent(extent.source, start, size, extent.label, (tensor._replace(offset=0),))
    even = [tensor for tensor in floats if tensor not in odd] if odd else floats
    spanned = sum(tensor.end - tensor.offset for tensor in even)
    if len(even) > _MOST_VIEWS and spanned > 4 * extent.size:
        covers: dict[str, StoredTensor] = {}
        for tensor in even:
            known = covers.setdefault(tensor.dtype.name, tensor)
            begin, end = min(known.offset, tensor.offset), max(known.end, tensor.end)
            length = (end - begin) // tensor.dtype.itemsize
            covers[tensor.dtype.name] = StoredTensor(known.path, known.dtype, (length,), (1,), begin)
        even = list(covers.values())
    yield extent._replace(tensors=tuple(even))


_MOST_VIEWS = 64


def _must_be_read(extent: Extent, *, verify: bool) -> bool:
    return (verify and _has_crc(extent)) or any(_has_floats(t) for t in extent.tensors)


def _has_crc(extent: Extent) -> bool:
    return extent.crc32 is not None or extent.is_sealed


def _has_floats(tensor: StoredTensor) -> bool:
    return tensor.dtype.has_nan and 0 not in tensor.shape


def _look(job: Job, buffer: Bytes, *, verify: bool, on_bytes: OnBytes | None, rough: _Choice) -> Iterator[_Seen]:
    if isinstance(job, Piece):
        yield _look_at_piece(job, buffer, verify=verify, on_bytes=on_bytes, rough=rough)
    else:
        yield from _look_at_group(job, buffer, verify=verify)
        if on_bytes is not None:
            on_bytes(job.size)


def _look_at_piece(piece: Piece, buffer: Bytes, *, verify: bool, on_bytes: OnBytes | None, rough: _Choice) -> _Seen:
    """Read a piece of a large extent in chunks: count bad values of its tensors, and take its checksum."""
    extent = piece.extent
    seen = _Seen(extent, piece.size)
    spans = []
    for tensor in filter(_has_floats, extent.tensors):
        if tensor.offset < piece.end and tensor.end > piece.begin:
            spans.append((tensor, tensor.offset, tensor.end))
    seen.tallies = [TensorTally(tensor, rough=rough(tensor)) for tensor, _, _ in spans]
    for begin in range(piece.begin, piece.end, _CHUNK_BYTES):
        end = min(begin + _CHUNK_BYTES, piece.end)
        chunk = buffer[: end - begin].data
        if extent.source.read_into(extent.offset + begin, chunk) < end - begin:
            seen.is_short = True
            return seen
        for (tensor, first, last), tally in zip(spans, seen.tallies, strict=True):
            low, high = max(first, begin), min(last, end)
            if low < high:
                tally.look(buffer[low - begin : high - begin], (low - first) // tensor.dtype.itemsize)
        if verify and _has_crc(extent):
            seen.crc = crc32(chunk, seen.crc)
        if on_bytes is not None:
            on_bytes(end - begin)
    return seen


def _look_at_group(group: ExtentGroup, buffer: Bytes, *, verify: bool) -> Iterator[_Seen]:
    """Read several small extents at once and count the bad values of all their tensors together."""
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
        if verify and _has_crc(extent):
            seen.crc = crc32(view[begin : begin + extent.size])
        for tensor in filter(_has_floats, extent.tensors):
            placed.append(Placed(tensor, begin + tensor.offset, begin + tensor.end))
            owners.append(seen)
    for seen, result in zip(owners, look_at_many(buffer, placed), strict=True):
        seen.done.append(result)
    return iter(every)


def _conclude(
    pieces: list[_Seen],
    tensors: list[TensorScan],
    problems: list[CheckpointProblem],
    crcs: dict[str, int],
    *,
    verify: bool,
) -> None:
    """Put together what the pieces of one extent gave."""
    extent = pieces[0].extent
    short = checkpoint_problem(
        "NT909", f"the file became shorter while it was read: {escaped(extent.label)} is not whole"
    )
    if any(piece.is_short for piece in pieces):
        problems.append(short)
        return
    crc = pieces[0].crc
    for piece in pieces[1:]:
        crc = combine(crc, piece.crc, piece.size)
    if extent.is_sealed:
        crcs[extent.label] = crc
    if verify and extent.crc32 is not None and crc != extent.crc32:
        names = ", ".join(escaped(tensor.name) for tensor in extent.tensors[:3])
        message = f"{escaped(extent.label)} does not match its CRC-32: bytes were changed after they were saved"
        problems.append(checkpoint_problem("NT908", message, tensor=names or None))
    tallies: dict[int, TensorTally] = {}
    for seen in (tally for piece in pieces for tally in piece.tallies):
        known = tallies.setdefault(id(seen.tensor), seen)
        if known is not seen:
            known.add(seen)
    found = {id(result.tensor): result for piece in pieces for result in piece.done}
    found |= {key: tally.result() for key, tally in tallies.items()}
    for tensor in extent.tensors:
        result = found.get(id(tensor))
        tally = tallies.get(id(tensor))
        is_rough = tally is not None and tally.is_rough
        if result is not None and result.stats is not None and (is_rough or not tensor.is_dense):
            result = look_at_view(extent, tensor)  # extremes are wanted, or the alarm comes from between its elements
            if result is None:
                problems.append(short)
                return
        if result is not None:
            tensors.append(result)


# ---- the jobs of the workers
#
# A large extent is cut into pieces, so that several workers share a single huge tensor. Small neighbours are joined and
# read together: ten thousand biases must not cost ten thousand reads.


PIECE_BYTES = 32 << 20
GROUP_BYTES = 1 << 20
_SMALL_BYTES = 16 << 10
_GAP_BYTES = 4 << 10
"""More between two extents than a header and some padding is not worth reading."""


class Piece(NamedTuple):
    """The bytes `begin` to `end` of an extent, read chunk by chunk."""

    extent: Extent
    begin: int
    end: int

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return self.end - self.begin


class ExtentGroup(NamedTuple):
    """Small extents of one source, in ascending order, that fit into one chunk together."""

    extents: tuple[Extent, ...]

    @property
    def begin(self) -> int:
        """Where in the source the first extent begins."""
        return self.extents[0].offset

    @property
    def size(self) -> int:
        """How many bytes lie from the start of the first extent to the end of the last."""
        return self.extents[-1].offset + self.extents[-1].size - self.begin


Job = Piece | ExtentGroup


def jobs_of(extents: Iterable[Extent]) -> Iterator[Job]:
    """Everything in the extents exactly once."""
    small: list[Extent] = []
    for extent in extents:
        if small and not _belongs(extent, small):
            yield ExtentGroup(tuple(small))
            small = []
        if extent.size <= _SMALL_BYTES:
            small.append(extent)
        else:
            for begin in range(0, extent.size, PIECE_BYTES):
                yield Piece(extent, begin, min(begin + PIECE_BYTES, extent.size))
    if small:
        yield ExtentGroup(tuple(small))


def _belongs(extent: Extent, small: list[Extent]) -> bool:
    last = small[-1]
    return (
        extent.size <= _SMALL_BYTES
        and extent.source is last.source
        and 0 <= extent.offset - (last.offset + last.size) <= _GAP_BYTES
        and extent.offset + extent.size - small[0].offset <= GROUP_BYTES
    )


def share(jobs: list[Job], workers: int) -> Iterator[list[Job]]:
    """Jobs that a worker takes together: few enough to balance the work, many enough to keep the overhead small."""
    fair = sum(job.size for job in jobs) // (4 * workers) if workers > 1 else 1 << 62
    batch: list[Job] = []
    size = 0
    for job in jobs:
        batch.append(job)
        size += job.size
        if size >= min(PIECE_BYTES, fair):
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
