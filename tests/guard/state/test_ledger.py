"""The ledger: one prepared list of buffers for the usual step, and everything that is not usual."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from nantrap.guard.state.ledger import Ledger

SETTLED = 8
"""After so many steps nothing is learned any more, and the prepared lists are used."""


class Holder(nn.Module):
    """A module with the buffers it is given; these are the names that the tests use."""

    first: Tensor
    second: Tensor
    mean: Tensor
    table: Tensor

    def __init__(self, **buffers: Tensor) -> None:
        super().__init__()
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)


def settled(module: nn.Module) -> Ledger:
    ledger = Ledger(module)
    for _ in range(SETTLED):
        ledger.capture()
    return ledger


def value_of(scalar: Tensor | None) -> float:
    assert scalar is not None
    return float(scalar)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("size", [1, 3, 17, 256, 4096])
def test_one_bad_value_shows_wherever_it_is(size: int, value: float) -> None:
    for position in {0, size // 2, size - 1}:
        module = Holder(first=torch.ones(5), second=torch.ones(size), count=torch.tensor(3))
        ledger = settled(module)
        assert math.isfinite(value_of(ledger.largest()))
        module.second[position] = value
        assert not math.isfinite(value_of(ledger.largest()))
        assert [name for name, _ in ledger.names_of_bad()] == ["second"]
        ledger.restore_buffers()
        assert torch.equal(module.second, torch.ones(size))
        assert math.isfinite(value_of(ledger.largest()))


def test_the_largest_finite_values_are_finite() -> None:
    ledger = settled(Holder(mask=torch.full((8, 8), torch.finfo(torch.float32).min)))
    assert math.isfinite(value_of(ledger.largest()))


def test_a_mask_that_was_infinite_from_the_start_is_left_out() -> None:
    module = Holder(mask=torch.full((4,), -math.inf), mean=torch.zeros(2))
    ledger = settled(module)
    assert value_of(ledger.largest()) == 0.0
    module.mean[1] = math.nan
    assert not math.isfinite(value_of(ledger.largest()))


def test_a_replaced_buffer_is_noticed_and_put_back() -> None:
    module = Holder(mean=torch.zeros(3))
    before = module.mean
    ledger = settled(module)
    module.mean = torch.tensor([0.0, math.nan, 0.0])
    assert not math.isfinite(value_of(ledger.largest()))
    ledger.restore_buffers()
    assert module.mean is before
    module.mean = torch.ones(3)
    ledger.capture()
    module.mean.fill_(math.nan)
    ledger.restore_buffers()
    assert torch.equal(module.mean, torch.ones(3))


def test_a_large_buffer_is_copied_when_it_was_written() -> None:
    module = Holder(table=torch.zeros(5000), mean=torch.zeros(3))
    ledger = settled(module)
    module.table[7] = 1.0
    ledger.capture()
    module.table[7] = math.nan
    assert not math.isfinite(value_of(ledger.largest()))
    ledger.restore_buffers()
    assert float(module.table[7]) == 1.0


def test_a_buffer_of_another_size_behind_the_same_tensor() -> None:
    module = Holder(mean=torch.zeros(3))
    ledger = settled(module)
    module.mean.data = torch.ones(1)
    ledger.capture()
    module.mean.fill_(math.nan)
    ledger.restore_buffers()
    assert torch.equal(module.mean, torch.ones(1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    module = Holder(mean=torch.zeros(3, dtype=dtype), other=torch.zeros(2))
    ledger = settled(module)
    assert math.isfinite(value_of(ledger.largest()))
    module.mean[1] = math.nan
    assert not math.isfinite(value_of(ledger.largest()))
    ledger.restore_buffers()
    assert math.isfinite(value_of(ledger.largest()))


def test_nothing_to_look_at() -> None:
    assert settled(Holder(count=torch.tensor(1))).largest() is None
