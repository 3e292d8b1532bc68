"""Every byte is in exactly one job, and thousands of small tensors are looked at as exactly as one."""

from __future__ import annotations

import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nantrap.checkpoints.audit import jobs
from nantrap.checkpoints.audit.contents import Extent, StoredTensor, row_major
from nantrap.checkpoints.audit.dtypes import DTYPES
from nantrap.checkpoints.audit.jobs import Group, jobs_of, share
from nantrap.checkpoints.audit.scan import scan
from nantrap.checkpoints.audit.source import BytesSource
from nantrap.finite import dtype_name, first_nonfinite_index, tensor_stats


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), max_size=40), st.integers(1, 4))
def test_every_byte_is_in_one_job(layout: list[tuple[int, int]], workers: int) -> None:
    source = BytesSource(bytes(20_000), name="x")
    extents, position = [], 0
    for size, gap in layout:
        extents.append(Extent(source, position, size, str(position)))
        position += size + gap
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "PIECE_BYTES", 130)
        patch.setattr(jobs, "GROUP_BYTES", 200)
        patch.setattr(jobs, "_SMALL_BYTES", 60)
        patch.setattr(jobs, "_GAP_BYTES", 40)
        made = list(jobs_of(extents))
        assert [job for batch in share(made, workers) for job in batch] == made
    pieces = []
    for job in made:
        assert job.size <= 200
        if isinstance(job, Group):
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
        patch.setattr(jobs, "PIECE_BYTES", 5 << 20)
        whole = Extent(source, 0, len(raw), "w", (stored,), zlib.crc32(raw))
        assert len(list(jobs_of([whole]))) == 3
        result = scan([whole], verify=True, workers=workers)
        assert not result.problems
        (seen,) = result.tensors
        assert seen.first_index == (2500, 0)
        wrong = Extent(source, 0, len(raw), "w", (stored,), zlib.crc32(raw) ^ 1)
        assert [problem.code for problem in scan([wrong], verify=True, workers=workers).problems] == ["NT908"]
