"""The random streams are captured cheaply in every step; whatever was drawn in between must not be missed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from nantrap.locate import RngState
from nantrap.locate.replay.rng import rewound

DRAWS: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "python": random.random,
    "python, a whole block of words": lambda: [random.getrandbits(32) for _ in range(624)],
    "python, a normal value": lambda: random.gauss(0.0, 1.0),
    "python, a new seed": lambda: random.seed(7),
    "numpy": np.random.rand,
    "numpy, a whole block of words": lambda: np.random.randint(0, 2**32, 624, dtype=np.uint32),
    "numpy, a normal value": np.random.randn,
    "numpy, a new seed": lambda: np.random.seed(7),
    "torch": lambda: torch.rand(3),
}


@pytest.fixture(autouse=True)
def same_streams() -> Iterator[None]:
    """Every test begins with the same streams, and leaves those of the others alone."""
    before = RngState.capture()
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    yield
    before.restore()


def next_values() -> tuple[float, ...]:
    """What each stream gives next: plain values, and normal ones, of which two are made at once."""
    return (
        random.random(),
        random.gauss(0.0, 1.0),
        float(np.random.rand()),
        float(np.random.randn()),
        float(torch.rand(())),
    )


@pytest.mark.parametrize("name", DRAWS)
def test_a_captured_state_gives_the_same_values_again(name: str) -> None:
    RngState.capture()
    DRAWS[name]()
    state = RngState.capture()
    expected = next_values()
    state.restore()
    assert next_values() == expected


@pytest.mark.parametrize("draw", [lambda: random.gauss(0.0, 1.0), np.random.randn])
def test_the_second_of_two_normal_values_counts_as_drawn(draw: Callable[[], object]) -> None:
    draw()  # makes two values and keeps one
    RngState.capture()
    draw()  # the one that was kept: the generator's words do not change
    state = RngState.capture()
    expected = next_values()
    state.restore()
    assert next_values() == expected


def test_a_replaced_generator_of_numpy_is_captured() -> None:
    numpy: Any = np.random  # its declarations lack these two
    kept = numpy.get_bit_generator()
    try:
        numpy.set_bit_generator(np.random.PCG64(5))
        state = RngState.capture()
        expected = np.random.rand(3).tolist()
        state.restore()
        assert np.random.rand(3).tolist() == expected
    finally:
        numpy.set_bit_generator(kept)


@pytest.mark.parametrize("before", [0, 1, 623, 624, 5000])
@pytest.mark.parametrize("count", [3, 624, 7001])
def test_a_generator_goes_back_by_as_many_draws_as_were_made_since(before: int, count: int) -> None:
    generator = torch.Generator().manual_seed(11)
    torch.rand(before, generator=generator)
    first = torch.rand(count, generator=generator)
    found = generator.get_state()
    torch.rand(count, generator=generator)
    state = rewound(found, generator.get_state())
    assert state is not None
    generator.set_state(state)
    assert torch.equal(torch.rand(count, generator=generator), first)
    assert torch.equal(generator.get_state(), found)


def test_a_normal_value_that_is_kept_for_the_next_draw_cannot_be_taken_back() -> None:
    generator = torch.Generator().manual_seed(11)
    torch.randn(3, generator=generator)
    found = generator.get_state()
    torch.randn(4, generator=generator)
    assert rewound(found, generator.get_state()) is None
