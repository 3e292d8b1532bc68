"""The data: radio maps of little towns, kept as a PNG would keep them, in bytes.

A town is a grid with 8 rectangles for buildings and a transmitter on a free cell. The gain of a free cell falls with
the logarithm of its distance and with every cell of wall on the straight ray, clipped to [0, 1]; in a building it is 0.
The model sees the map scaled to [-1, 1], and as its condition buildings, transmitter and buildings again, in [0, 1].

radio_maps     buildings, transmitters and gains of a number of towns, from a seed
Batch          what a step trains on
Maps           all towns, split in two, with batches by the number of the step
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from nantrap_systems.radiodiff.settings import DataSettings

DECIBELS = 80.0
"""What a gain of 1 means: from the noise floor to the transmitter."""
BUILDINGS = 8
RAY_POINTS = 24
NEAR, FALL, WALL = 1.0, -0.42, -0.04
"""gain = NEAR + FALL · log10(distance) + WALL · (cells of wall on the ray)."""


class Towns(NamedTuple):
    """Buildings, transmitters and gains [N, S, S], as bytes: 255 is a building, a transmitter, a gain of 1."""

    buildings: Tensor
    transmitters: Tensor
    gains: Tensor


class Batch(NamedTuple):
    """Maps [B, 1, S, S] in [-1, 1] and conditions [B, 3, S, S] in [0, 1]."""

    image: Tensor
    condition: Tensor


def radio_maps(count: int, *, size: int = 64, seed: int = 0) -> Towns:
    """A number of towns, always the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    cells = torch.arange(size)
    low = torch.randint(0, size - 4, (count, BUILDINGS, 2), generator=generator)
    extent = torch.randint(4, max(size // 4, 5), (count, BUILDINGS, 2), generator=generator)
    inside = (cells >= low[..., None]) & (cells < (low + extent)[..., None])  # [N, 8, 2, S]: by row and by column
    built = (inside[:, :, 0, :, None] & inside[:, :, 1, None, :]).any(1)
    chance = torch.rand(count, size * size, generator=generator).masked_fill(built.flatten(1), -1.0)
    mast = chance.argmax(1)
    row, column = mast // size, mast % size
    down, right = (
        cells[None, :, None] - row[:, None, None],
        cells[None, None, :] - column[:, None, None],
    )
    distance = torch.sqrt(down.double() ** 2 + right.double() ** 2)
    walls = torch.zeros(count, size, size, dtype=torch.float64)
    town = torch.arange(count)[:, None, None]
    for part in torch.linspace(0, 1, RAY_POINTS).tolist():
        walls += built[
            town,
            (row[:, None, None] + part * down).round().long(),
            (column[:, None, None] + part * right).round().long(),
        ]
    gain = NEAR + FALL * distance.clamp(min=1).log10() + WALL * walls / RAY_POINTS * distance
    gain = gain.clamp(0, 1).masked_fill(built, 0.0)
    masts = (down.abs() <= 1) & (right.abs() <= 1)
    return Towns(255 * built.to(torch.uint8), 255 * masts.to(torch.uint8), (255 * gain).round().to(torch.uint8))


def scaled(pixels: Tensor) -> Tensor:
    """Bytes as numbers in [0, 1]."""
    return pixels.float() / 255


class Maps:
    """All towns, split into those to train on and, every seventeenth, those held out."""

    def __init__(self, settings: DataSettings) -> None:
        towns = _towns(settings.maps, settings.image_size)
        held_out = torch.arange(settings.maps) % 17 == 0
        self.training = _batch(Towns(*(part[~held_out] for part in towns)))
        self.held_out = _batch(Towns(*(part[held_out] for part in towns)))

    def batch(self, number: int, *, size: int, seed: int) -> Batch:
        """The batch of this number: always the same for the same seed."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
        chosen = torch.randint(len(self.training.image), (size,), generator=generator)
        return Batch(*(part[chosen] for part in self.training))


def _batch(towns: Towns) -> Batch:
    buildings, transmitters, gains = (scaled(part) for part in towns)
    return Batch(2 * gains[:, None] - 1, torch.stack([buildings, transmitters, buildings], 1))


@functools.cache
def _towns(count: int, size: int) -> Towns:
    return radio_maps(count, size=size)
