"""Every test runs on one thread, from the same seed, and leaves torch's defaults as it found them."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest
import torch

torch.set_num_threads(1)
# torch warns once, in whichever test comes first, unless it is told
torch.sparse.check_sparse_tensor_invariants.disable()
# derandomize: a red test is red again tomorrow; no deadline: the machine may be busy
hypothesis.settings.register_profile(
    "nantrap", deadline=None, derandomize=True, database=None, max_examples=60, print_blob=False
)
hypothesis.settings.load_profile("nantrap")


@pytest.fixture(autouse=True)
def _same_seed() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)
