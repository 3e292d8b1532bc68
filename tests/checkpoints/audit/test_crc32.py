"""The folded CRC-32 is zlib's, bit for bit."""

from __future__ import annotations

import random
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nantrap.checkpoints.audit import crc32
from nantrap.checkpoints.audit.crc32 import ROOM, Checksum, combine

CHUNK = 1 << 20


@pytest.fixture
def _always_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crc32, "_WORTHWHILE", 8)
    monkeypatch.setattr(crc32, "_folding_is_faster", lambda: True)
    monkeypatch.setattr(crc32, "_FAST", None)


def checksum_of(data: bytes) -> int:
    buffer = np.full(ROOM + CHUNK, 0xA5, np.uint8)
    checksum = Checksum(buffer, len(data))
    for begin in range(0, len(data), CHUNK):
        part = np.frombuffer(data, np.uint8)[begin : begin + CHUNK]
        buffer[ROOM : ROOM + len(part)] = part
        checksum.update(len(part))
    return checksum.value()


def test_the_trinomial_is_a_multiple_of_the_polynomial() -> None:
    remainder, powers = 1, {}
    for exponent in range(1, crc32._FAR + 1):
        remainder = remainder << 1 ^ (0x104C11DB7 if remainder >> 31 else 0)
        powers[exponent] = remainder
    assert powers[crc32._FAR] ^ powers[crc32._FAR - crc32._NEAR] ^ 1 == 0


@pytest.mark.usefixtures("_always_fold")
@pytest.mark.parametrize(
    "size",
    [8, 9, 10, 11, 12, 4 * 105_611, 521_439, 521_440, 521_441, 521_444, 521_445, CHUNK - 1, CHUNK, CHUNK + 1,
     CHUNK + 4 * 130_360, 3 * CHUNK + 7, 5_000_003],
)  # fmt: skip
def test_every_length(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert checksum_of(data) == zlib.crc32(data)


@pytest.mark.usefixtures("_always_fold")
def test_every_flipped_bit_changes_it() -> None:
    data = bytearray(random.Random(0).randbytes(2 * CHUNK + 5))
    before = checksum_of(bytes(data))
    chance = random.Random(1)
    for _ in range(20):
        at, bit = chance.randrange(len(data)), 1 << chance.randrange(8)
        data[at] ^= bit
        assert checksum_of(bytes(data)) == zlib.crc32(data) != before
        data[at] ^= bit


@pytest.mark.parametrize("size", [0, 1, 3, 1000, CHUNK + 1])
def test_what_is_small_is_left_to_zlib(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert checksum_of(data) == zlib.crc32(data)


@pytest.mark.parametrize("size", [0, 1, 1000, CHUNK + 1, 4 * CHUNK + 3])
def test_the_optional_package_gives_the_same(size: int) -> None:
    fast = pytest.importorskip("deflate")
    data = random.Random(size).randbytes(size)
    assert crc32.crc32 is fast.crc32
    assert checksum_of(data) == zlib.crc32(data)
    half = size // 2
    assert crc32.crc32(data[half:], crc32.crc32(data[:half])) == zlib.crc32(data)


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=300))
def test_two_pieces_put_together(first: bytes, second: bytes) -> None:
    assert combine(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)
