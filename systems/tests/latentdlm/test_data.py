"""The data: pieces of texts, their latents, and batches that depend on their number alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nantrap.errors import UsageError
from nantrap_systems.latentdlm.data import LATENT_TO_TEXT, Batch, Texts, frequencies, pieces, share_of
from nantrap_systems.latentdlm.faults import missing_latents, shares_of_nothing
from nantrap_systems.latentdlm.settings import DataSettings


@given(st.text(max_size=300), st.integers(1, 64))
def test_pieces_give_the_text_back(text: str, length: int) -> None:
    found = pieces(text, length)
    assert b"".join(found) == text.encode()
    assert all(len(piece) == length for piece in found[:-1])
    assert (found[-1] == b"") == (len(text.encode()) % length == 0)


@pytest.fixture(scope="module")
def texts() -> Texts:
    return Texts(DataSettings())


def test_the_grammar_gives_enough_texts(texts: Texts) -> None:
    assert len(texts.training.tokens) > 2000
    assert len(texts.held_out.tokens) == 96
    assert bool(texts.training.attention_mask.any(-1).all())
    assert 0 <= int(texts.training.tokens.min()) <= int(texts.training.tokens.max()) < 256


def test_a_few_pieces_in_a_thousand_are_empty_and_none_is_held_out() -> None:
    texts = Texts(DataSettings(drop_empty=False))
    empty = ~texts.training.attention_mask.any(-1)
    assert 0.001 < empty.float().mean() < 0.01
    assert bool(texts.held_out.attention_mask.any(-1).all())
    assert bool(texts.training.latent.isfinite().all())
    assert torch.equal(texts.held_out.tokens, Texts(DataSettings(drop_empty=False)).held_out.tokens)


def test_an_empty_text_divides_nothing_by_nothing() -> None:
    texts = Texts(DataSettings(drop_empty=False), shares=shares_of_nothing)
    empty = ~texts.training.attention_mask.any(-1)
    assert torch.equal(texts.training.latent.isnan().all(-1), empty)
    assert bool(texts.held_out.latent.isfinite().all())


def test_latents_are_a_function_of_the_byte_counts(texts: Texts) -> None:
    latents = texts.training.latent
    assert latents.shape[1] == 32
    assert torch.allclose(latents.mean(0), torch.zeros(32), atol=1e-4)
    assert torch.allclose(latents.std(0), torch.ones(32), atol=1e-3)
    counts = torch.zeros(2, 256)
    counts[:, 65], counts[0, 66] = 1.0, 3.0
    assert frequencies(counts)[0, 66].item() == 0.75
    assert frequencies(torch.zeros(1, 256)).abs().sum() == 0


def test_batches_depend_on_seed_and_number_alone(texts: Texts) -> None:
    def same(left: Batch, right: Batch) -> bool:
        return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))

    assert same(texts.batch(3, size=4, seed=1), texts.batch(3, size=4, seed=1))
    assert not same(texts.batch(3, size=4, seed=1), texts.batch(4, size=4, seed=1))
    assert not same(texts.batch(3, size=4, seed=1), texts.batch(3, size=4, seed=2))


def test_modes(texts: Texts) -> None:
    mixed = texts.batch(0, size=3000, seed=1).mode
    assert torch.allclose(mixed.bincount() / 3000, torch.full((3,), 1 / 3), atol=0.05)
    alone = texts.batch(0, size=8, seed=1, mode="latent_to_text")
    assert bool((alone.mode == LATENT_TO_TEXT).all())
    assert torch.equal(alone.tokens, texts.batch(0, size=8, seed=1).tokens)
    with pytest.raises(UsageError, match="choose mixed"):
        texts.batch(0, size=1, seed=1, mode="both")


def test_two_processes_share_a_batch(texts: Texts) -> None:
    batch = texts.batch(0, size=8, seed=1)
    halves = [share_of(batch, rank=rank, ranks=2) for rank in range(2)]
    assert torch.equal(torch.stack([half.tokens for half in halves], 1).flatten(0, 1), batch.tokens)
    assert share_of(batch, rank=0, ranks=1).tokens.shape == batch.tokens.shape


def test_one_latent_in_forty_is_missing(texts: Texts) -> None:
    found = missing_latents(texts.training, 0)
    assert 0.01 < found.latent.isnan().all(-1).float().mean() < 0.05
