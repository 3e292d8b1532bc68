"""A whole training step inside `torch.compile`: guarded, and with no more graph breaks than without us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings
from nantrap.launch.torch_private import compiler_listens
from torch_habits import VERSION

# torch's compiler warns of what it does itself
pytestmark = pytest.mark.filterwarnings("ignore")


def training_step(*, compiled: bool) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)  # rounds differently when it is compiled

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.nan_to_num(x, nan=float("nan"))).square().mean()
        loss = torch.where(torch.isfinite(loss), loss, loss)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return model, torch.compile(step, backend="eager") if compiled else step


def train(*, bad: int | None = None, compiled: bool = True) -> tuple[int, int, nn.Module]:
    """Graph breaks, graphs, and the model after six steps."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    model, step = training_step(compiled=compiled)
    for number in range(6):
        x = torch.ones(5, 4) * (number + 1)
        if number == bad:
            x[2, 1] = float("nan")
        step(x)
    return sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"], model


def compare(run_dir: str) -> None:
    """Prints the breaks and graphs of a plain and of a guarded run, and whether they ended alike.

    Where the guard finds no way to have the update compiled (older versions), the weights may be those of the loop that
    is not compiled.
    """
    breaks, graphs, plain = train()
    *_, uncompiled = train(compiled=False)
    with attached(RunSettings(run_dir=run_dir, quiet=True)) as attachment:
        breaks_guarded, graphs_guarded, guarded = train()
        (loop,) = attachment.registry
        applied = loop.tally.applied
    alike = any(
        all(torch.equal(one, other) for one, other in zip(model.parameters(), guarded.parameters(), strict=True))
        for model in ((plain,) if VERSION >= (2, 13) else (plain, uncompiled))
    )
    print(json.dumps([breaks, breaks_guarded, graphs, graphs_guarded, applied, alike]))


def test_no_graph_break_is_added(tmp_path: Path) -> None:
    # alone in a process: the compiler keeps for good which functions it met first, wrapped or not
    code = f"from launch.test_compiled import compare; compare({str(tmp_path)!r})"
    command = [sys.executable, "-W", "ignore", "-c", code]
    path = os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=True, env={**os.environ, "PYTHONPATH": path}
    )
    breaks, breaks_guarded, graphs, graphs_guarded, applied, alike = json.loads(done.stdout.splitlines()[-1])
    assert applied == 6
    if VERSION >= (2, 9):  # with 2.6 there is one more: docs/limits.md
        assert alike
        assert breaks_guarded <= breaks
        assert graphs_guarded <= graphs


def test_a_bad_compiled_step_is_contained(tmp_path: Path) -> None:
    with attached(RunSettings(run_dir=str(tmp_path), quiet=True)) as attachment:
        _, _, model = train(bad=3)
        (loop,) = attachment.registry
        assert (loop.tally.attempted, loop.tally.applied) == (6, 5)
        assert loop.last_incident is not None
        assert loop.last_incident.step == 3
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_asking_whether_the_compiler_listens_takes_no_reference() -> None:
    """torch 2.6 gives its callback away without counting the reference: asked often enough, it would be freed."""

    def callback(*_: object) -> None:
        """Stands for the callback of the compiler."""

    frames: Any = torch._C._dynamo.eval_frame
    before = frames.set_eval_frame(callback)
    try:
        counts = [sys.getrefcount(callback)]
        for _ in range(4):
            assert compiler_listens() is callback
        counts.append(sys.getrefcount(callback))
    finally:
        frames.set_eval_frame(before)
    assert counts[1] >= counts[0]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


@pytest.mark.parametrize("how", ["compile(model)", "model.compile()"])
def test_a_compiled_model_is_compiled_once(how: str, tmp_path: Path) -> None:
    """What the compiler saw of a module's call is still true when nothing is watched any more."""
    from torch._dynamo.utils import counters

    def compile_and_train() -> int:
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        model: nn.Module = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        if how == "model.compile()":
            model.compile(backend="eager")
        else:
            model = torch.compile(model, backend="eager")  # type: ignore[assignment]
        for number in range(4):
            optimizer.zero_grad()
            model(torch.ones(5, 4) * (number + 1)).square().mean().backward()
            optimizer.step()
        return int(counters["stats"]["unique_graphs"])

    plain = compile_and_train()
    with attached(RunSettings(run_dir=str(tmp_path), quiet=True)) as attachment:
        assert compile_and_train() == plain
        assert [loop.tally.applied for loop in attachment.registry] == [4]
