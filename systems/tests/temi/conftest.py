"""The cache of embeddings goes where the tests' other files go, for as long as a file of these tests runs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("temi")


@pytest.fixture(autouse=True, scope="module")
def temporary_cache(shared_cache: Path) -> Iterator[None]:
    before, tempfile.tempdir = tempfile.tempdir, str(shared_cache)
    yield
    tempfile.tempdir = before
