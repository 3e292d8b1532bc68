"""The maps: buildings block, distance fades, and a batch depends on its number alone."""

from __future__ import annotations

import math

import torch

from nantrap_systems.radiodiff.data import FALL, Maps, radio_maps, scaled
from nantrap_systems.radiodiff.settings import DataSettings


def test_a_building_is_0_and_the_transmitter_is_in_the_open() -> None:
    towns = radio_maps(20)
    assert towns.gains.shape == (20, 64, 64)
    assert towns.gains.dtype == torch.uint8
    assert (towns.gains[towns.buildings > 0] == 0).all()
    brightest = towns.gains.flatten(1).argmax(1)
    assert (towns.transmitters.flatten(1).gather(1, brightest[:, None]) == 255).all()
    assert (towns.buildings.flatten(1).gather(1, brightest[:, None]) == 0).all()
    assert (towns.gains.flatten(1).max(1).values == 255).all()


def test_the_gain_falls_with_the_logarithm_of_the_distance_and_with_walls() -> None:
    towns = radio_maps(40, seed=3)
    gains, checked = scaled(towns.gains), 0
    for town in range(40):
        spot = towns.transmitters[town].nonzero()
        if len(spot) < 9:
            continue  # cut off by the edge, so that its middle is not the transmitter
        row, column = spot.float().mean(0).long().tolist()
        rows, columns = torch.meshgrid(torch.arange(64), torch.arange(64), indexing="ij")
        distance = ((rows - row) ** 2 + (columns - column) ** 2).double().sqrt().clamp(min=1)
        open_field = 1 + FALL * distance.log10()
        free = towns.buildings[town] == 0
        assert (gains[town][free] <= open_field[free] + 0.003).all(), "a wall never helps"
        checked += 1
        shadowed = gains[town][free] < open_field[free] - 0.05
        assert shadowed.any(), "and somewhere one is in the way"
    assert checked > 30


def test_maps_are_scaled_and_the_condition_is_buildings_transmitter_buildings() -> None:
    maps = Maps(DataSettings(maps=34))
    assert len(maps.training.image) == 32
    assert len(maps.held_out.image) == 2
    assert maps.training.image.min() == -1
    assert maps.training.image.max() == 1
    buildings, transmitter, again = maps.training.condition.unbind(1)
    assert torch.equal(buildings, again)
    assert set(transmitter.unique().tolist()) == {0.0, 1.0}
    assert (transmitter.sum((1, 2)) <= 9).all()


def test_a_batch_depends_on_its_number_and_seed_alone() -> None:
    maps = Maps(DataSettings(maps=34))
    first = maps.batch(5, size=4, seed=1)
    torch.manual_seed(99)
    again, other = maps.batch(5, size=4, seed=1), maps.batch(6, size=4, seed=1)
    assert torch.equal(first.image, again.image)
    assert not torch.equal(first.image, other.image)
    assert math.isclose(float(scaled(torch.tensor(255, dtype=torch.uint8))), 1.0)
