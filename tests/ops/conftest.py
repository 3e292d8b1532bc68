"""What the tests of `nantrap.ops` share: distance in ulps, a counter of host reads, one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

torch.set_num_threads(1)

Ulps = Callable[..., float]


def ulps_between(actual: Tensor, exact: Tensor, *, scale: float = 0.0) -> float:
    """The largest distance between `actual` and the float64 tensor `exact`, in units of the last place.

    The unit is that of the exact value in `actual`'s dtype, or of `scale` where that is larger: a sum of terms near 1
    that cancel cannot be nearer than the terms are. Where the exact value overflows the dtype, Inf is right; NaN is
    right only where the exact value is NaN.
    """
    assert exact.dtype == torch.float64
    assert actual.shape == exact.shape
    info = torch.finfo(actual.dtype)
    got = actual.detach().double()
    rounded = exact.to(actual.dtype).double()
    assert torch.equal(got.isnan(), exact.isnan()), f"NaN in the wrong places: {actual} for {exact}"
    same = (got == rounded) | got.isnan()
    spacing = torch.ldexp(torch.full_like(exact, info.eps), torch.frexp(exact.abs().clamp(min=scale)).exponent - 1)
    spacing = spacing.clamp(min=info.tiny * info.eps)
    # an infinity on one side only is measured from the largest finite number
    distance = (got.clamp(info.min, info.max) - exact.clamp(info.min, info.max)).abs() / spacing.nan_to_num(1.0)
    return float(distance.masked_fill(same, 0.0).max()) if distance.numel() else 0.0


class _Reads(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@contextmanager
def _host_reads() -> Iterator[_Reads]:
    with _Reads() as mode:
        yield mode


@pytest.fixture(scope="session")
def ulps() -> Ulps:
    return ulps_between


@pytest.fixture(scope="session")
def host_reads() -> Callable[[], AbstractContextManager[_Reads]]:
    return _host_reads


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
