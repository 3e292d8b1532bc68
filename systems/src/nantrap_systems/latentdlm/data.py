"""The data: texts of a grammar as bytes, and a latent of each piece.

A text is cut into pieces of 64 bytes, the last one padded; one more token, MASK, is a byte that is to be
guessed. The latent of a piece is a fixed random projection of its byte frequencies to 32 numbers, brought to mean 0 and
variance 1: what a frozen encoder would give, but made on the spot.

pieces          a text cut up
frequencies     how often each byte occurs in a piece
Batch           what a step trains on
Texts           all pieces, split in two, with batches by the number of the step
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from nantrap.errors import UsageError
from nantrap.ops import safe_divide
from nantrap_systems.grammar import texts as grammar_texts
from nantrap_systems.latentdlm.settings import DataSettings

BYTES = 256
MASK = 256
VOCABULARY = 257
HELD_OUT = 96
"""How many pieces are held out."""

UNCONDITIONAL, LATENT_TO_TEXT, TEXT_TO_LATENT = range(3)
MODES = ("unconditional", "latent_to_text", "text_to_latent")


def pieces(text: str, length: int) -> list[bytes]:
    """The bytes of a text, cut up. A text whose length is a multiple of `length` is followed by an empty piece."""
    data = text.encode()
    return [data[start : start + length] for start in range(0, len(data) + 1, length)]


def frequencies(counts_NV: Tensor) -> Tensor:
    """The share of each byte; all 0 for a text without bytes."""
    return safe_divide(counts_NV, counts_NV.sum(-1, keepdim=True))


class Batch(NamedTuple):
    """Tokens [B, L] with their attention mask [B, L] (True is real), latents [B, Z], and modes [B]."""

    tokens: Tensor
    attention_mask: Tensor
    latent: Tensor
    mode: Tensor


class Texts:
    """All pieces as one batch, split into those to train on and, every eighth until there are 96, those held out.

    Args:
        settings: sizes.
        shares: byte frequencies from byte counts.
    """

    def __init__(self, settings: DataSettings, *, shares: Callable[[Tensor], Tensor] = frequencies) -> None:
        tokens, real = _tokens(settings.max_length, settings.drop_empty)
        counts = torch.zeros(len(tokens), BYTES).scatter_add_(1, tokens, real.float())
        eighth = real.any(-1) & (torch.arange(len(real)) % 8 == 0)
        held_out = eighth & (eighth.cumsum(0) <= HELD_OUT)
        latents = _latents(shares(counts), settings.latent_dim, among=real.any(-1) & ~held_out)
        batch = Batch(tokens, real, latents, torch.full((len(real),), UNCONDITIONAL))
        self.training = _select(batch, ~held_out)
        self.held_out = _select(batch, held_out)

    def batch(self, number: int, *, size: int, seed: int, mode: str = "mixed") -> Batch:
        """The batch of this number: always the same for the same seed. Mixed modes are drawn for each text."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
        chosen = torch.randint(len(self.training.tokens), (size,), generator=generator)
        modes = torch.randint(len(MODES), (size,), generator=generator)
        if mode in MODES:
            modes = torch.full((size,), MODES.index(mode))
        elif mode != "mixed":
            raise UsageError(f"training.mode is {mode!r}: choose mixed, {', '.join(MODES)}")
        return _select(self.training, chosen)._replace(mode=modes)


def share_of(batch: Batch, *, rank: int, ranks: int) -> Batch:
    """The texts of one process: every `ranks`-th."""
    return _select(batch, torch.arange(rank, len(batch.tokens), ranks))


@functools.cache
def _tokens(length: int, drop_empty: bool) -> tuple[Tensor, Tensor]:
    """All pieces [N, L], padded with 0, and where they are real."""
    found = [piece for text in grammar_texts().values() for piece in pieces(text, length)]
    found = [piece for piece in found if piece] if drop_empty else found
    lengths = torch.tensor([len(piece) for piece in found])
    padded = torch.tensor([list(piece.ljust(length, b"\0")) for piece in found])
    return padded, torch.arange(length) < lengths[:, None]


def _select(batch: Batch, index: Tensor) -> Batch:
    return Batch(*(part[index] for part in batch))


def _latents(shares_NV: Tensor, size: int, *, among: Tensor) -> Tensor:
    """The projection, standardised by the mean and the deviation of the texts `among`."""
    projection = torch.randn(BYTES, size, generator=torch.Generator().manual_seed(0))
    latents = shares_NV @ projection
    return (latents - latents[among].mean(0)) / latents[among].std(0)
