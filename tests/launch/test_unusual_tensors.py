"""Programs whose tensors cannot be read or hooked end under guard as they end without one."""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import nantrap
from guard.test_every_dtype import KINDS
from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings


@pytest.fixture
def settings(tmp_path: Path) -> RunSettings:
    return RunSettings(run_dir=str(tmp_path / "run"), quiet=True)


def train(model: nn.Module, inputs: list[Tensor]) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for x in inputs:
        optimizer.zero_grad()
        model(x).abs().pow(2).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


class Checked(nn.Module):
    """Names functions of torch that a guard replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        if bool(torch.isnan(x).any()):
            x = torch.nan_to_num(x)
        return self.layer(x)


@pytest.mark.filterwarnings("ignore")
def test_torchscript_compiles_and_traces_a_model_that_is_guarded(settings: RunSettings) -> None:
    torch.manual_seed(0)
    model, x = Checked(), torch.randn(4, 3)
    with attached(settings) as attachment:
        train(model, [x] * 2)
        scripted, traced = torch.jit.script(model), torch.jit.trace(model, x)
        train(model, [x, x * math.nan, x])
        (_, second) = attachment.registry
    assert torch.equal(scripted(x), model(x))
    assert torch.equal(traced(x), model(x))
    assert second.tally.applied == 3  # `nan_to_num` makes the batch finite


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bad", [None, 1])
def test_a_scripted_model_is_guarded(bad: int | None, settings: RunSettings) -> None:
    torch.manual_seed(0)
    model = torch.jit.script(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))
    inputs = [torch.randn(4, 3) * (math.nan if step == bad else 1.0) for step in range(4)]
    with attached(settings) as attachment:
        train(model, inputs)
        (loop,) = attachment.registry
    assert loop.tally.incidents == (0 if bad is None else 1)
    incident = loop.last_incident
    assert incident is None or not any("failed with" in note for note in incident.notes), "it has no forward in Python"
    assert all(bool(t.isfinite().all()) for t in (*model.parameters(), *model.buffers()))


EXPORTS = """
import torch
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
seen = [0]
def loss_of(x, counts):
    seen[0] += 1  # so that the loss is not computed again
    return (1.0 / counts * model(x).squeeze(-1).square()).mean()
for step in range(4):
    counts = torch.ones(4)
    counts[2] = float(step != 2)
    optimizer.zero_grad()
    loss_of(torch.randn(4, 3), counts).backward()
    optimizer.step()
torch.export.export(torch.nn.Linear(3, 1), (torch.ones(2, 3),), strict=True)
print("exported")
"""


def test_a_script_exports_a_model_after_an_unexplained_step(tmp_path: Path) -> None:
    """The trace of the steps that follow such a step still runs when the loop is over."""
    (tmp_path / "train.py").write_text(EXPORTS)
    command = [sys.executable, "-m", "nantrap", "run", "--run-dir", "run", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert "armed: the next" in done.stderr
    assert (done.returncode, done.stdout) == (0, "exported\n"), done.stderr


def test_a_complex_number_that_the_script_reads_is_no_loss(settings: RunSettings) -> None:
    model = nn.Linear(3, 3, dtype=torch.complex64)
    x = torch.ones(2, 3, dtype=torch.complex64)
    with attached(settings) as attachment:
        train(model, [x] * 2)
        for value in (1.0, math.nan):
            read = model(x * value).sum()
            assert isinstance(read.item(), complex)
            assert torch.isfinite(read).item() is (value == 1.0)
        train(model, [x] * 2)
        assert sum(loop.tally.incidents for loop in attachment.registry) == 0


def test_steps_on_the_meta_device_are_made(settings: RunSettings) -> None:
    with attached(settings) as attachment:
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        train(model, [torch.randn(2, 3, device="meta")] * 3)
        assert not list(attachment.registry)


class Full(TorchDispatchMode):
    """Memory ends at one of the copies that are made inside."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.ops.aten.clone.default:
            self.left -= 1
            if self.left == 0:
                raise torch.OutOfMemoryError("out of memory")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("at", [3, 9, 14, 18, 21])
def test_after_memory_has_ended_in_one_step_the_next_ones_are_made(at: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters())
    policy = nantrap.Policy(rollback=nantrap.Rollback(undo="always"))
    guard = nantrap.Guard(model, optimizer, policy=policy, quiet=True)

    def step(value: float = 1.0) -> nantrap.Outcome:
        guard.backward(model(torch.randn(4, 3) * value).pow(2).mean())
        return guard.step()

    full = Full(at)
    with full, contextlib.suppress(torch.OutOfMemoryError):  # a copy that is not needed is left out
        step()
    assert full.left <= 0
    assert [step().applied for _ in range(3)] == [True] * 3
    assert not step(math.nan).applied
    assert all(bool(t.isfinite().all()) for t in (*model.parameters(), *model.buffers()))


def test_buffers_that_the_first_call_makes(settings: RunSettings) -> None:
    """Statistics without trained parameters, which have no shape before the first batch."""

    def trained(guarded: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.LazyBatchNorm1d(affine=False), nn.Linear(4, 1))
        inputs = [torch.randn(8, 3) for _ in range(4)]
        with attached(settings) if guarded else contextlib.nullcontext():
            train(model, inputs)
        return list(model.state_dict().values())

    assert all(map(torch.equal, trained(guarded=True), trained(guarded=False)))
    lazy = nn.Sequential(nn.LazyBatchNorm1d(affine=False), nn.Linear(4, 1))
    with pytest.raises(nantrap.errors.UsageError, match=r"buffer '0\.running_mean' is still lazy"):
        nantrap.Guard(lazy, torch.optim.SGD(lazy.parameters(), lr=0.1))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["nested with strides", "nested", "sparse", "compressed", "masked", "int4", "opaque"])
def test_a_data_loader_gives_tensors_of_every_kind(kind: str, settings: RunSettings) -> None:
    def collate(rows: list[Tensor]) -> dict[str, object]:
        return {"x": torch.stack(rows), "odd": KINDS[kind](), "all": [KINDS[kind]() for _ in rows]}

    torch.manual_seed(0)
    with attached(settings) as attachment:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data: list[Tensor] = [*torch.randn(8, 3), torch.full((3,), math.nan), *torch.randn(3, 3)]
        for batch in torch.utils.data.DataLoader(data, batch_size=4, collate_fn=collate):  # type: ignore[arg-type]
            optimizer.zero_grad()
            model(batch["x"]).square().mean().backward()
            optimizer.step()
        (loop,) = attachment.registry
    assert (loop.tally.applied, loop.tally.skipped) == (2, 1)
    assert loop.last_incident is not None
    # a batch with a strided nested tensor is not followed to its dataset: it has no shape to compare
    assert loop.last_incident.dataset_indices == (() if kind == "nested with strides" else (8,))
