"""What a reader returns: where in a file each tensor is, and everything else in the file.

A reader never loads a tensor. It names byte ranges (`Extent`) and the tensors in them (`StoredTensor`); the scan
reads them in the order of the file, once. Dtypes are described here by their bits: numpy has no bfloat16 and no float8,
and torch is slow to import.
"""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple

from nantrap.checkpoints.audit.files import ByteSource
from nantrap.checkpoints.audit.trust import NOTHING, Imports
from nantrap.checkpoints.audit.verdict import CheckpointProblem, checkpoint_problem
from nantrap.thresholds import LARGEST


class DType(NamedTuple):
    """A dtype by its bits.

    Attributes:
        name: as torch calls it.
        itemsize: bytes of one value.
        kind: `float` and `complex` can hold NaN; `raw` is bytes whose meaning is not known.
        part: bytes of one float: half of a complex number.
        limit: the least magnitude that is not finite, as an integer; 0 where every pattern is a number.
        infinity: whether the pattern at `limit` is an infinity. Above it is NaN.
        nan: the only NaN, where it is not a magnitude: the `fnuz` float8 have it in place of minus zero.
        largest: the greatest finite value.
        in_one: how many values share these bytes.
    """

    name: str
    itemsize: int
    kind: Literal["float", "complex", "integer", "raw"] = "integer"
    part: int = 0
    limit: int = 0
    infinity: bool = True
    nan: int | None = None
    largest: float = 0.0
    in_one: int = 1

    @property
    def has_nan(self) -> bool:
        """Whether a value can be anything but finite."""
        return self.limit > 0 or self.nan is not None


def _float(name: str, size: int, limit: int, largest: float) -> DType:
    return DType(name, size, "float", size, limit, largest=largest)


def _complex(name: str, part: DType) -> DType:
    return DType(name, 2 * part.itemsize, "complex", part.itemsize, part.limit, largest=part.largest)


_F16 = _float("float16", 2, 0x7C00, LARGEST["float16"])
_F32 = _float("float32", 4, 0x7F80_0000, LARGEST["float32"])
_F64 = _float("float64", 8, 0x7FF0_0000_0000_0000, LARGEST["float64"])

DTYPES: Final[dict[str, DType]] = {
    dtype.name: dtype
    for dtype in (
        _F16, _F32, _F64, _complex("complex32", _F16), _complex("complex64", _F32), _complex("complex128", _F64),
        _float("bfloat16", 2, 0x7F80, LARGEST["bfloat16"]),
        _float("float8_e5m2", 1, 0x7C, LARGEST["float8_e5m2"]),
        DType("float8_e4m3fn", 1, "float", 1, 0x7F, infinity=False, largest=LARGEST["float8_e4m3fn"]),
        DType("float8_e4m3fnuz", 1, "float", 1, nan=0x80, largest=240.0),
        DType("float8_e5m2fnuz", 1, "float", 1, nan=0x80, largest=57344.0),
        DType("float8_e8m0fnu", 1, "float", 1, nan=0xFF, largest=2.0**127),
        DType("float4_e2m1fn_x2", 1),
        *(DType(f"{sign}int{bits}", bits // 8) for sign in ("", "u") for bits in (8, 16, 32, 64)),
        *(DType(f"{sign}int{bits}", 1) for sign in ("", "u") for bits in range(1, 8)),
        *(DType(name, size) for name, size in (("qint8", 1), ("quint8", 1), ("qint32", 4), ("bool", 1))),
        *(DType(name, 1) for name in ("bits8", "bits1x8", "bits2x4", "bits4x2")),
        DType("quint4x2", 1, in_one=2), DType("quint2x4", 1, in_one=4),
        DType("bits16", 2),
        DType("bytes", 1, "raw"),
    )
}  # fmt: skip
"""By torch's name."""


class UnreadableError(Exception):
    """The file cannot be read as what it seemed to be. Carries the problem to report."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.problem = checkpoint_problem(code, message)


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
        return self.offset + -(-self.span // self.dtype.in_one) * self.dtype.itemsize

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
    problems: tuple[CheckpointProblem, ...] = ()
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
