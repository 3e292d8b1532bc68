"""An update over lists of tensors or by a fused kernel, as on every GPU: the same answers as tensor by tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import nantrap
from nantrap import Rollback

LOADED = 1e-2


def incident_of(make: Any, **options: Any) -> nantrap.Incident:
    """Of a step before which one value of the optimizer's memory became negative, so that its root is NaN."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = make(model.parameters(), lr=LOADED, **options)
    guard = nantrap.Guard(model, optimizer, policy=nantrap.Policy(rollback=Rollback(anchor_every=0)), quiet=True)
    for step in range(4):
        if step == 3:
            (state,) = [optimizer.state[p] for p in [model[2].weight]]
            state[next(name for name in ("sum", "exp_avg_sq", "square_avg") if name in state)][0, 3] = -1.0
        outcome = guard.attempt(lambda x: model(x).square().mean(), torch.randn(6, 4))
    assert outcome.incident is not None
    return outcome.incident


@pytest.mark.parametrize("option", ["foreach", "fused"])
@pytest.mark.parametrize("make", [torch.optim.Adagrad, torch.optim.AdamW, torch.optim.RMSprop])
def test_it_is_located_and_explained_as_tensor_by_tensor(make: Any, option: str) -> None:
    if option == "fused" and make is torch.optim.RMSprop:
        pytest.skip("RMSprop has no fused kernel")
    plain, lists = incident_of(make), incident_of(make, **{option: True})
    assert (lists.phase, lists.op) == (plain.phase, plain.op)
    assert [(cause.slug, cause.proven) for cause in lists.causes] == [(c.slug, c.proven) for c in plain.causes]
    assert plain.causes[0].proven
