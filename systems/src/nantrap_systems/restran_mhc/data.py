"""The data: plates of three letters and four digits, photographed three times.

A plate is drawn with a 5x7 font, then every frame of it is shifted, turned and scaled a little, blurred, given another
contrast, and noise. How much is the augmentation level. Some letters are rare, as on real plates; plates that have one
are drawn more often. A frame can be missing (its mask is False) or all black.

glyphs               the font, a character a drawing
CHARACTERS, BLANK    the 36 characters, as classes 1 to 36, and the blank, class 0
encode, decode       a plate as labels, and labels as a plate
Batch                what a step trains on
Plates               all plates, split in two, with batches by the number of the step
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nantrap.errors import UsageError

# ---- the font: 5x7 points, a character a drawing

GLYPH_HEIGHT, GLYPH_WIDTH = 7, 5

_ROWS = """
 ABCDEFGHI
.###. ####. .#### ####. ##### ##### .#### #...# .###.
#...# #...# #.... #...# #.... #.... #.... #...# ..#..
#...# #...# #.... #...# #.... #.... #.... #...# ..#..
##### ####. #.... #...# ####. ####. #..## ##### ..#..
#...# #...# #.... #...# #.... #.... #...# #...# ..#..
#...# #...# #.... #...# #.... #.... #...# #...# ..#..
#...# ####. .#### ####. ##### #.... .#### #...# .###.
 JKLMNOPQR
..### #...# #.... #...# #...# .###. ####. .###. ####.
...#. #..#. #.... ##.## ##..# #...# #...# #...# #...#
...#. #.#.. #.... #.#.# #.#.# #...# #...# #...# #...#
...#. ##... #.... #.#.# #.#.# #...# ####. #...# ####.
...#. #.#.. #.... #...# #..## #...# #.... #.#.# #.#..
#..#. #..#. #.... #...# #...# #...# #.... #..#. #..#.
.##.. #...# ##### #...# #...# .###. #.... .##.# #...#
 STUVWXYZ0
.#### ##### #...# #...# #...# #...# #...# ##### .###.
#.... ..#.. #...# #...# #...# #...# #...# ....# #..##
#.... ..#.. #...# #...# #...# .#.#. .#.#. ...#. #..##
.###. ..#.. #...# #...# #.#.# ..#.. ..#.. ..#.. #.#.#
....# ..#.. #...# .#.#. #.#.# .#.#. ..#.. .#... ##..#
....# ..#.. #...# .#.#. ##.## #...# ..#.. #.... ##..#
####. ..#.. .###. ..#.. #...# #...# ..#.. ##### .###.
 123456789
..#.. .###. ##### ...#. ##### .###. ##### .###. .###.
.##.. #...# ....# ..##. #.... #.... ....# #...# #...#
..#.. ....# ...#. .#.#. ####. #.... ...#. #...# #...#
..#.. ...#. ..##. #..#. ....# ####. ..#.. .###. .####
..#.. ..#.. ....# ##### ....# #...# .#... #...# ....#
..#.. .#... #...# ...#. #...# #...# .#... #...# ....#
.###. ##### .###. ...#. .###. .###. .#... .###. .###.
"""


@functools.cache
def glyphs() -> dict[str, Tensor]:
    """The drawing [7, 5] of every character, 1 for ink."""
    lines = _ROWS.strip("\n").splitlines()
    drawn = {}
    for start in range(0, len(lines), 1 + GLYPH_HEIGHT):
        rows = [line.split() for line in lines[start + 1 : start + 1 + GLYPH_HEIGHT]]
        for column, character in enumerate(lines[start].strip()):
            points = [[float(point == "#") for point in row[column]] for row in rows]
            drawn[character] = torch.tensor(points)
    return drawn


# ---- the plates

LETTERS, DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789"
CHARACTERS = LETTERS + DIGITS
BLANK = 0
CLASSES = 1 + len(CHARACTERS)
PLATE_LENGTH = 7
RARE_LETTERS = "IOQUWXYZ"

TRAINING_PLATES, HELD_OUT_PLATES = 4096, 128


class Augmentation(NamedTuple):
    """How far a frame may differ from the drawing: pixels, degrees and shares, each the bound of a uniform draw."""

    shift: float
    turn: float
    scale: float
    blur: float
    contrast: float
    noise: float


LEVELS = (
    Augmentation(shift=1.0, turn=0.0, scale=0.0, blur=0.2, contrast=0.2, noise=0.05),
    Augmentation(shift=2.0, turn=2.0, scale=0.03, blur=0.5, contrast=0.4, noise=0.1),
    Augmentation(shift=3.0, turn=4.0, scale=0.06, blur=0.8, contrast=0.6, noise=0.2),
)


def encode(plate: str) -> Tensor:
    """The labels of a plate [7]."""
    return torch.tensor([1 + CHARACTERS.index(character) for character in plate])


def decode(labels: Iterable[int]) -> str:
    """The text of labels that hold no blank."""
    return "".join(CHARACTERS[label - 1] for label in labels)


class Batch(NamedTuple):
    """Frames [B, F, H, W] in [0, 1], which of them are there [B, F], and the labels [B, 7]."""

    frames: Tensor
    there: Tensor
    labels: Tensor


class Plates:
    """All plates, split into those to train on and those held out, which are photographed once.

    Args:
        height: pixels of a frame.
        width: pixels of a frame.
        frames: how many a plate has.
        level: of augmentation, 0 to 2.
        missing: share of frames that are missing; a plate keeps at least one.
        black: share of frames that are all black.
        oversample: how much more often a plate with a rare letter is drawn: its share to the power of this.
    """

    def __init__(
        self, *, height: int, width: int, frames: int, level: int, missing: float, black: float, oversample: float
    ) -> None:
        if not 0 <= level < len(LEVELS):
            raise UsageError(f"augmentation_level is {level}: choose 0 to {len(LEVELS) - 1}")
        self.height, self.width, self.frames = height, width, frames
        self.augmentation, self.missing, self.black = LEVELS[level], missing, black
        everything = _all_labels()
        self.training, self._held_out = everything[:TRAINING_PLATES], everything[TRAINING_PLATES:]
        counts = torch.bincount(self.training.flatten(), minlength=CLASSES).clamp(min=1)
        self.weights = (1 / counts[self.training].amin(-1)) ** oversample

    def batch(self, number: int, *, size: int, seed: int) -> Batch:
        """The batch of this number: always the same for the same seed."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
        chosen = torch.multinomial(self.weights, size, replacement=True, generator=generator)
        return self._photographed(self.training[chosen], generator)

    @functools.cached_property
    def held_out(self) -> Batch:
        """Plates that no step trains on, always the same photographs of them; every frame is there, none is black."""
        generator = torch.Generator().manual_seed(0)
        return self._photographed(self._held_out, generator, faulty=False)

    def _photographed(self, labels: Tensor, generator: torch.Generator, *, faulty: bool = True) -> Batch:
        """Photographs of the plates; with `faulty`, some frames are missing or black."""
        count, per_plate = len(labels), self.frames
        frames = _photograph(draw(labels), (self.height, self.width), per_plate, self.augmentation, generator)
        there = torch.rand(count, per_plate, generator=generator) >= self.missing
        there[:, 0] |= ~there.any(-1)
        black = torch.rand(count, per_plate, generator=generator) < self.black
        if faulty:
            frames = frames.masked_fill((black | ~there)[..., None, None], 0.0)
        else:
            there = torch.ones_like(there)
        return Batch(frames, there, labels)


def draw(labels: Tensor) -> Tensor:
    """The drawings [B, 9, 44] of plates [B, 7]: dark ink on a bright plate, with a margin of one point."""
    alphabet = torch.stack([glyphs()[character] for character in CHARACTERS])
    ink = F.pad(alphabet[labels - 1], (0, 1, 0, 0))
    lines = ink.permute(0, 2, 1, 3).reshape(len(labels), GLYPH_HEIGHT, PLATE_LENGTH * (GLYPH_WIDTH + 1))
    return 1 - F.pad(lines, (1, 1, 1, 1))


def _photograph(
    drawings: Tensor, size: tuple[int, int], count: int, bounds: Augmentation, generator: torch.Generator
) -> Tensor:
    """Frames [B, count, H, W] of drawings, each moved, blurred, lit and disturbed separately."""
    total = len(drawings) * count

    def uniform(bound: float) -> Tensor:
        return (2 * torch.rand(total, generator=generator) - 1) * bound

    angle, zoom = uniform(bounds.turn) * math.pi / 180, 1 + uniform(bounds.scale)
    across, down = 2 * uniform(bounds.shift) / size[1], uniform(bounds.shift) / size[0]
    ratio = size[1] / size[0]
    cosine, sine = zoom * angle.cos(), zoom * angle.sin()
    theta = torch.stack([cosine, -sine / ratio, across, sine * ratio, cosine, down], -1).reshape(total, 2, 3)
    grid = F.affine_grid(theta, [total, 1, *size], align_corners=False)
    drawn = drawings.repeat_interleave(count, 0)[:, None]
    frames = F.grid_sample(drawn, grid, padding_mode="border", align_corners=False)
    blur = uniform(bounds.blur).abs()[:, None, None, None]
    frames = (1 - blur) * frames + blur * F.avg_pool2d(frames, 3, 1, 1, count_include_pad=False)
    contrast = (1 - uniform(bounds.contrast).abs())[:, None, None, None]
    frames = 0.5 + contrast * (frames - 0.5)
    frames = frames + bounds.noise * torch.randn(frames.shape, generator=generator)
    return frames.clamp(0, 1).reshape(-1, count, *size)


@functools.cache
def _all_labels() -> Tensor:
    """Plates without repetition [4096 + 128, 7]; a rare letter comes a fifth as often as another."""
    generator = torch.Generator().manual_seed(2024)
    share = torch.tensor([0.2 if letter in RARE_LETTERS else 1.0 for letter in LETTERS])
    count = 2 * (TRAINING_PLATES + HELD_OUT_PLATES)
    letters = 1 + torch.multinomial(share, 3 * count, replacement=True, generator=generator).reshape(count, 3)
    digits = 1 + len(LETTERS) + torch.randint(len(DIGITS), (count, 4), generator=generator)
    distinct = list(dict.fromkeys(map(tuple, torch.cat([letters, digits], -1).tolist())))
    return torch.tensor(distinct[: TRAINING_PLATES + HELD_OUT_PLATES])
