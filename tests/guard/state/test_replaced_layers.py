"""A layer that is replaced in the middle of training is guarded: the optimizer's list keeps its length."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings


def block() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1))


def replace(net: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    """The last block is made anew; everything has the sizes that it had."""
    for parameter in net[1].parameters():
        optimizer.state.pop(parameter, None)
    net[1] = block()
    optimizer.param_groups[0]["params"] = list(net.parameters())


def all_finite(net: nn.Module, optimizer: torch.optim.Optimizer) -> bool:
    moments = [t for entry in optimizer.state.values() for t in entry.values() if isinstance(t, Tensor)]
    return all(bool(t.isfinite().all()) for t in (*net.parameters(), *net.buffers(), *moments))


def train(how: str, folder: Path, *, bad: frozenset[int]) -> bool:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), block())
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    guard = nantrap.Guard(net, optimizer, quiet=True) if how == "two lines" else None
    for step in range(12):
        if step == 6:
            replace(net, optimizer)
        loss = net(torch.randn(5, 3)).pow(2).mean()
        (*_, last) = net.parameters()
        handle = last.register_hook(lambda g: g * math.nan) if step in bad else None
        if guard is None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        else:
            guard.backward(loss)
            guard.step()
        if handle is not None:
            handle.remove()
    return all_finite(net, optimizer)


@pytest.mark.parametrize("how", ["two lines", "run"])
@pytest.mark.parametrize("bad", [frozenset({6}), frozenset({8, 10})])
def test_the_new_layer_stays_finite(how: str, bad: frozenset[int], tmp_path: Path) -> None:
    assert not train("plain", tmp_path, bad=bad)
    if how == "two lines":
        assert train(how, tmp_path, bad=bad)
        return
    with attached(RunSettings(run_dir=str(tmp_path / "run"), quiet=True)) as attachment:
        assert train(how, tmp_path, bad=bad)
        (loop,) = attachment.registry
    assert loop.tally.incidents == len(bad)


def test_the_buffers_of_the_new_layer_are_restored() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), block())
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    guard = nantrap.Guard(net, optimizer, quiet=True)
    replace(net, optimizer)
    guard.backward(net(torch.randn(5, 3)).mean())
    guard.step()
    before = [buffer.clone() for buffer in net.buffers()]
    guard.backward(net(torch.full((5, 3), math.inf)).mean())
    outcome = guard.step()
    assert outcome.action == "skip"
    assert all(map(torch.equal, net.buffers(), before))


def test_a_rollback_does_not_go_back_to_the_layer_that_is_gone() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), block())
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    policy = nantrap.Policy(max_consecutive_skips=1, rollback=nantrap.Rollback(anchor_every=16))
    guard = nantrap.Guard(net, optimizer, policy=policy, quiet=True)

    def step(value: float) -> nantrap.Outcome:
        guard.backward(net(torch.randn(5, 3) * value).pow(2).mean())
        return guard.step()

    for _ in range(3):
        step(1.0)
    replace(net, optimizer)
    step(1.0)
    step(math.nan)
    with pytest.raises(nantrap.NonFiniteError, match="no older state"):
        step(math.nan)
    assert set(optimizer.state) == set(net.parameters())
