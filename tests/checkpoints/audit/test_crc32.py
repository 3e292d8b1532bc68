"""CRC-32 is zlib's, whichever function computes it and however the bytes are cut."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nantrap.checkpoints.audit.crc32 import combine, crc32


@pytest.mark.parametrize("size", [0, 1, 1000, (1 << 20) + 1])
def test_the_function_at_hand(size: int) -> None:
    data = random.Random(size).randbytes(size)
    half = size // 2
    assert crc32(data) == crc32(data[half:], crc32(data[:half])) == zlib.crc32(data)


def test_the_optional_package_is_used_where_it_is_installed() -> None:
    assert crc32 is pytest.importorskip("deflate").crc32


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=300))
def test_two_pieces_put_together(first: bytes, second: bytes) -> None:
    assert combine(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)
