"""What a reader returns: where in a file each tensor is, and everything else in the file.

A reader never loads a tensor. It names byte ranges (`Extent`) and the tensors in them (`StoredTensor`); the scan
reads them in the order of the file, once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from nantrap.checkpoints.audit.dtypes import DType
from nantrap.checkpoints.audit.files import ByteSource
from nantrap.checkpoints.audit.trust import NOTHING, Imports
from nantrap.checkpoints.audit.verdict import Problem


class UnreadableError(Exception):
    """The file cannot be read as what it seemed to be. Carries the problem to report."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(code, message)


class StoredTensor(NamedTuple):
    """A tensor in a file. `offset` counts bytes from the start of its extent, `stride` counts elements."""

    path: tuple[str, ...]
    dtype: DType
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0

    @property
    def name(self) -> str:
        """`optimizer.state.0.exp_avg`."""
        return ".".join(self.path)

    @property
    def numel(self) -> int:
        """How many values the tensor has."""
        return math.prod(self.shape)

    @property
    def span(self) -> int:
        """How many elements lie between its first and its last one, both included."""
        if self.numel == 0:
            return 0
        return 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))

    @property
    def is_dense(self) -> bool:
        """Whether its elements are exactly the memory it spans, in whatever order."""
        return self.span == self.numel and 0 not in self.stride

    @property
    def end(self) -> int:
        """The first byte of the extent behind the tensor."""
        return self.offset + self.span * self.dtype.itemsize

    def index_at(self, position: int) -> tuple[int, ...]:
        """The index of the element that lies `position` elements behind the first."""
        index = [0] * len(self.shape)
        for axis in sorted(range(len(self.shape)), key=lambda axis: -self.stride[axis]):
            if self.shape[axis] > 1 and self.stride[axis] > 0:
                index[axis], position = divmod(position, self.stride[axis])
        return tuple(index)


class Extent(NamedTuple):
    """Consecutive bytes of a file, with the tensors they hold and the CRC-32 they should have.

    `is_sealed`: their CRC-32 is needed for a checksum over several extents.
    """

    source: ByteSource
    offset: int
    size: int
    label: str
    tensors: tuple[StoredTensor, ...] = ()
    crc32: int | None = None
    is_sealed: bool = False


class Contents(NamedTuple):
    """A file as its reader sees it.

    `names` has every tensor, also those that share their bytes with another and appear in no extent twice; `tree` is
    the saved object, `imports` what loading it would run, make and name,
    `numbers` the plain numbers in it that are not finite, `seal` the text and the CRC-32 of a checksum over all.
    """

    format: str
    extents: tuple[Extent, ...] = ()
    names: tuple[str, ...] = ()
    tree: object = None
    imports: Imports = NOTHING
    problems: tuple[Problem, ...] = ()
    numbers: tuple[tuple[tuple[str, ...], float], ...] = ()
    seal: tuple[str, str] | None = None


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
