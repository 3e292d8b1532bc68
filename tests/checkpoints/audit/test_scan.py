"""What the scan sees is what is there, however the chunks fall."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nantrap.checkpoints.audit.scan as scanning
from nantrap.checkpoints.audit.contents import DTYPES, Extent, StoredTensor, row_major
from nantrap.checkpoints.audit.files import BytesSource
from nantrap.checkpoints.audit.scan import ExtentGroup, TensorScan, jobs_of, scan, share
from nantrap.checkpoints.audit.tally import Rough
from nantrap.finite import dtype_name, first_nonfinite_index, tensor_stats

FLOATS = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e5m2,
    torch.complex64,
    torch.complex128,
]
BAD = [torch.nan, torch.inf, -torch.inf]


def scan_tensor(tensor: torch.Tensor, *, workers: int = 1, rough: Rough = "never") -> TensorScan:
    flat = tensor.contiguous().reshape(-1)
    source = BytesSource(flat.view(torch.uint8).numpy().tobytes(), name="t")
    stored = StoredTensor(("t",), DTYPES[dtype_name(tensor.dtype)], tuple(tensor.shape), row_major(tuple(tensor.shape)))
    result = scan(
        [Extent(source, 0, source.size, "t", (stored,))], verify=True, workers=workers, rough=lambda tensor: rough
    )
    assert not result.problems
    return result.tensors[0]


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(FLOATS),
    st.integers(1, 40),
    st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(BAD)), max_size=5),
    st.sampled_from([0, 1 << 20]),
)
def test_counts_and_first_index_agree_with_the_exact_statistics(
    dtype: torch.dtype, rows: int, planted: list[tuple[int, float]], small: int
) -> None:
    tensor = torch.linspace(-1, 1, rows * 7).reshape(rows, 7).to(dtype)
    for position, value in planted:
        tensor.view(-1)[position % tensor.numel()] = value
    with pytest.MonkeyPatch.context() as patch:
        # chunks of 64 bytes, in pieces of three of them, for two workers; without this all would fit into one group
        patch.setattr(scanning, "_CHUNK_BYTES", 64)
        patch.setattr(scanning, "PIECE_BYTES", 192)
        patch.setattr(scanning, "_SMALL_BYTES", small)
        result = scan_tensor(tensor, workers=2)
    exact = tensor_stats(tensor)
    assert result.first_index == first_nonfinite_index(tensor)
    if exact.nonfinite == 0:
        assert result.stats is None
        assert (result.low, result.high) == (exact.min, exact.max)
    else:
        assert result.stats is not None
        assert (result.stats.nan, result.stats.posinf, result.stats.neginf) == (exact.nan, exact.posinf, exact.neginf)


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    st.sampled_from(["positive", "always"]),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 699), st.sampled_from([*BAD, -1.0, -3.0, 2e19, -3e38, 1.7e19, 0.0])), max_size=4),
)
def test_what_is_only_filtered_misses_nothing(
    dtype: torch.dtype, rough: Rough, constant: bool, planted: list[tuple[int, float]]
) -> None:
    """Non-finite values, signs, absurd magnitudes and constant tensors come out as by the exact look."""
    tensor = torch.ones(700, dtype=dtype) if constant else torch.linspace(0.5, 2, 700).to(dtype)
    for position, value in planted:
        tensor[position] = value
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanning, "_CHUNK_BYTES", 64)
        patch.setattr(scanning, "PIECE_BYTES", 640)
        patch.setattr(scanning, "_SMALL_BYTES", 0)
        seen, exact = scan_tensor(tensor, workers=2, rough=rough), scan_tensor(tensor, workers=2)
    assert (seen.stats, seen.first_index, seen.is_constant) == (exact.stats, exact.first_index, exact.is_constant)
    if exact.stats is None:
        assert (seen.low < 0) == (exact.low < 0)
        limit = 2**64 * (1 - 2**-24)  # the root of float32's largest value, about 1.8e19
        for one, other in ((seen.low, exact.low), (seen.high, exact.high)):
            assert one == other or max(abs(one), abs(other)) < limit
        if rough == "positive" and exact.low < 0:
            assert seen.low == exact.low


def test_many_extents_over_several_workers() -> None:
    tensors = [torch.full((1000,), float(i)) for i in range(50)]
    tensors[37][999] = torch.nan
    raw = b"".join(t.numpy().tobytes() for t in tensors)
    source = BytesSource(raw, name="x")
    extents = [
        Extent(source, i * 4000, 4000, str(i), (StoredTensor((str(i),), DTYPES["float32"], (1000,), (1,)),))
        for i in range(50)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanning, "GROUP_BYTES", 9000)
        result = scan(extents, verify=True, workers=4)
    assert [scanned.tensor.name for scanned in result.tensors] == [str(i) for i in range(50)]
    bad = [scanned for scanned in result.tensors if scanned.stats]
    assert [(b.tensor.name, b.first_index) for b in bad] == [("37", (999,))]
    assert result.tensors[12].is_constant


def test_several_tensors_in_one_storage_and_a_strided_view() -> None:
    base = torch.arange(40.0)
    base[7] = torch.nan
    source = BytesSource(base.numpy().tobytes(), name="x")
    views = (
        StoredTensor(("head",), DTYPES["float32"], (5,), (1,), 0),
        StoredTensor(("tail",), DTYPES["float32"], (4, 5), (1, 4), 20 * 4),
        StoredTensor(("even",), DTYPES["float32"], (20,), (2,), 0),
        StoredTensor(("odd",), DTYPES["float32"], (20,), (2,), 4),
    )
    head, tail, even, odd = scan([Extent(source, 0, 160, "x", views)], verify=True).tensors
    assert (head.low, head.high, head.stats) == (0.0, 4.0, None)
    assert (tail.low, tail.high) == (20.0, 39.0)
    assert even.stats is None  # the NaN lies between its elements
    assert odd.stats is not None
    assert (odd.stats.nan, odd.first_index) == (1, (3,))


def test_the_index_of_a_transposed_tensor() -> None:
    base = torch.zeros(3, 4)
    base[2, 1] = torch.inf
    source = BytesSource(base.numpy().tobytes(), name="x")
    stored = StoredTensor(("t",), DTYPES["float32"], (4, 3), (1, 4))
    result = scan([Extent(source, 0, 48, "x", (stored,))], verify=True).tensors[0]
    assert result.first_index == (1, 2)


def test_a_wrong_crc_names_the_tensor() -> None:
    source = BytesSource(bytes(16), name="x")
    stored = StoredTensor(("model", "weight"), DTYPES["float32"], (4,), (1,))
    extent = Extent(source, 0, 16, "a/data/0", (stored,), crc32=1)
    problem = scan([extent], verify=True).problems[0]
    assert (problem.code, problem.tensor) == ("NT908", "model.weight")
    assert problem.message == "a/data/0 does not match its CRC-32: bytes were changed after they were saved"
    assert not scan([extent], verify=False).problems


def test_integers_are_not_read_without_verification(tmp_path: Path) -> None:
    read: list[int] = []
    source = BytesSource(bytes(80), name="x")
    stored = StoredTensor(("t",), DTYPES["int64"], (10,), (1,))
    scan([Extent(source, 0, 80, "x", (stored,), crc32=0)], verify=False, on_bytes=read.append)
    assert not read


# ---- every byte is in exactly one job, and thousands of small tensors are looked at as exactly as one


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), max_size=40), st.integers(1, 4))
def test_every_byte_is_in_one_job(layout: list[tuple[int, int]], workers: int) -> None:
    source = BytesSource(bytes(20_000), name="x")
    extents, position = [], 0
    for size, gap in layout:
        extents.append(Extent(source, position, size, str(position)))
        position += size + gap
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanning, "PIECE_BYTES", 130)
        patch.setattr(scanning, "GROUP_BYTES", 200)
        patch.setattr(scanning, "_SMALL_BYTES", 60)
        patch.setattr(scanning, "_GAP_BYTES", 40)
        made = list(jobs_of(extents))
        assert [job for batch in share(made, workers) for job in batch] == made
    pieces = []
    for job in made:
        assert job.size <= 200
        if isinstance(job, ExtentGroup):
            pieces += [(e.offset, e.offset + e.size) for e in job.extents]
        else:
            pieces.append((job.extent.offset + job.begin, job.extent.offset + job.end))
    seen = [byte for begin, end in pieces for byte in range(begin, end)]
    assert seen == [byte for e in extents for byte in range(e.offset, e.offset + e.size)]


FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.complex64]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(FLOATS), st.integers(0, 9), st.integers(0, 20), st.sampled_from([0.0, 1.5, torch.nan])
        ),
        min_size=1,
        max_size=30,
    )
)
def test_small_tensors_side_by_side(layout: list[tuple[torch.dtype, int, int, float]]) -> None:
    """Any dtypes, any gaps between them (full of bytes that are NaN in every dtype), any alignment."""
    raw, extents, tensors = bytearray(), [], []
    for number, (dtype, count, gap, planted) in enumerate(layout):
        raw += b"\xff" * gap
        tensor = torch.arange(1, count + 1).to(torch.float32).to(dtype)
        if count:
            tensor[count // 2] = planted
        data = tensor.view(torch.uint8).numpy().tobytes() if count else b""
        stored = StoredTensor((str(number),), DTYPES[dtype_name(dtype)], (count,), row_major((count,)))
        extents.append((len(raw), len(data), stored, zlib.crc32(data)))
        tensors.append(tensor)
        raw += data
    source = BytesSource(bytes(raw), name="x")
    result = scan([Extent(source, at, size, t.name, (t,), crc) for at, size, t, crc in extents], verify=True)
    assert not result.problems
    expected = [tensor for tensor in tensors if tensor.numel()]
    assert len(result.tensors) == len(expected)
    for seen, tensor in zip(result.tensors, expected, strict=True):
        exact = tensor_stats(tensor)
        assert (seen.stats.nan if seen.stats else 0) == exact.nan
        assert seen.first_index == first_nonfinite_index(tensor)
        if exact.min is not None:
            assert (seen.low, seen.high) == (exact.min, exact.max)


def test_one_flipped_bit_among_many_small_extents() -> None:
    raw = bytearray(torch.rand(3000).numpy().tobytes())
    whole = bytes(raw)
    raw[5 * 12 + 3] ^= 1
    source = BytesSource(bytes(raw), name="x")
    extents = [
        Extent(source, i * 12, 12, str(i), (StoredTensor((str(i),), DTYPES["float32"], (3,), (1,)),),
               zlib.crc32(whole[i * 12 : i * 12 + 12]))
        for i in range(1000)
    ]  # fmt: skip
    assert [problem.tensor for problem in scan(extents, verify=True).problems] == ["5"]


def test_a_group_that_is_cut_short() -> None:
    source = BytesSource(bytes(20), name="x")
    extents = [
        Extent(source, i * 12, 12, f"r{i}", (StoredTensor((str(i),), DTYPES["float32"], (3,), (1,)),)) for i in range(2)
    ]
    result = scan(extents, verify=True)
    assert [seen.tensor.name for seen in result.tensors] == ["0"]
    assert [p.message for p in result.problems] == ["the file became shorter while it was read: r1 is not whole"]


@pytest.mark.parametrize("workers", [1, 3])
def test_one_large_tensor_is_shared_and_its_checksum_put_together(workers: int) -> None:
    values = torch.rand(3_000_000)
    values[2_500_000] = torch.inf
    raw = values.numpy().tobytes()
    source = BytesSource(raw, name="x")
    stored = StoredTensor(("w",), DTYPES["float32"], (3000, 1000), (1000, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanning, "PIECE_BYTES", 5 << 20)
        whole = Extent(source, 0, len(raw), "w", (stored,), zlib.crc32(raw))
        assert len(list(jobs_of([whole]))) == 3
        result = scan([whole], verify=True, workers=workers)
        assert not result.problems
        (seen,) = result.tensors
        assert seen.first_index == (2500, 0)
        wrong = Extent(source, 0, len(raw), "w", (stored,), zlib.crc32(raw) ^ 1)
        assert [problem.code for problem in scan([wrong], verify=True, workers=workers).problems] == ["NT908"]
