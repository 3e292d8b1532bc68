"""Memory is identified also when addresses are used again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from nantrap.locate.trace import Registered, Trace
from nantrap.locate.trace.storage import Memory, share_memory


def test_views_share_an_identity() -> None:
    memory, base = Memory(), torch.zeros(4, 4)
    assert memory.key(base) == memory.key(base[1:]) == memory.key(base.t())
    assert memory.key(base) != memory.key(base.clone())
    assert share_memory(base, base[2])
    assert not share_memory(base, base.clone())


def test_an_identity_is_never_given_twice() -> None:
    memory = Memory()
    seen = set()
    for _ in range(500):  # the allocator returns the same addresses repeatedly
        seen.add(memory.key(torch.empty(8)))
    assert len(seen) == 500


def test_the_memory_itself_is_not_kept_alive() -> None:
    memory, tensor = Memory(), torch.zeros(1024)
    memory.key(tensor)
    data = StorageWeakRef(tensor.untyped_storage())
    del tensor
    assert data.expired()


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_tensors_without_a_strided_storage_have_an_identity() -> None:
    memory = Memory()
    compressed = torch.eye(3).to_sparse_csr()
    assert memory.key(compressed) == memory.key(compressed)
    coordinates = torch.eye(3).to_sparse().coalesce()
    assert memory.key(coordinates) == memory.key(coordinates.values())


def test_freed_memory_blames_nothing() -> None:
    """Between operations memory is freed and taken by tensors that no operation of the trace made."""
    root = nn.Linear(2, 2)
    trace = Trace(root, Registered())
    values = np.full(8, np.nan, dtype=np.float32)
    with trace:
        for _ in range(300):
            empty = torch.empty(8)
            del empty  # its address is free now
            constant = torch.from_numpy(values.copy())  # no operation: it may get that address
            (constant + 1).sum()
            finite = torch.from_numpy(np.ones(8, dtype=np.float32))
            bad = finite / 0.0
            del bad
            assert trace.origins_of(torch.from_numpy(np.ones(8, dtype=np.float32))) == frozenset()
    assert not [op for op in trace.ops if op.made == "uninitialised"]
