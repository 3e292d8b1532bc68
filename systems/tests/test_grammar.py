"""The text: the same bytes on every Python and every machine."""

from __future__ import annotations

import hashlib

from nantrap_systems.grammar import texts


def test_the_bytes_are_the_same_everywhere() -> None:
    everything = "\n".join(f"{name}\t{text}" for name, text in texts().items())
    digest = hashlib.sha256(everything.encode("ascii")).hexdigest()
    assert digest == "28181552e052cca57a77425afe232d698d984d296289f77d61392534f927f080"


def test_texts_are_short_and_long_and_speak_of_their_name() -> None:
    found = texts()
    lengths = [len(text) for text in found.values()]
    assert len(found) == 1200
    assert min(lengths) < 30
    assert max(lengths) > 300
    assert 0.04 < sum(length <= 32 for length in lengths) / 1200 < 0.12
    assert sum(length % 64 == 0 for length in lengths) >= 5, "empty pieces are what a fault needs"
    for name, text in list(found.items())[:50]:
        place, rest = name.split(".")
        verb, thing, _ = rest.split("_")
        assert text.lower().startswith(f"{verb} the {thing} of the {place}")


def test_another_seed_is_another_text() -> None:
    assert texts(3, seed=1) != texts(3, seed=2)
    assert texts(3, seed=1) == dict(list(texts(5, seed=1).items())[:3])
