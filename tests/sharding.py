"""FSDP2 runs on a CPU only from some torch on: with 2.6 its own hooks fail, guarded or not."""

from __future__ import annotations

import pytest
import torch

RUNS = hasattr(torch.cpu.Stream, "record_event")
needs_sharding = pytest.mark.skipif(not RUNS, reason="FSDP2 of this torch does not run on a CPU")
