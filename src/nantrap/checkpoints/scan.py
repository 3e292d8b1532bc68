"""Read every tensor of a file once, in the order of the file, and say what it holds.

Each worker reads a few megabytes into its own buffer and looks at them while they are in the processor's cache:
`aminmax` for the values (33 GB/s, NaN and Inf show in the result), CRC-32 for the bytes. Both release the GIL, so
several workers keep several cores busy. Values are counted exactly only in a chunk that raised the alarm.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue

import torch
from torch import Tensor

from nantrap.checkpoints.contents import Extent, StoredTensor
from nantrap.checkpoints.verdict import Problem
from nantrap.finite import dtype_name, first_nonfinite_index, readable, tensor_stats
from nantrap.incident import TensorStats

_CHUNK_BYTES = 4 << 20
_BATCH_BYTES = 32 << 20

OnBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class TensorScan:
    """What a tensor holds. `low` and `high` are of the finite values; `stats` is there only after an alarm."""

    tensor: StoredTensor
    low: float
    high: float
    stats: TensorStats | None = None
    first_index: tuple[int, ...] | None = None

    @property
    def is_constant(self) -> bool:
        """Whether all values are the same number."""
        return self.stats is None and self.low == self.high


@dataclass(frozen=True, slots=True)
class FileScan:
    """All tensors of a file, and what is wrong with its bytes."""

    tensors: tuple[TensorScan, ...]
    problems: tuple[Problem, ...]


def scan(
    extents: Iterable[Extent], *, verify: bool, workers: int | None = None, on_bytes: OnBytes | None = None
) -> FileScan:
    """Look at all tensors. `verify` also checks each CRC-32 the file keeps, which needs every byte."""
    wanted = [extent for extent in extents if _must_be_read(extent, verify=verify)]
    batches = list(_batches(wanted))
    count = max(1, min(workers or default_workers(), len(batches)))

    # Fresh buffers would cost a page fault for every 4 KiB of each; these stay warm.
    buffers: SimpleQueue[bytearray] = SimpleQueue()
    largest = max((extent.size for extent in wanted), default=0)
    for _ in range(count):
        buffers.put(bytearray(min(_CHUNK_BYTES, largest) or 1))

    def look(batch: list[Extent]) -> list[FileScan]:
        buffer = buffers.get()
        try:
            return [_scan_extent(extent, buffer, verify=verify, on_bytes=on_bytes) for extent in batch]
        finally:
            buffers.put(buffer)

    if count == 1:
        results = [look(batch) for batch in batches]
    else:
        with ThreadPoolExecutor(count, thread_name_prefix="nantrap-audit") as pool:
            results = list(pool.map(look, batches))
    parts = [part for result in results for part in result]
    return FileScan(
        tuple(tensor for part in parts for tensor in part.tensors),
        tuple(problem for part in parts for problem in part.problems),
    )


def default_workers() -> int:
    """As many as this process may use cores, shared among the ranks of this machine, at most eight."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return max(1, min(8, cores // max(ranks, 1)))


def _must_be_read(extent: Extent, *, verify: bool) -> bool:
    return (verify and extent.crc32 is not None) or any(_has_floats(t) for t in extent.tensors)


def _has_floats(tensor: StoredTensor) -> bool:
    return (tensor.dtype.is_floating_point or tensor.dtype.is_complex) and tensor.numel > 0


def _batches(extents: list[Extent]) -> Iterator[list[Extent]]:
    """Neighbours together, so that ten thousand small tensors do not become ten thousand jobs."""
    batch: list[Extent] = []
    size = 0
    for extent in extents:
        batch.append(extent)
        size += extent.size
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _scan_extent(extent: Extent, buffer: bytearray, *, verify: bool, on_bytes: OnBytes | None) -> FileScan:
    tallies = [_Tally(tensor) for tensor in extent.tensors if _has_floats(tensor)]
    view = memoryview(buffer)
    crc = 0
    position = 0
    while position < extent.size:
        wanted = min(len(buffer), extent.size - position)
        got = extent.source.read_into(extent.offset + position, view[:wanted])
        if got < wanted:
            message = f"the file became shorter while it was read: {extent.label} is not whole"
            return FileScan((), (Problem("NT909", message),))
        if verify and extent.crc32 is not None:
            crc = zlib.crc32(view[:got], crc)
        for tally in tallies:
            tally.look(buffer, position, got)
        position += got
        if on_bytes is not None:
            on_bytes(got)
    problems: tuple[Problem, ...] = ()
    if verify and extent.crc32 is not None and crc != extent.crc32:
        names = ", ".join(tensor.name for tensor in extent.tensors[:3])
        message = f"{extent.label} does not match its CRC-32: bytes were changed after they were saved"
        problems = (Problem("NT908", message, tensor=names or None),)
    return FileScan(tuple(tally.result(extent) for tally in tallies), problems)


@dataclass(slots=True)
class _Tally:
    """What has been seen of one tensor so far, chunk by chunk. A strided view is counted at the end, by itself."""

    tensor: StoredTensor
    begin: int = field(init=False)
    end: int = field(init=False)
    dtype: torch.dtype = field(init=False)
    low: float = math.inf
    high: float = -math.inf
    alarms: list[TensorStats] = field(default_factory=list)
    first: int | None = None

    def __post_init__(self) -> None:
        self.dtype = self.tensor.dtype
        self.begin = self.tensor.offset
        self.end = self.tensor.end if self.tensor.is_dense else self.begin

    def look(self, buffer: bytearray, position: int, size: int) -> None:
        """Look at the part of the tensor that lies in the chunk which begins at byte `position` of the extent."""
        begin, end = max(self.begin, position), min(self.end, position + size)
        if begin >= end:
            return
        count = (end - begin) // self.dtype.itemsize
        values = torch.frombuffer(buffer, dtype=self.dtype, count=count, offset=begin - position)
        low, high = _extremes(values)
        if math.isfinite(low) and math.isfinite(high):
            self.low, self.high = min(self.low, low), max(self.high, high)
            return
        stats = tensor_stats(values)
        self.alarms.append(stats)
        if stats.min is not None and stats.max is not None:
            self.low, self.high = min(self.low, stats.min), max(self.high, stats.max)
        if self.first is None:
            index = first_nonfinite_index(values)
            assert index is not None
            self.first = (begin - self.begin) // self.dtype.itemsize + index[0]

    def result(self, extent: Extent) -> TensorScan:
        if not self.tensor.is_dense:
            return _exactly(extent, self.tensor)
        if not self.alarms:
            return TensorScan(self.tensor, self.low, self.high)
        assert self.first is not None
        stats = TensorStats(
            shape=self.tensor.shape,
            dtype=dtype_name(self.tensor.dtype),
            numel=self.tensor.numel,
            nan=sum(alarm.nan for alarm in self.alarms),
            posinf=sum(alarm.posinf for alarm in self.alarms),
            neginf=sum(alarm.neginf for alarm in self.alarms),
            min=self.low if self.low <= self.high else None,
            max=self.high if self.low <= self.high else None,
        )
        return TensorScan(self.tensor, self.low, self.high, stats, self.tensor.index_at(self.first))


def _extremes(values: Tensor) -> tuple[float, float]:
    """The least and the greatest value; not finite if any value is not."""
    dense = readable(values)
    assert dense is not None
    low, high = torch.aminmax(dense)
    return float(low), float(high)


def _exactly(extent: Extent, tensor: StoredTensor) -> TensorScan:
    """A strided view into a larger storage: what lies between its elements is not its own, so it is built to count."""
    data = bytearray(extent.source.read(extent.offset + tensor.offset, tensor.end - tensor.offset))
    values = torch.frombuffer(data, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride)
    stats = tensor_stats(values)
    low = math.inf if stats.min is None else stats.min
    high = -math.inf if stats.max is None else stats.max
    if stats.nonfinite == 0:
        return TensorScan(tensor, low, high)
    return TensorScan(tensor, low, high, stats, first_nonfinite_index(values))
