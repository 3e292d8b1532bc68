"""FSDP2 runs on a CPU only from some torch on: with 2.6 its own hooks fail, guarded or not."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.fsdp

RUNS = hasattr(torch.cpu.Stream, "record_event")
TRIES = RUNS and hasattr(torch.distributed.fsdp.FSDPModule, "reset_iter_state")
needs_sharding = pytest.mark.skipif(not RUNS, reason="FSDP2 of this torch does not run on a CPU")
needs_sharded_trials = pytest.mark.skipif(
    not TRIES, reason="FSDP2 of this torch cannot be reset after a trial that ends early, so none is made"
)
