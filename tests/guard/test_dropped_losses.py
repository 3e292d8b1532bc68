"""The two-line form with the loop's own `if isnan(loss): continue` left in: each bad loss that is dropped is counted,
located and explained, and the run is what it is without a guard. Next door: losses that are used later, or were run
backward, or are finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import nantrap

BAD = (7, 8, 20, 29)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Loop:
    """A model with its guard, or without one, and how many losses the loop itself has dropped."""

    def __init__(self, *, guarded: bool = True, run_dir: Path | None = None) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.guard = (
            nantrap.Guard(self.model, self.optimizer, run_dir=run_dir, quiet=run_dir is None) if guarded else None
        )
        self.dropped = 0

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.model(x), y)

    def update(self, loss: Tensor) -> None:
        if self.guard is not None:
            self.guard.backward(loss)
            self.guard.step()
            return
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def batches(number: int = 30, bad: tuple[int, ...] = BAD) -> Iterator[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    for index in range(number):
        x, y = torch.randn(16, 8), torch.randint(0, 3, (16,))
        if index in bad:
            x[5, 2] = math.nan
        yield x, y


def with_isnan(loop: Loop) -> None:
    for x, y in batches():
        loss = loop.loss(x, y)
        if torch.isnan(loss):
            loop.dropped += 1
            continue
        loop.update(loss)


def with_item(loop: Loop) -> None:
    for x, y in batches():
        loss = nn.functional.cross_entropy(loop.model(x), y)
        if not math.isfinite(loss.item()):
            loop.dropped += 1
            continue
        loop.update(loss)


def in_a_function(loop: Loop) -> None:
    def train_step(x: Tensor, y: Tensor) -> None:
        out = loop.model(x)
        loss = nn.functional.cross_entropy(out, y)
        if loss != loss:
            loop.dropped += 1
            return
        loop.update(loss)

    for x, y in batches():
        train_step(x, y)


def a_sum_in_a_function(loop: Loop) -> None:
    def train_step(x: Tensor, y: Tensor) -> None:
        outputs = [loop.model(part) for part in x.chunk(2)]
        loss = nn.functional.cross_entropy(torch.cat(outputs), y)
        if loss != loss:
            loop.dropped += 1
            return
        loop.update(loss)

    for x, y in batches():
        train_step(x, y)


def in_the_loss(loop: Loop) -> None:
    for index, (x, _) in enumerate(batches(bad=())):
        share = loop.model(x).softmax(-1)[:, 0]
        loss = -(share * (index not in (5, 6, 12))).log().mean()
        if not torch.isfinite(loss):
            loop.dropped += 1
            continue
        loop.update(loss)


DROPPING = [with_isnan, with_item, in_a_function, a_sum_in_a_function, in_the_loss]


@pytest.mark.parametrize("program", DROPPING)
def test_a_loss_that_the_loop_drops_is_an_incident_and_a_skipped_step(program: Callable[[Loop], None]) -> None:
    loop = Loop()
    assert loop.guard is not None
    with loop.guard as guard:
        program(loop)
    tally = guard.tally
    assert loop.dropped >= 3
    assert (tally.attempted, tally.applied) == (30, 30 - loop.dropped)
    assert tally.skipped == tally.given_up == tally.incidents == loop.dropped
    cause = "log_of_zero" if program is in_the_loss else "bad_input_data"
    assert set(tally.causes) == {cause}
    assert f"{loop.dropped} skipped steps ({loop.dropped} by the script itself)" in guard.summary()


@pytest.mark.parametrize("program", DROPPING)
def test_the_run_is_what_it_is_without_a_guard(program: Callable[[Loop], None]) -> None:
    """The weights are the same bits. Running statistics are those of the good batches; without a guard they are NaN."""
    guarded, plain = Loop(), Loop(guarded=False)
    program(guarded)
    program(plain)
    assert guarded.guard is not None
    guarded.guard.close()
    assert guarded.dropped == plain.dropped
    for (name, one), other in zip(guarded.model.named_parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, other), name
    assert all(torch.isfinite(buffer.float()).all() for buffer in guarded.model.buffers())


def test_a_dropped_loss_is_printed_and_in_the_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop = Loop(run_dir=tmp_path)
    with_item(loop)
    assert loop.guard is not None
    loop.guard.close()
    said = capsys.readouterr().err
    assert "\nerror[NT101]: the model's input already contains NaN" in said
    assert "nantrap: step 7 skipped; lr 0.01; the script skipped this batch itself\n" in said
    assert "the script skipped this batch itself" in said
    assert "= sample: 5\n" in said
    assert (tmp_path / "journal-r0.jsonl").read_text().count('"by":"script"') == 4


@pytest.mark.parametrize("drops", [True, False], ids=["dropped as well", "refused by the guard"])
def test_a_bad_step_after_a_dropped_loss_names_its_own_samples(drops: bool) -> None:
    """The call of the loss that was dropped just before is no part of it."""
    loop = Loop()
    assert loop.guard is not None
    incidents = []
    with loop.guard as guard:
        for number in range(6):
            x, y = torch.randn(16, 8), torch.randint(0, 3, (16,))
            if number in (2, 3):
                x[5 + number, 2] = math.nan
            loss = loop.loss(x * 2, y)
            if torch.isnan(loss) and (drops or number == 2):
                continue
            loop.update(loss)
            if guard.last_incident is not None:
                incidents.append(guard.last_incident)
        if drops:
            loop.loss(torch.randn(16, 8), torch.randint(0, 3, (16,)))
            incidents = [guard.last_incident] if guard.last_incident is not None else []
    last = incidents[-1]
    assert (last.step, last.samples) == (3, (8,))
    assert not any("of call" in finding.name for finding in last.findings)


def test_a_micro_batch_that_the_loop_drops_is_no_step() -> None:
    def run(loop: Loop) -> None:
        for index, (x, y) in enumerate(batches(32, bad=(9, 16, 23))):
            loss = nn.functional.cross_entropy(loop.model(x), y) / 4
            if not torch.isfinite(loss):
                loop.dropped += 1
            elif loop.guard is not None:
                loop.guard.backward(loss)
            else:
                loss.backward()
            if index % 4 == 3 and loop.guard is not None:
                loop.guard.step()
            elif index % 4 == 3:
                loop.optimizer.step()
                loop.optimizer.zero_grad()

    guarded, plain = Loop(), Loop(guarded=False)
    run(guarded)
    run(plain)
    assert guarded.guard is not None
    tally = guarded.guard.tally
    assert (tally.attempted, tally.applied, tally.given_up) == (8, 8, 0)
    assert tally.dropped_micro_batches == tally.incidents == guarded.dropped == 3
    for one, other in zip(guarded.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_most_steps_skipped_by_the_loop_are_said() -> None:
    loop = Loop()
    assert loop.guard is not None
    with loop.guard as guard:
        for x, y in batches(60, bad=tuple(range(10, 60))):
            loss = loop.loss(x, y)
            if torch.isnan(loss):
                continue
            loop.update(loss)
    assert "MOST STEPS WERE SKIPPED: only 10 of 60 were applied" in guard.summary()
    assert "the script skipped the last 50 steps itself: nothing was learned (NT505 dead_training)" in guard.summary()


def summed(loop: Loop) -> None:
    for index in range(6):
        loss = torch.zeros(())
        for x, y in batches(4, bad=(2,) if index == 3 else ()):
            loss = loss + loop.loss(x, y)
        loop.update(loss / 4)


def listed(loop: Loop) -> None:
    for index in range(6):
        losses = []
        for x, y in batches(4, bad=(2,) if index == 3 else ()):
            losses.append(loop.loss(x, y))
        loop.update(torch.stack(losses).mean())


def run_backward_later(loop: Loop) -> None:
    assert loop.guard is not None
    for index in range(6):
        losses = [loop.loss(x, y) / 4 for x, y in batches(4, bad=(2,) if index == 3 else ())]
        for loss in losses:
            loop.guard.backward(loss)
        loop.guard.step()


@pytest.mark.parametrize("program", [summed, listed, run_backward_later])
def test_a_bad_loss_that_is_used_later_was_not_dropped(program: Callable[[Loop], None]) -> None:
    loop = Loop()
    assert loop.guard is not None
    with loop.guard as guard:
        program(loop)
    assert (guard.tally.attempted, guard.tally.given_up, guard.tally.incidents) == (6, 0, 1)


def test_finite_losses_that_are_dropped_and_other_passes_are_no_incidents() -> None:
    loop = Loop()
    assert loop.guard is not None
    with loop.guard as guard:
        for index, (x, y) in enumerate(batches(bad=())):
            loss = loop.loss(x, y)
            if index % 3 == 0:
                continue  # finite, and left out for another reason
            loop.update(loss)
            loop.model.eval()
            validation = loop.loss(x * math.nan, y)
            loop.model.train()
            assert validation.isnan()
    assert (guard.tally.attempted, guard.tally.applied, guard.tally.incidents) == (20, 20, 0)


def test_a_bad_loss_that_the_loop_runs_backward_without_the_guard_was_not_dropped() -> None:
    loop = Loop()
    assert loop.guard is not None
    with loop.guard as guard:
        for x, y in batches():
            loss = loop.loss(x, y)
            loss.backward()
            loop.optimizer.zero_grad()
    assert guard.tally.incidents == guard.tally.attempted == 0
