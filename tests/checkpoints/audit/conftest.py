"""One thread, since the machine is shared, and a state to save."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from checkpoints.audit.states import training_state


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def state() -> dict[str, Any]:
    """Model, AdamW, OneCycle, GradScaler and EMA after three steps: what a careful person saves."""
    return training_state()
