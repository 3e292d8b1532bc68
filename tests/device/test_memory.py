"""Memory of the device: what the guard keeps, what a diagnosis needs, and what happens where there is not enough."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap import Policy, Rollback
from nantrap.locate.failure import is_replaying

Batch = tuple[Tensor, Tensor]
WIDTH, LAYERS, ROWS, BAD_AT = 256, 3, 256, 10
UNHURRIED = nantrap.Diagnosis(seconds=600, clock=lambda: 0.0)
NO_COPIES = Rollback(anchor_bytes=0)
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-4, fused=True),
}
in_use, most = torch.accelerator.memory_allocated, torch.accelerator.max_memory_allocated


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1]) + 1e-3 * torch.log(batch[0].square().sum(1)).mean()


class Run:
    """A few steps, with a batch of zeros among them if wanted; memory is counted from `base`."""

    def __init__(self, optimizer: str = "AdamW", policy: Policy | None = None) -> None:
        gc.collect()
        self.base = in_use()
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.BatchNorm1d(WIDTH)) for _ in range(LAYERS)]
        self.model = nn.Sequential(*layers).to("sim")
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.batch = torch.randn(ROWS, WIDTH).to("sim"), torch.randn(ROWS, WIDTH).to("sim")
        self.zeros = torch.zeros_like(self.batch[0]), self.batch[1]
        self.guard = None if policy is None else nantrap.Guard(self.model, self.optimizer, policy=policy, quiet=True)

    def steps(self, count: int, *, bad: bool = False, form: str = "attempt") -> tuple[int, int]:
        """The most memory that these steps needed, and what is in use after them."""
        torch.accelerator.reset_peak_memory_stats()
        for _ in range(count):
            self._step(self.zeros if bad else self.batch, form)
        return most() - self.base, in_use() - self.base

    def _step(self, batch: Batch, form: str) -> None:
        model, guard = self.model, self.guard
        if guard is not None and form == "attempt":
            guard.attempt(lambda given: loss_of(model, given), batch)
            return
        loss = loss_of(model, batch)
        if guard is not None:
            guard.backward(loss)
            guard.step()
            return
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, Tensor]:
        state = {name: value.cpu() for name, value in self.model.state_dict().items()}
        for key, entries in self.optimizer.state_dict()["state"].items():
            state |= {f"{key}.{name}": value.cpu() for name, value in entries.items()}
        return state


def after(steps: int, optimizer: str, policy: Policy | None = None) -> tuple[int, int]:
    """What a few more steps need in a run that nothing else shares the device with."""
    run = Run(optimizer, policy)
    run.steps(steps)
    return run.steps(4)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_guard_without_copies_needs_almost_nothing(optimizer: str) -> None:
    plain, _ = after(BAD_AT, optimizer)
    guarded, _ = after(BAD_AT, optimizer, Policy(rollback=NO_COPIES))
    assert guarded <= plain + 2**18  # copies of buffers, each a page of the device at least


def test_copies_for_a_rollback_take_what_they_copy() -> None:
    extra = after(40, "AdamW", Policy())[1] - after(40, "AdamW")[1]
    state = sum(value.numel() * value.element_size() for value in Run().state().values()) * 3  # and two moments
    assert 1.9 * state < extra < 3.2 * state  # two anchors, and one that is at most 8 steps old


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("copies", [True, False])
def test_a_diagnosis_needs_a_stated_share(optimizer: str, copies: bool) -> None:
    rollback = Rollback() if copies else NO_COPIES
    run = Run(optimizer, Policy(sync="step", diagnosis=UNHURRIED, rollback=rollback))
    run.steps(BAD_AT)
    healthy, held = run.steps(1)
    needed, after = run.steps(1, bad=True)
    state = sum(value.numel() * value.element_size() for value in run.state().values())
    assert run.guard is not None
    assert run.guard.last_incident is not None
    assert run.guard.last_incident.causes[0].proven
    assert needed - held <= 4 * (healthy - held) + (2.5 * state if copies else 0)
    assert after - held <= 0.02 * held  # nothing stays behind


@pytest.mark.parametrize(
    ("form", "sync", "share"),
    [
        ("attempt", "auto", 0.05),
        ("attempt", "step", 0.05),
        ("two lines", "auto", 0.05),
        *(pytest.param("two lines", "step", share, marks=pytest.mark.slow) for share in (0.05, 0.3)),
        *(pytest.param(form, "auto", 0.3, marks=pytest.mark.slow) for form in ("attempt", "two lines")),
        pytest.param("attempt", "step", 0.3, marks=pytest.mark.slow),
    ],
)
def test_a_diagnosis_without_memory_gives_up_in_words_and_the_run_goes_on(form: str, sync: Any, share: float) -> None:
    clean = Run(policy=Policy(sync=sync))
    clean.steps(BAD_AT + 3, form=form)
    run = Run(policy=Policy(sync=sync, diagnosis=UNHURRIED))
    healthy, _ = run.steps(BAD_AT, form=form)
    torch.ops.sim.set_capacity(0, run.base + int((1 + share) * healthy))
    run.steps(1, bad=True, form=form)
    run.steps(3, form=form)
    assert run.guard is not None
    incident = run.guard.last_incident
    assert incident is not None
    assert any(note.endswith("the device has too little free memory") for note in incident.notes), incident.notes
    assert not is_replaying()
    torch.ops.sim.set_capacity(0, 2**36)
    expected, found = clean.state(), run.state()
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []


def test_a_healthy_run_does_not_die_of_copies() -> None:
    run = Run(policy=Policy())
    healthy, _ = run.steps(BAD_AT)
    torch.ops.sim.set_capacity(0, run.base + int(1.03 * healthy))
    run.steps(60)
    assert run.guard is not None
    assert run.guard.tally.applied >= BAD_AT + 59  # the last one was not read yet
