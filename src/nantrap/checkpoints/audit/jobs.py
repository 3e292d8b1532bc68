"""Cut the bytes of a file into jobs of a size that suits a worker, in the order of the file.

A large extent is cut into pieces, so that several workers share a single huge tensor. Small neighbours are joined and
read together: ten thousand biases must not cost ten thousand reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nantrap.checkpoints.audit.contents import Extent

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


class Group(NamedTuple):
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


Job = Piece | Group


def jobs_of(extents: Iterable[Extent]) -> Iterator[Job]:
    """Everything in the extents exactly once."""
    small: list[Extent] = []
    for extent in extents:
        if small and not _belongs(extent, small):
            yield Group(tuple(small))
            small = []
        if extent.size <= _SMALL_BYTES:
            small.append(extent)
        else:
            for begin in range(0, extent.size, PIECE_BYTES):
                yield Piece(extent, begin, min(begin + PIECE_BYTES, extent.size))
    if small:
        yield Group(tuple(small))


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
