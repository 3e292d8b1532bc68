"""A rollback restores the loss scale of an older state: no GradScaler was made anew."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest
import torch
from torch import nn

import nantrap
from nantrap.errors import NonFiniteError


@pytest.mark.slow
def test_a_scale_that_a_rollback_restored_was_not_set_by_the_program() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    guard: Any = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=1e-2), scaler=scaler, quiet=True)
    incidents, scales = [], []
    with contextlib.suppress(NonFiniteError):
        for _ in range(40):
            inputs, targets = torch.randn(16, 8), torch.randn(16, 1)
            targets[5] = 1e7
            with torch.autocast("cpu", dtype=torch.float16):
                predicted = model(inputs)
            guard.backward((predicted.float() - targets).square().mean())
            incident = guard.step().incident
            scales.append(scaler.get_scale())
            incidents += [] if incident is None else [incident]
    assert guard.tally.rollbacks
    assert any(after > 4 * before for before, after in itertools.pairwise(scales)), "restored by a rollback"
    assert not [i.cause.summary for i in incidents if "set to it again" in i.cause.summary]
