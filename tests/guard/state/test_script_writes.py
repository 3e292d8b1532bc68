"""Parameters without a gradient that the training script writes between steps: an averaged teacher, a mask."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from guard.loops import batches
from nantrap import Guard
from nantrap.guard.window import Outcome
from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings
from nantrap.record import open_run

FORMS = ["attempt", "two lines", "run"]
REPLACED = "the non-finite values that the program wrote into teacher.weight were replaced by the last finite ones"


class Distilled(nn.Module):
    """A student, and a teacher in half precision that only the script writes."""

    def __init__(self, *, reads_teacher: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.student = nn.Linear(6, 3)
        self.teacher = nn.Linear(6, 3).half().requires_grad_(requires_grad=False)
        self.reads_teacher = reads_teacher

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.student(x)
        return y - 0.1 * nn.functional.linear(x, self.teacher.weight.float()) if self.reads_teacher else y


Write = Callable[[Distilled, int], None]


def follow(model: Distilled, step: int, *, decay: float = 0.5) -> None:
    """What a loop does after a step: the teacher moves towards the student."""
    with torch.no_grad():
        for mean, weight in zip(model.teacher.parameters(), model.student.parameters(), strict=True):
            mean.copy_(decay * mean.float() + (1 - decay) * weight)


def overflows_at(bad: int) -> Write:
    """The same, and once with a value that half precision cannot hold."""

    def write(model: Distilled, step: int) -> None:
        follow(model, step)
        if step == bad:
            with torch.no_grad():
                model.teacher.weight[1].copy_(torch.full((6,), 1e5))

    return write


def train(form: str, model: Distilled, write: Write, folder: Path, *, steps: int = 6) -> list[bool]:
    """Train with a write before each step. Returns which steps were applied."""
    data = batches(steps)
    outcomes: list[Outcome] = []

    def loss(batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    if form == "run":
        with attached(RunSettings(run_dir=str(folder), quiet=True)):
            optimizer = torch.optim.SGD(model.student.parameters(), lr=0.01)
            for step, batch in enumerate(data):
                write(model, step)
                optimizer.zero_grad()
                loss(batch).backward()
                optimizer.step()
        return [bool(applied) for applied in open_run(folder).series[0].applied]
    guard = Guard(model, torch.optim.SGD(model.student.parameters(), lr=0.01), run_dir=folder, quiet=True)
    for step, batch in enumerate(data):
        write(model, step)
        if form == "attempt":
            outcomes.append(guard.attempt(loss, batch))
        else:
            guard.backward(loss(batch))
            outcomes.append(guard.step())
    guard.close()
    return [outcome.applied for outcome in outcomes]


@pytest.mark.parametrize("reads_teacher", [False, True])
@pytest.mark.parametrize("bad", [1, 4])
@pytest.mark.parametrize("form", FORMS)
def test_a_teacher_that_the_loop_makes_infinite_is_put_back(
    form: str, bad: int, reads_teacher: bool, tmp_path: Path
) -> None:
    model = Distilled(reads_teacher=reads_teacher)
    held: list[Tensor] = []
    writes = overflows_at(bad)

    def write(model: Distilled, step: int) -> None:
        if step >= bad:
            held.append(model.teacher.weight.detach().clone())
        writes(model, step)

    applied = train(form, model, write, tmp_path)
    assert applied == [step != bad for step in range(6)]
    assert torch.equal(held[0], held[1]), "as before the write that went wrong"
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    (incident,) = [folder.incident for folder in open_run(tmp_path).incidents]
    assert incident is not None
    assert incident.step == bad
    assert incident.cause is not None
    assert incident.cause.slug == "state_overwritten"
    assert incident.cause.proven
    assert incident.restored is True
    assert REPLACED in incident.notes
    assert any(f.name == "teacher.weight" and f.kind == "parameter" for f in incident.findings)
    assert (incident.phase, incident.module) == ("state", "teacher")


@pytest.mark.parametrize("form", FORMS)
def test_a_healthy_teacher_changes_nothing(form: str, tmp_path: Path) -> None:
    model, plain = Distilled(reads_teacher=True), Distilled(reads_teacher=True)
    assert all(train(form, model, follow, tmp_path))
    optimizer = torch.optim.SGD(plain.student.parameters(), lr=0.01)
    for step, (x, y) in enumerate(batches(6)):
        follow(plain, step)
        optimizer.zero_grad()
        nn.functional.mse_loss(plain(x), y).backward()
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


def masked(model: Distilled, step: int) -> None:
    if step == 3:
        with torch.no_grad():
            model.teacher.weight[0].fill_(float("-inf"))


def made_before_the_first_step(model: Distilled, step: int) -> None:
    if step == 0:
        with torch.no_grad():
            model.teacher.weight[0].fill_(float("inf"))


def loaded(model: Distilled, step: int) -> None:
    if step == 3:
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        state["teacher.weight"][0] = float("nan")
        model.load_state_dict(state)


@pytest.mark.parametrize("write", [masked, made_before_the_first_step, loaded])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_the_scripts_own_is_left_alone(form: str, write: Write, tmp_path: Path) -> None:
    """A mask of -Inf, and what was made before the first step or loaded, where no loss reads it."""
    model = Distilled(reads_teacher=False)
    assert all(train(form, model, write, tmp_path))
    assert not model.teacher.weight[0].isfinite().any()
    assert model.teacher.weight[1:].isfinite().all()
