"""Exact statistics, against a naive reference in plain Python."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nantrap import finite


@given(st.lists(st.floats(width=32), max_size=40))
def test_against_plain_python(values: list[float]) -> None:
    stats = finite.tensor_stats(torch.tensor(values, dtype=torch.float32))
    good = [value for value in values if math.isfinite(value)]
    assert stats.numel == len(values)
    assert stats.nan == sum(map(math.isnan, values))
    assert stats.posinf == values.count(math.inf)
    assert stats.neginf == values.count(-math.inf)
    assert stats.zeros == values.count(0.0)
    assert stats.nonfinite == len(values) - len(good)
    if not good:
        assert (stats.min, stats.max, stats.mean, stats.absmax, stats.headroom_bits) == (None,) * 5
        return
    assert (stats.min, stats.max, stats.absmax) == (min(good), max(good), max(map(abs, good)))
    assert stats.mean == pytest.approx(math.fsum(good) / len(good), rel=1e-9, abs=1e-6 * max(map(abs, good)))


@given(st.integers(1, 200), st.integers(1, 64))
def test_in_pieces_as_in_one(size: int, piece: int) -> None:
    values = torch.randn(size, generator=torch.Generator().manual_seed(size))
    values[size // 2] = math.nan
    whole = finite.tensor_stats(values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nantrap.finite.stats._CHUNK", piece)
        assert finite.tensor_stats(values).nan == whole.nan == 1
        assert finite.tensor_stats(values).absmax == whole.absmax


@pytest.mark.parametrize(
    ("dtype", "limit"),
    [(torch.float16, 65504.0), (torch.float32, 3.4028234663852886e38), (torch.float8_e5m2, 57344.0)],
)
def test_headroom_counts_doublings(dtype: torch.dtype, limit: float) -> None:
    assert finite.limit_of(dtype) == limit
    stats = finite.tensor_stats(torch.tensor([limit / 8, 1.0]).to(dtype))
    assert stats.headroom_bits == 3.0
    assert finite.headroom_bits(0.0, dtype) is None
    assert finite.headroom_bits(None, dtype) is None
    assert finite.headroom_bits(5.0, torch.int64) is None


def test_layouts_and_dtypes() -> None:
    assert finite.tensor_stats(torch.empty(2, 3, device="meta")).numel == 6
    assert finite.tensor_stats(torch.empty(0)).numel == 0
    integers = finite.tensor_stats(torch.tensor([[3, 0], [-7, 2]]))
    assert (integers.min, integers.max, integers.zeros, integers.absmax) == (-7.0, 3.0, 1, 7.0)
    assert finite.tensor_stats(torch.tensor([True, False])).zeros == 1
    bad = finite.tensor_stats(torch.tensor([complex(math.nan, 1), complex(0, math.inf)]))
    assert (bad.shape, bad.nan, bad.posinf) == ((2,), 1, 1)
    sparse = finite.tensor_stats(torch.sparse_coo_tensor(torch.tensor([[1]]), [math.nan], (5,)))
    assert (sparse.shape, sparse.nan) == ((5,), 1)
    assert finite.tensor_stats(torch.zeros(6, 4).T).shape == (4, 6)
    parameter = torch.nn.Parameter(torch.ones(2))
    assert finite.tensor_stats(parameter).mean == 1.0


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.data())
def test_first_bad_place(a: int, b: int, c: int, data: st.DataObject) -> None:
    tensor = torch.zeros(a, b, c)
    assert finite.first_nonfinite_index(tensor) is None
    places = data.draw(
        st.lists(st.tuples(st.integers(0, a - 1), st.integers(0, b - 1), st.integers(0, c - 1)), min_size=1, max_size=3)
    )
    for place in places:
        tensor[place] = math.inf
    assert finite.first_nonfinite_index(tensor) == min(places)
    permuted = tensor.permute(2, 0, 1)
    assert finite.first_nonfinite_index(permuted) == min((k, i, j) for i, j, k in places)


def test_first_bad_place_of_other_layouts() -> None:
    assert finite.first_nonfinite_index(torch.tensor(math.nan)) == ()
    assert finite.first_nonfinite_index(torch.tensor([1 + 0j, complex(0, math.nan)])) == (1,)
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 3], [1, 2]]), [1.0, math.nan], (5, 4))
    assert finite.first_nonfinite_index(sparse) == (3, 2)
    assert finite.first_nonfinite_index(torch.arange(3)) is None


def test_what_it_says() -> None:
    def says(values: list[float]) -> str:
        return finite.tensor_stats(torch.tensor(values)).describe()

    assert says([1.0, math.nan]) == "1 of 2 values is NaN"
    assert says([math.nan] * 3) == "3 of 3 values are NaN"
    assert says([1.0, math.inf, -math.inf, -math.inf]) == "1 of 4 values is +Inf, 2 are -Inf"
    assert says([1.0, -2.5]) == "2 finite values, absmax 2.5"
    assert says([]) == "0 values"


@pytest.mark.filterwarnings("ignore:Sparse")
def test_the_memory_of_a_sparse_tensor_is_that_of_its_stored_values() -> None:
    dense = torch.zeros(100, 100)
    dense[3, 4] = dense[5, 6] = 1.0
    assert finite.size_in_bytes(dense) == 40_000
    assert finite.size_in_bytes(dense.to_sparse()) == 2 * 4 + 2 * 2 * 8
    assert finite.size_in_bytes(dense.to_sparse_csr()) < 100
    assert finite.size_in_bytes(torch.zeros(0)) == 0
