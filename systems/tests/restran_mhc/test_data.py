"""The plates: their font, their frames, their batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nantrap.errors import UsageError
from nantrap.ops import ctc_feasible
from nantrap_systems.restran_mhc.data import (
    CHARACTERS,
    CLASSES,
    DIGITS,
    LETTERS,
    RARE_LETTERS,
    Plates,
    decode,
    encode,
    glyphs,
)
from nantrap_systems.restran_mhc.data import draw as draw_plates

SETTINGS: dict[str, Any] = {
    "height": 16, "width": 72, "frames": 3, "level": 0, "missing": 0.0, "black": 0.0, "oversample": 0.5
}  # fmt: skip


def plates(**changes: float) -> Plates:
    return Plates(**{**SETTINGS, **changes})


def test_every_character_has_its_own_drawing() -> None:
    drawn = torch.stack([glyphs()[character].flatten() for character in CHARACTERS])
    assert drawn.shape == (36, 35)
    assert torch.cdist(drawn, drawn, p=1).add(100 * torch.eye(36)).min() >= 2


@given(st.text(CHARACTERS, min_size=7, max_size=7))
def test_labels_round_trip(plate: str) -> None:
    labels = encode(plate)
    assert 1 <= int(labels.min()) <= int(labels.max()) < CLASSES
    assert decode(labels.tolist()) == plate
    assert draw_plates(labels[None]).shape == (1, 9, 44)


def test_plates_are_three_letters_and_four_digits_and_none_is_held_out_and_trained_on() -> None:
    everything = plates()
    trained = {decode(labels) for labels in everything.training.tolist()}
    held_out = {decode(labels) for labels in everything.held_out.labels.tolist()}
    assert len(trained) == 4096
    assert len(held_out) == 128
    assert not trained & held_out
    assert all(set(plate[:3]) <= set(LETTERS) and set(plate[3:]) <= set(DIGITS) for plate in trained)


def test_batches_depend_on_seed_and_number_alone() -> None:
    first, again = plates().batch(3, size=4, seed=1), plates().batch(3, size=4, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.frames, plates().batch(4, size=4, seed=1).frames)
    assert not torch.equal(first.frames, plates().batch(3, size=4, seed=2).frames)


def test_frames_of_a_plate_differ_and_lie_between_black_and_white() -> None:
    frames = plates(level=2).batch(0, size=8, seed=1).frames
    assert frames.shape == (8, 3, 16, 72)
    assert 0 <= float(frames.min()) < 0.2 < 0.8 < float(frames.max()) <= 1
    assert not torch.equal(frames[:, 0], frames[:, 1])


def test_rare_letters_are_drawn_more_often_than_they_come() -> None:
    def share(oversample: float) -> float:
        labels = plates(oversample=oversample).batch(0, size=500, seed=1).labels[:, :3]
        return sum(character in RARE_LETTERS for character in decode(labels.flatten().tolist())) / labels.numel()

    assert share(0.0) == pytest.approx(8 * 0.2 / (8 * 0.2 + 18), abs=0.03)
    assert share(1.0) > 2 * share(0.0)


def test_missing_and_black_frames_are_zeros_and_a_plate_keeps_one() -> None:
    batch = plates(missing=0.8, black=0.1).batch(0, size=200, seed=1)
    black = batch.frames.flatten(2).amax(-1) == 0
    assert bool(black[~batch.there].all())
    assert bool(batch.there.any(-1).all())
    assert 0.02 < (black & batch.there).float().mean() < 0.1
    assert bool(plates(missing=0.8, black=0.5).held_out.there.all())
    assert bool((plates(missing=0.8, black=0.5).held_out.frames.flatten(2).amax(-1) > 0).all())


def test_one_plate_in_250_needs_more_than_nine_columns_and_none_more_than_18() -> None:
    labels = plates().training
    lengths = torch.full((len(labels),), 7)
    share = 1 - ctc_feasible(labels, torch.full((len(labels),), 9), lengths).float().mean().item()
    assert 1 / 400 < share < 1 / 150
    assert bool(ctc_feasible(labels, torch.full((len(labels),), 18), lengths).all())


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(UsageError, match="augmentation_level is 3: choose 0 to 2"):
        plates(level=3)
