"""A refused step and its diagnosis leave graphs alone that the program still holds; its own errors stay its own."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings

LOOPS = ("gan", "gradient_penalty", "rollout", "truncated", "two_optimizers", "closures", "meta", "teacher")


@pytest.mark.parametrize("number", range(len(LOOPS)), ids=LOOPS)
def test_a_storm_over_loops_that_hold_graphs(
    number: int, tmp_path: Path, load_benchmark: Callable[[str], ModuleType]
) -> None:
    benchmark = load_benchmark("held_graphs")
    assert tuple(benchmark.LOOPS) == LOOPS
    faults, wrong = benchmark.storm(LOOPS[number], number, tmp_path, steps=8, diagnose=True)
    assert faults
    assert wrong == []


@pytest.mark.slow
def test_a_longer_storm() -> None:
    benchmark = Path(__file__).parents[2] / "benchmarks" / "held_graphs.py"
    command = [sys.executable, str(benchmark), "--json", "--faults", "1500", "--seed", "1000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert json.loads(done.stdout)["wrong"] == []


class Scaled(nn.Module):
    """A buffer that autograd saves, and that the forward pass writes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("scale", torch.ones(3))
        self.scale: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.scale.mul_(0.9).add_(0.1)
        return self.layer(x) * self.scale


@pytest.mark.parametrize("bad", [None, 1])
def test_the_error_of_a_program_that_overwrites_what_its_graph_holds_comes_as_without_a_guard(
    bad: int | None, tmp_path: Path
) -> None:
    def program() -> None:
        torch.manual_seed(0)
        net = Scaled()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for step in range(3):
            x = torch.ones(2, 3) * (math.nan if step == bad else 1.0)
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()
        early = net(torch.ones(2, 3))
        net(torch.ones(2, 3))  # writes the scale that `early` needs
        early.sum().backward()

    with pytest.raises(RuntimeError, match="modified by an inplace operation") as plain:
        program()
    with (
        attached(RunSettings(run_dir=str(tmp_path / "run"), quiet=True)),
        pytest.raises(RuntimeError, match="modified by an inplace operation") as guarded,
    ):
        program()
    assert str(guarded.value) == str(plain.value)


def test_a_rollback_leaves_the_graph_of_another_network_alone() -> None:
    torch.manual_seed(0)
    below, head = nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    optimizer = torch.optim.Adam(head.parameters(), 1e-2)
    policy = nantrap.Policy(max_consecutive_skips=1, rollback=nantrap.Rollback(anchor_every=2))
    guard = nantrap.Guard(head, optimizer, policy=policy, quiet=True)
    for _ in range(5):
        guard.backward(head(below(torch.randn(4, 3)).detach()).pow(2).mean())
        guard.step()
    seen = below(torch.randn(4, 3))
    kept = head(seen)  # its graph holds the weights of the head
    for _ in range(2):
        guard.backward(head(torch.full((4, 3), math.nan)).mean())
        outcome = guard.step()
    assert outcome.action == "rollback"
    kept.sum().backward()
    assert below.weight.grad is not None
