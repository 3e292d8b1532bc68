"""The cache of embeddings goes where the tests' other files go."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def temporary_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before, tempfile.tempdir = tempfile.tempdir, str(tmp_path_factory.mktemp("temi"))
    yield
    tempfile.tempdir = before
