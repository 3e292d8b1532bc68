"""Is anything non-finite: every dtype and layout, values planted anywhere, without a host read."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nantrap import finite

NAN, INF = math.nan, math.inf
FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
FLOAT8 = [torch.float8_e5m2, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("size", [1, 7, 16_384, 16_385, 70_000])
def test_floats(dtype: torch.dtype, value: float, size: int) -> None:
    clean = torch.linspace(-100, 100, size, dtype=torch.float32).to(dtype)
    assert not finite.any_nonfinite([clean])
    for place in {0, size // 2, size - 1}:
        bad = clean.clone()
        bad[place] = value
        assert finite.any_nonfinite([bad])
        assert finite.any_nonfinite([clean, None, bad, clean])


@given(
    st.integers(1, 20_000),
    st.integers(0, 10**9),
    st.sampled_from([NAN, INF, -INF]),
    st.sampled_from(FLOATS),
    st.booleans(),
)
def test_one_value_planted_anywhere(size: int, seed: int, value: float, dtype: torch.dtype, strided: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(size, generator=generator, dtype=torch.float32).to(dtype)
    if strided:
        values = torch.stack([values, torch.full_like(values, NAN)], dim=1)[
            :, 0
        ]  # the NaN next to it is not part of the tensor
    assert not finite.any_nonfinite([values])
    values = values.clone() if not strided else values
    values[seed % size] = value
    assert finite.any_nonfinite([values])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_largest_and_the_smallest_numbers_are_finite(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    assert not finite.any_nonfinite([torch.tensor([limits.max, limits.min, limits.tiny, -0.0], dtype=dtype)])


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_float8(dtype: torch.dtype) -> None:
    values = torch.tensor([0.5, -2.0, 16.0]).to(dtype)
    assert not finite.any_nonfinite([values])
    bad = torch.tensor([0.5, NAN, 16.0]).to(dtype)
    assert finite.any_nonfinite([bad])
    if dtype == torch.float8_e5m2:
        assert finite.any_nonfinite([torch.tensor([INF]).to(dtype)])


def test_every_bit_pattern_of_float8() -> None:
    for dtype in (*FLOAT8, *([torch.float8_e8m0fnu] if hasattr(torch, "float8_e8m0fnu") else [])):
        for pattern in range(256):
            value = torch.tensor([pattern], dtype=torch.uint8).view(dtype)
            assert finite.any_nonfinite([value]) is not bool(value.float().isfinite().all()), (dtype, pattern)


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this torch has no float4")
def test_packed_float4_has_no_nan_to_look_for() -> None:
    packed = torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert not finite.any_nonfinite([packed])


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.parametrize("value", [complex(NAN, 0), complex(0, INF), complex(-INF, NAN)])
def test_complex(dtype: torch.dtype, value: complex) -> None:
    clean = torch.ones(5, dtype=dtype)
    assert not finite.any_nonfinite([clean])
    bad = clean.clone()
    bad[3] = torch.tensor(value)
    assert finite.any_nonfinite([bad])
    assert finite.any_nonfinite([bad.conj()])
    assert finite.any_nonfinite([bad.view(1, 5).mH])


def test_what_cannot_be_non_finite() -> None:
    assert not finite.any_nonfinite([])
    assert not finite.any_nonfinite([None])
    assert not finite.any_nonfinite([torch.empty(0), torch.empty(3, 0, 2, dtype=torch.float16)])
    assert not finite.any_nonfinite([torch.arange(5), torch.tensor([True]), torch.tensor([255], dtype=torch.uint8)])
    assert not finite.any_nonfinite([torch.empty(3, device="meta")])


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["coo", "uncoalesced", "csr", "csc", "bsr"])
def test_sparse(layout: str) -> None:
    def make(value: float) -> Tensor:
        dense = torch.zeros(4, 4)
        dense[1, 2], dense[3, 0] = 1.0, value
        if layout == "uncoalesced":
            return torch.sparse_coo_tensor(torch.tensor([[1, 1], [2, 2]]), [1.0, value], (4, 4))
        if layout == "coo":
            return dense.to_sparse()
        if layout == "bsr":
            return dense.to_sparse_bsr((2, 2))
        return dense.to_sparse_csr() if layout == "csr" else dense.to_sparse_csc()

    assert not finite.any_nonfinite([make(2.0)])
    assert finite.any_nonfinite([make(NAN)])
    assert finite.any_nonfinite([make(INF)])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested(layout: torch.layout) -> None:
    good = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=layout)
    bad = torch.nested.nested_tensor([torch.ones(2, 3), torch.full((4, 3), NAN)], layout=layout)
    assert not finite.any_nonfinite([good])
    assert finite.any_nonfinite([bad])


def test_views() -> None:
    base = torch.zeros(6, 8)
    base[2, 5] = NAN
    assert finite.any_nonfinite([base.T])
    assert finite.any_nonfinite([base[::2]])
    assert finite.any_nonfinite([base[2:3, 5:6].expand(3, 4)])
    assert not finite.any_nonfinite([base[:2], base[:, :5], base[1::2]])
    large = torch.zeros(300, 300)
    large[299, 0] = INF
    assert finite.any_nonfinite([large.T[:, ::1]])
    assert not finite.any_nonfinite([large.T[1:]])


def test_parameters_that_need_gradients() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    flag = finite.nonfinite_flag([parameter, parameter * 2])
    assert not flag.requires_grad


@pytest.fixture
def one_process(tmp_path: Path) -> Any:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("one_process")
def test_dtensor() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1,))
    good = distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)])
    bad = distribute_tensor(torch.tensor([[1.0, NAN], [1.0, 1.0]]), mesh, [Shard(0)])
    assert not finite.any_nonfinite([good])
    assert finite.any_nonfinite([good, bad])
    assert finite.tensor_stats(bad).nan == 1
    norm = finite.gradient_norm([good])
    assert not hasattr(norm, "to_local")
    assert float(norm) == pytest.approx(math.sqrt(8))
    assert finite.exact_norm([good]) == pytest.approx(math.sqrt(8))


class Dispatched(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


def test_the_flag_is_not_read() -> None:
    tensors = [torch.randn(5), torch.randn(50_000), torch.randn(4).half(), torch.randn(3, dtype=torch.cfloat)]
    with Dispatched() as dispatched:
        flag = finite.nonfinite_flag(tensors)
        norm = finite.gradient_norm([t for t in tensors if t.dtype == torch.float32])
    assert dispatched.seen["aten._local_scalar_dense.default"] == 0
    assert dispatched.seen["aten.equal.default"] == 0
    assert (flag.dtype, flag.shape, float(flag)) == (torch.float32, (), 0.0)
    assert norm.shape == ()
    with Dispatched() as dispatched:
        torch.ones(()).item()
    assert dispatched.seen["aten._local_scalar_dense.default"] == 1  # it can count


def test_a_thousand_small_tensors_take_few_operations() -> None:
    tensors = [torch.randn(16) for _ in range(1000)]
    with Dispatched() as dispatched:
        finite.nonfinite_flag(tensors)
    assert dispatched.seen["aten.aminmax.default"] == 1


@given(st.lists(st.floats(width=32), min_size=1, max_size=8))
def test_read_brings_every_scalar_as_it_is(values: list[float]) -> None:
    read = finite.read([torch.tensor(value, dtype=torch.float32) for value in values])
    assert all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(read, values, strict=True))


def test_read_mixes_dtypes() -> None:
    scalars = [torch.tensor(1.5), torch.tensor(3), torch.tensor(2.5, dtype=torch.float64), torch.tensor(0.5).half()]
    assert finite.read(scalars) == [1.5, 3.0, 2.5, 0.5]
