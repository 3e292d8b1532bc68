"""The data: texts of a grammar, a character a token, a token a pixel.

A token id becomes three bytes, r = id % 256, g = id // 256 % 256, b = id // 65536 % 256, scaled to [0, 1]. A text
fills a 16x16 image row by row; the mask is True where there is a token. Beside it is the condition: the name of the
text, one slot for each of its two parts.

characters_to_tokens, tokens_to_text     the tokenizer: 128 characters spread over [0, 151643)
to_pixels, from_pixels                   ids as pixels in [0, 1], and back
alphabet, palette                        the characters of the texts, and their pixels
encode, decode                           a text as an image, and back
Batch                                    what a step trains on
Texts                                    all texts, split in two, with batches by the number of the step
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from nantrap.ops import colour_to_tokens, tokens_to_colour
from nantrap_systems.grammar import texts as grammar_texts
from nantrap_systems.pixeldlm.settings import DataSettings

CHARACTERS = 128
SPREAD = 1171
"""Distance of neighbouring characters: 127 times it is below 151643, and odd, so that red runs through all bytes."""
SLOT_CHARACTERS = 8
SLOT_WIDTH = 3 * SLOT_CHARACTERS
HELD_OUT = 96


def characters_to_tokens(text: str) -> Tensor:
    """The ids of a text. Neighbouring characters lie far apart, as the words of a real vocabulary do."""
    codes = torch.tensor([ord(c) if ord(c) < CHARACTERS else ord("?") for c in text], dtype=torch.int64)
    return codes * SPREAD


def tokens_to_text(tokens: Tensor) -> str:
    """The text of ids that `characters_to_tokens` made; an id in between counts as the nearest character."""
    codes = (tokens.double() / SPREAD).round().clamp(0, CHARACTERS - 1)
    return "".join(chr(int(code)) for code in codes)


def to_pixels(tokens: Tensor, *, vocab_size: int = 151_643) -> Tensor:
    """The pixel of each id [..., 3], in [0, 1]. An id outside the vocabulary is a `ValueError` that names it."""
    return (tokens_to_colour(tokens, vocabulary=vocab_size) + 1) / 2


def from_pixels(pixels: Tensor, *, vocab_size: int = 151_643) -> Tensor:
    """The nearest id of each pixel [..., 3]."""
    return colour_to_tokens(2 * pixels - 1, vocabulary=vocab_size)


@functools.cache
def alphabet() -> str:
    """The characters that the texts are made of, in order."""
    return "".join(sorted(set("".join(grammar_texts().values()))))


@functools.cache
def palette() -> Tensor:
    """The pixel of every character of the alphabet, [K, 3]."""
    return to_pixels(characters_to_tokens(alphabet()))


def encode(tokens: Tensor, *, size: int = 16, vocab_size: int = 151_643) -> tuple[Tensor, Tensor]:
    """Tokens as an image [size, size, 3] in row-major order, and its mask [size, size]. Padding is 0, black.

    What does not fit is cut off. A negative id or one beyond the vocabulary is a `ValueError` that names it.
    """
    kept = tokens[: size * size]
    image = torch.zeros(size * size, 3)
    mask = torch.zeros(size * size, dtype=torch.bool)
    image[: len(kept)] = to_pixels(kept, vocab_size=vocab_size)
    mask[: len(kept)] = True
    return image.reshape(size, size, 3), mask.reshape(size, size)


def decode(image: Tensor, mask: Tensor, *, vocab_size: int = 151_643) -> Tensor:
    """The tokens of an image: the nearest id at every pixel of the mask."""
    return from_pixels(image[mask], vocab_size=vocab_size)


class Batch(NamedTuple):
    """Images [B, H, W, 3] with their mask [B, H, W], conditions [B, S, 24] with theirs [B, S]; True is real."""

    image: Tensor
    mask: Tensor
    condition: Tensor
    condition_mask: Tensor


def frequencies(batch: Batch) -> Tensor:
    """How often each character is used, [K]; every character at least once."""
    distance = torch.cdist(batch.image[batch.mask], palette())
    counts = torch.bincount(distance.argmin(-1), minlength=len(palette())).clamp(min=1)
    return counts / counts.sum()


class Texts:
    """All texts as one batch, split into those to train on and, every eighth until there are 96, those held out."""

    def __init__(self, settings: DataSettings, *, slots: int) -> None:
        self.settings = settings
        everything = _all_texts(settings.image_size, settings.vocab_size, slots)
        number = torch.arange(len(everything.image))
        held_out = (number % 8 == 0) & (number < 8 * HELD_OUT)
        self.training = _select(everything, ~held_out)
        self.held_out = _select(everything, held_out)

    def batch(self, number: int, *, size: int, seed: int) -> Batch:
        """The batch of this number: always the same for the same seed."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
        chosen = torch.randint(len(self.training.image), (size,), generator=generator)
        batch = _select(self.training, chosen)
        dropped = torch.rand(size, 1, generator=generator) < self.settings.condition_dropout
        return batch._replace(condition_mask=batch.condition_mask & ~dropped)


def _select(batch: Batch, index: Tensor) -> Batch:
    return Batch(*(part[index] for part in batch))


@functools.cache
def _all_texts(size: int, vocab_size: int, slots: int) -> Batch:
    found = grammar_texts()
    tokens = [characters_to_tokens(text) for text in found.values()]
    images, masks = zip(*(encode(each, size=size, vocab_size=vocab_size) for each in tokens), strict=True)
    conditions = torch.stack([_condition(owner, slots, vocab_size) for owner in found])
    return Batch(torch.stack(images), torch.stack(masks), conditions, torch.ones(len(found), slots, dtype=torch.bool))


def _condition(owner: str, slots: int, vocab_size: int) -> Tensor:
    """The first characters of each part of a dotted name, as colours, a part a slot."""
    rows = torch.zeros(slots, SLOT_CHARACTERS, 3)
    for row, part in zip(rows, owner.split("."), strict=False):
        tokens = characters_to_tokens(part[:SLOT_CHARACTERS])
        row[: len(tokens)] = to_pixels(tokens, vocab_size=vocab_size)
    return rows.reshape(slots, SLOT_WIDTH)
