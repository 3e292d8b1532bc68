"""The codec: tokens to pixels and back, and what cannot be a token."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nantrap_systems.pixeldlm.data import Batch, Texts, characters_to_tokens, decode, encode, tokens_to_text
from nantrap_systems.pixeldlm.settings import DataSettings

ids = st.lists(st.integers(0, 151_642), max_size=300)
ascii_text = st.text(st.characters(min_codepoint=0, max_codepoint=127), max_size=300)


@given(ids)
def test_encode_and_decode_round_trip(tokens: list[int]) -> None:
    image, mask = encode(torch.tensor(tokens, dtype=torch.int64))
    assert image.shape == (16, 16, 3)
    assert mask.sum() == min(len(tokens), 256)
    assert decode(image, mask).tolist() == tokens[:256]


@given(ascii_text)
def test_text_round_trips_through_the_image(text: str) -> None:
    tokens = characters_to_tokens(text)
    assert tokens.numel() == 0 or 0 <= int(tokens.min()) <= int(tokens.max()) < 151_643
    assert tokens_to_text(decode(*encode(tokens))) == text[:256]


@given(ids)
def test_pixels_are_stored_row_by_row(tokens: list[int]) -> None:
    image, mask = encode(torch.tensor(tokens, dtype=torch.int64))
    for position, token in list(enumerate(tokens[:256]))[:20]:
        pixel = image[position // 16, position % 16]
        bytes_ = (pixel * 255).round().long().tolist()
        assert bytes_ == [token % 256, token // 256 % 256, token // 65_536 % 256]
    assert bool((image[~mask] == 0).all())


@pytest.mark.parametrize("token", [-1, 151_643, 2**24])
def test_an_id_outside_the_vocabulary_is_named(token: int) -> None:
    with pytest.raises(ValueError, match=rf"\[0, 151643\), but {token} is at \(2,\)"):
        encode(torch.tensor([3, 4, token]))


def test_characters_beyond_ascii_are_question_marks() -> None:
    assert tokens_to_text(characters_to_tokens("a→b")) == "a?b"


@pytest.fixture(scope="module")
def texts() -> Texts:
    return Texts(DataSettings(), slots=2)


def test_the_grammar_gives_texts_of_all_lengths(texts: Texts) -> None:
    lengths = texts.training.mask.sum((1, 2))
    assert len(lengths) > 400
    assert 0.02 < (lengths <= 32).float().mean() < 0.3, "short texts are what the fault needs"
    assert (lengths == 256).float().mean() > 0.05


def test_batches_depend_on_seed_and_number_alone(texts: Texts) -> None:
    def same(left: Batch, right: Batch) -> bool:
        return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))

    assert same(texts.batch(3, size=4, seed=1), texts.batch(3, size=4, seed=1))
    assert not same(texts.batch(3, size=4, seed=1), texts.batch(4, size=4, seed=1))
    assert not same(texts.batch(3, size=4, seed=1), texts.batch(3, size=4, seed=2))


def test_conditions_are_dropped_as_often_as_the_settings_say() -> None:
    texts = Texts(DataSettings(condition_dropout=0.25), slots=2)
    kept = texts.batch(0, size=2000, seed=1).condition_mask
    assert bool((kept[:, 0] == kept[:, 1]).all())
    assert kept[:, 0].float().mean().item() == pytest.approx(0.75, abs=0.04)
