"""What a refused step restores in addition to the model's own state."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from guard.loops import FORMS, batches, make_run, poison
from nantrap import Guard
from nantrap.incident import Incident
from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings
from nantrap.record import open_run
from nantrap.report.diagnostics import done_text


class Centred(nn.Module):
    """A loss with a running mean and a learnable scale: neither belongs to the model."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, y: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        return (self.scale * (y - self.mean)).square().mean()


def test_a_loss_module_next_to_the_model() -> None:
    torch.manual_seed(0)
    model, loss = nn.Linear(6, 3), Centred()
    guard = Guard(model, torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.1), also=[loss], quiet=True)
    data = batches(3)
    assert guard.attempt(lambda b: loss(model(b[0])), data[0]).applied
    before = loss.mean.clone()
    incident = guard.attempt(lambda b: loss(model(b[0])), poison(data[1])).incident
    assert incident is not None
    assert incident.restored is True
    assert torch.equal(before, loss.mean)
    assert "centred.scale" in {finding.name for finding in incident.findings}
    assert guard.attempt(lambda b: loss(model(b[0])), data[2]).applied


class Codebook(nn.Module):
    """Its forward pass writes a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.code = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        with torch.no_grad():
            self.code.mul_(0.9).add_(y.mean(0), alpha=0.1)
        return y - self.code.detach() + 0 * self.code


@pytest.mark.parametrize("bad", [0, 1, 4])
@pytest.mark.parametrize("diagnose", ["full", "off"])
def test_a_parameter_that_the_forward_pass_writes(bad: int, diagnose: str) -> None:
    from nantrap import Policy

    run = make_run(model=Codebook)
    guard = run.guard(policy=Policy(diagnose=diagnose))  # type: ignore[arg-type]
    for step, batch in enumerate(run.batches[:6]):
        before = run.model.code.detach().clone()
        outcome = guard.attempt(run.forward, poison(batch) if step == bad else batch)
        assert outcome.applied is (step != bad)
        if step == bad:
            assert outcome.incident is not None
            assert outcome.incident.restored is True
            assert torch.equal(before, run.model.code)
        else:
            assert not torch.equal(before, run.model.code)


class Writes(nn.Module):
    """Its forward pass writes what is asked for, from step `since` on."""

    large: Tensor

    def __init__(self, what: str, since: int) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("large", torch.ones(5000))
        self.plain = torch.ones(3)
        self.count = 0
        self.generator = torch.Generator().manual_seed(3)
        self.what, self.since, self.passes = what, since, torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        self.passes += 1
        if self.passes > self.since:
            with torch.no_grad():
                self.write(y.detach().mean(0))
        return y

    def write(self, mean: Tensor) -> None:
        if self.what == "frozen":
            self.frozen.mul_(0.9).add_(mean)
        elif self.what == "frozen.data":
            self.frozen.data.add_(mean)
        elif self.what == "trained.data":
            self.layer.bias.data.add_(mean)
        elif self.what == "large.data":
            self.large.data.add_(mean.sum())
        elif self.what == "plain":
            self.plain = self.plain + mean
        elif self.what == "plain in place":
            self.plain.add_(mean)
        elif self.what == "count":
            self.count += 1
        elif self.what == "generator":
            torch.rand(1, generator=self.generator)

    def held(self) -> list[Tensor]:
        parts = [*self.parameters(), *self.buffers(), self.plain, torch.tensor(self.count)]
        return [part.detach().clone() for part in parts] + [self.generator.get_state()]


EVERYTHING = ["frozen", "trained.data", "large.data", "plain", "plain in place", "count", "generator"]


def refused(form: str, what: str, since: int) -> tuple[Writes, list[Tensor], Incident]:
    """A run whose fourth batch is NaN. Returns the model, what it held before that step, and the incident."""
    run = make_run(model=lambda: Writes(what, since))
    guard = run.guard()
    model = run.model
    assert isinstance(model, Writes)
    FORMS[form](run, guard, run.windows(run.batches[:3]))
    before = model.held()
    FORMS[form](run, guard, [(poison(run.batches[3]),)])
    incident = run.outcomes[-1].incident
    assert incident is not None
    return model, before, incident


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("what", EVERYTHING)
def test_whatever_a_forward_pass_writes_is_put_back(form: str, what: str) -> None:
    model, before, incident = refused(form, what, since=0)
    assert incident.restored is True, incident.notes
    assert all(torch.equal(a, b) for a, b in zip(before, model.held(), strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_a_frozen_parameter_that_is_written_for_the_first_time(form: str) -> None:
    model, before, incident = refused(form, "frozen", since=3)
    assert incident.restored is True, incident.notes
    assert all(torch.equal(a, b) for a, b in zip(before, model.held(), strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_what_could_not_be_put_back_is_said(form: str) -> None:
    """A write that is not counted, for the first time, into a large buffer: only an older copy is there."""
    model, _, incident = refused(form, "large.data", since=3)
    assert incident.restored is False
    assert any(note.startswith("not restored to the values before the step: buffer large") for note in incident.notes)
    assert "could not restore everything" in done_text(incident)
    assert model.large.isfinite().all()


@pytest.mark.parametrize("form", FORMS)
def test_a_teacher_that_the_loop_writes_belongs_to_the_loop(form: str) -> None:
    run = make_run(model=lambda: Writes("frozen", since=10**6))
    guard = run.guard()
    for step, batch in enumerate(run.batches[:5]):
        FORMS[form](run, guard, [(poison(batch) if step == 3 else batch,)])
        if step == 3:
            assert run.outcomes[-1].incident is not None
            assert run.outcomes[-1].incident.restored is True
            assert not any("replaced by the last finite ones" in note for note in run.outcomes[-1].incident.notes)
        assert torch.equal(run.model.frozen, torch.full((3,), 1.0 + step))  # type: ignore[arg-type]
        with torch.no_grad():
            run.model.frozen.add_(1.0)  # type: ignore[operator, union-attr]


class NoMembers(nn.Module):
    """A code that no sample uses becomes 0/0, in a parameter without a gradient. The loss does not read it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.codes = nn.Parameter(torch.ones(2, 3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        with torch.no_grad():
            members = torch.stack([x[:, 0] < 50, x[:, 0] > -50]).float()
            self.codes.copy_(members @ y / members.sum(1, keepdim=True))
        return y


@pytest.mark.parametrize("form", [*FORMS, "run"])
def test_nan_in_a_frozen_parameter_refuses_the_step(form: str, tmp_path: Path) -> None:
    run = make_run(model=NoMembers)
    batches = [(x.clone(), y) for x, y in run.batches[:4]]
    batches[2][0][:, 0] = 60.0
    if form != "run":
        FORMS[form](run, run.guard(), [(batch,) for batch in batches])
        assert [outcome.applied for outcome in run.outcomes] == [True, True, False, True]
        incident = run.outcomes[2].incident
        assert incident is not None
        assert incident.restored is True
        assert [(f.kind, f.name) for f in incident.findings if f.phase == "forward" and f.kind != "activation"] == [
            ("parameter", "codes")
        ]
        assert incident.cause is not None
        assert incident.cause.slug in ("state_overwritten", "division_by_zero")
    else:
        with attached(RunSettings(run_dir=str(tmp_path), quiet=True)):
            optimizer = torch.optim.SGD(run.model.layer.parameters(), lr=0.01)  # type: ignore[union-attr]
            for x, y in batches:
                optimizer.zero_grad()
                nn.functional.mse_loss(run.model(x), y).backward()
                optimizer.step()
        assert open_run(tmp_path).series[0].applied.tolist() == [True, True, False, True]
    assert run.model.codes.isfinite().all()  # type: ignore[operator, union-attr]


def test_a_disabled_scaler_is_no_scaler() -> None:
    run = make_run(scaler=lambda: torch.amp.GradScaler("cpu", enabled=False))
    guard = run.guard()
    assert guard.attempt(run.forward, run.batches[0]).applied
    assert not guard.attempt(run.forward, poison(run.batches[1])).applied
    assert guard.attempt(run.forward, run.batches[2]).applied


def test_a_guard_does_not_clip_unless_asked() -> None:
    torch.manual_seed(0)
    plain, guarded = nn.Linear(6, 3), nn.Linear(6, 3)
    guarded.load_state_dict(plain.state_dict())
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
    guard = Guard(guarded, torch.optim.SGD(guarded.parameters(), lr=0.01), quiet=True)
    for x, y in batches(4):
        loss = 100 * nn.functional.mse_loss(plain(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert guard.attempt(lambda b: 100 * nn.functional.mse_loss(guarded(b[0]), b[1]), (x, y)).grad_norm > 1
    assert torch.equal(plain.weight, guarded.weight)


class Around(torch.optim.Optimizer):
    """An optimizer that keeps another one, and whose update can go wrong."""

    goes_wrong = False

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.fast = torch.optim.AdamW(parameters, lr=0.1)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.fast.step()
        if self.goes_wrong:
            with torch.no_grad():
                self.param_groups[0]["params"][0].fill_(float("nan"))


def test_the_state_of_an_optimizer_inside_an_optimizer() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = Around(list(model.parameters()))
    guard = Guard(model, optimizer, quiet=True)

    def loss(batch: tuple[Tensor, Tensor]) -> Tensor:
        return (model(batch[0]) - batch[1]).square().mean()

    data = batches(3)
    assert guard.attempt(loss, data[0]).applied
    before = {key: value.clone() for key, value in optimizer.fast.state[model.weight].items()}
    optimizer.goes_wrong = True
    incident = guard.attempt(loss, data[1]).incident
    optimizer.goes_wrong = False
    assert incident is not None
    assert incident.restored is True
    after = optimizer.fast.state[model.weight]
    assert all(torch.equal(before[key], after[key]) for key in ("step", "exp_avg", "exp_avg_sq"))
    assert guard.attempt(loss, data[2]).applied
