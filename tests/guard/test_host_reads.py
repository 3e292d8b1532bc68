"""How often the host waits for the device. Counted on a CPU: every call that brings a tensor's value to Python."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from guard.loops import FORMS, Run, make_run, train_plain
from nantrap import Policy

READS = {torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.__bool__, torch.Tensor.__float__, torch.Tensor.__int__}


class Calls(TorchFunctionMode):
    """Python-level reads. `tolist` never shows below: it copies memory without a dispatched operation."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in READS
        return func(*args, **(kwargs or {}))


class Dispatched(TorchDispatchMode):
    """Reads inside torch itself."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


def reads(run: Run, step: Any, *, warm: int = 2) -> tuple[int, int]:
    """Reads in each of the next steps, after a few that warm up: Python-level, and dispatched scalar reads."""
    for batch in run.batches[:warm]:
        step(batch)
    most = most_dispatched = 0
    for batch in run.batches[warm:]:
        with Calls() as calls, Dispatched() as dispatched:
            step(batch)
        most = max(most, calls.count)
        most_dispatched = max(most_dispatched, dispatched.seen["aten._local_scalar_dense.default"])
    return most, most_dispatched


def plain_step(run: Run) -> Any:
    def step(batch: Any) -> None:
        train_plain(run, [(batch,)])

    run.losses = _Ignore()  # the plain loop of the comparison does not log
    return step


class _Ignore(list):  # type: ignore[type-arg]
    def append(self, value: Any) -> None:
        pass


def quiet_net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


@pytest.fixture
def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the way that a loss on a device takes: nothing is read before the end of the step."""
    monkeypatch.setattr("nantrap.guard.collect.reads_at_once", lambda loss: False)


def guarded(form: str, run: Run, **options: Any) -> Any:
    guard = run.guard(**options)
    return lambda batch: FORMS[form](run, guard, [(batch,)])


@pytest.mark.usefixtures("as_on_a_device")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fused", [False, True])
def test_one_read_a_step(form: str, fused: bool, tmp_path: Any) -> None:
    def adamw(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)

    def terms(model: nn.Module, batch: Any) -> Any:
        output = model(batch[0])
        return {"a": nn.functional.mse_loss(output, batch[1]), "b": output.square().mean()}

    run = make_run(adamw, model=quiet_net, loss=terms)
    python, dispatched = reads(run, guarded(form, run, run_dir=tmp_path, watch=("*",)))
    bare = make_run(adamw, model=quiet_net, loss=terms)
    plain_python, plain_dispatched = reads(bare, plain_step(bare))
    assert python - (plain_python - 1) <= 1  # one of the plain loop's is this test's own float(loss)
    assert dispatched <= max(0, plain_dispatched - 1)


@pytest.mark.usefixtures("as_on_a_device")
@pytest.mark.parametrize("form", FORMS)
def test_one_read_a_step_beyond_the_scalers_own(form: str) -> None:
    def made() -> Run:
        return make_run(model=quiet_net, scaler=lambda: torch.amp.GradScaler("cpu", init_scale=8.0))

    run, bare = made(), made()
    python, _ = reads(run, guarded(form, run))
    plain_python, _ = reads(bare, plain_step(bare))
    assert python - (plain_python - 1) <= 1


@pytest.mark.parametrize("form", FORMS)
def test_no_read_in_a_late_step(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU the values of the step before are read as well: the device tests count that this does not wait."""

    def adamw(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    run = make_run(adamw, model=quiet_net, data=[*make_run().batches, *make_run().batches])
    guard = run.guard(policy=Policy(sync="late"))
    taken = []
    assert guard._late is not None
    settle = guard._late.settle

    def settled() -> Any:
        with torch._C.DisableTorchFunction():
            taken.append(1)
            return settle()

    monkeypatch.setattr(guard._late, "settle", settled)
    python, dispatched = reads(run, lambda batch: FORMS[form](run, guard, [(batch,)]), warm=10)
    assert (python, dispatched) == (0, 0)
    assert len(taken) == len(run.batches)


def test_the_counters_can_count() -> None:
    with Calls() as calls, Dispatched() as dispatched:
        torch.ones(3).tolist()
        torch.ones(()).item()
        bool(torch.ones(()))
    assert calls.count == 3
    assert dispatched.seen["aten._local_scalar_dense.default"] == 2
