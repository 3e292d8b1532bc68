"""Causes that lie in the state of an unmodified script: its learning rate, what it loaded, its loss scale."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nantrap.incident import Incident
from nantrap.incident.codec import decode_incident
from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor]) -> None:
    for x in batches:
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        optimizer.step()


def incidents_in(folder: Path) -> list[Incident]:
    paths = sorted(folder.glob("incidents/*/incident.json"))
    return [decode_incident(json.loads(path.read_text(encoding="utf-8"))) for path in paths]


def batches_of(count: int, *, giant: int | None = None) -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    batches = [torch.randn(8, 4, generator=draw) for _ in range(count)]
    if giant is not None:
        batches[giant][3] = 1e25
    return batches


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_a_learning_rate_that_throws_the_weights_away_is_proven(
    tmp_path: Path, kind: type[torch.optim.Optimizer]
) -> None:
    torch.manual_seed(0)
    with attached(RunSettings(run_dir=str(tmp_path))):
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 1))
        optimizer = kind(model.parameters(), lr=1e12)  # type: ignore[call-arg]
        train(model, optimizer, batches_of(4))
    cause = incidents_in(tmp_path)[0].causes[0]
    assert (cause.slug, cause.proven) == ("lr_too_high", True)
    assert "from the weights of step 0, fail again" in cause.evidence[-1].text


def test_a_giant_sample_is_not_called_a_learning_rate(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with attached(RunSettings(run_dir=str(tmp_path))):
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        train(model, optimizer, batches_of(4, giant=2))
    cause = incidents_in(tmp_path)[0].causes[0]
    assert (cause.slug, cause.proven) == ("input_out_of_scale", True)


@pytest.mark.parametrize("loaded", [True, False])
def test_a_load_that_was_seen_is_a_measurement(tmp_path: Path, loaded: bool) -> None:
    torch.manual_seed(0)
    with attached(RunSettings(run_dir=str(tmp_path))):
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
        state = {name: value.clone() for name, value in model.state_dict().items()}
        state["0.weight"][2, 3] = float("inf")
        if loaded:
            model.load_state_dict(state)
        else:
            with torch.no_grad():
                next(model.parameters()).copy_(state["0.weight"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        train(model, optimizer, batches_of(2))
    incidents = incidents_in(tmp_path)
    assert [incident.causes[0].proven for incident in incidents] == [loaded, loaded]
    assert incidents[0].causes[0].slug == "corrupt_checkpoint"
    words = "load_state_dict wrote the model before the first step, and left it non-finite"
    assert (incidents[0].causes[0].evidence[-1].text == words) is loaded


@pytest.mark.parametrize("anew", [True, False])
def test_a_scaler_that_is_made_anew_in_each_epoch(tmp_path: Path, anew: bool) -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings(), attached(RunSettings(run_dir=str(tmp_path))):
        warnings.simplefilter("ignore")
        model = nn.Linear(4, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        for number, x in enumerate(batches_of(24)):
            if anew and number % 4 == 0:
                scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                pred = model(30 * x)
            loss = (pred.float() - 300).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    incidents = incidents_in(tmp_path)
    assert bool(incidents) is anew
    if anew:
        cause = incidents[0].causes[0]
        assert cause.slug == "loss_scale_misuse"
        assert "a GradScaler at most doubles it" in "\n".join(evidence.text for evidence in cause.evidence)
        assert cause.fix is not None
        assert cause.fix.text.startswith("make one GradScaler before the first epoch and keep it")


def train_discriminator(batches: list[Tensor]) -> None:
    """Two backward passes a step, as in PyTorch's tutorial: on real samples, then on made ones."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(2)
    for real in batches:
        optimizer.zero_grad()
        on_real = nn.functional.softplus(-model(real)).mean()
        on_real.backward()
        made = torch.randn(8, 4, generator=draw)
        on_made = nn.functional.softplus(model(made)).mean()
        on_made.backward()
        optimizer.step()


def test_a_giant_in_the_first_of_two_backward_passes_is_the_cause_and_not_the_buffer(tmp_path: Path) -> None:
    with attached(RunSettings(run_dir=str(tmp_path))):
        train_discriminator(batches_of(5, giant=3))
    (incident,) = incidents_in(tmp_path)
    cause = incident.causes[0]
    assert (cause.slug, cause.proven, incident.samples) == ("input_out_of_scale", True, (3,))
    assert "it began in micro-batch 1 of 2" in incident.notes
    assert "before the step" not in "".join(evidence.text for evidence in cause.evidence)


def fit(optimizer: torch.optim.Optimizer, model: nn.Module, inputs: list[Tensor], target: Tensor) -> None:
    for x in inputs:

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = (model(x) - target).pow(2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        (10.0, "a learning rate of 10 is beyond the stability limit: the updates threw the weights away"),
        (1000.0, "a learning rate of 1000 is beyond the stability limit: within one step the updates threw the "),
    ],
)
def test_the_updates_inside_one_step_of_lbfgs_are_made_again(tmp_path: Path, rate: float, said: str) -> None:
    torch.manual_seed(0)
    with attached(RunSettings(run_dir=str(tmp_path))):
        model = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 20), nn.Softplus(), nn.Linear(20, 1))
        x = torch.rand(100, 2)
        target = (x[:, :1] * 3).sin() + x[:, 1:] ** 2
        fit(torch.optim.LBFGS(model.parameters(), lr=rate, max_iter=5), model, [x] * 2, target)
    incident = incidents_in(tmp_path)[0]
    cause = incident.causes[0]
    assert (cause.slug, cause.proven) == ("lr_too_high", True)
    assert cause.summary.startswith(said)
    assert cause.fix is not None
    assert cause.fix.verified
    assert cause.fix.words.endswith('let a line search choose it (LBFGS: line_search_fn="strong_wolfe")')
    assert not [note for note in incident.notes if "differ" in note or "finite" in note]
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_a_bad_batch_of_lbfgs_is_no_learning_rate(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with attached(RunSettings(run_dir=str(tmp_path))):
        model = nn.Linear(2, 1)
        x, bad = torch.rand(16, 2), torch.rand(16, 2)
        bad[3, 1] = torch.nan
        fit(torch.optim.LBFGS(model.parameters(), max_iter=3), model, [x, bad], x.sum(1, keepdim=True))
    cause = incidents_in(tmp_path)[0].causes[0]
    assert (cause.slug, cause.proven) == ("bad_input_data", True)


@pytest.mark.parametrize("bad_at", [1, 3])
def test_what_a_hook_of_the_update_makes_of_a_teacher_belongs_to_the_update(tmp_path: Path, bad_at: int) -> None:
    torch.manual_seed(0)
    steps = []
    with attached(RunSettings(run_dir=str(tmp_path))):
        student, teacher = nn.Linear(4, 2), nn.Linear(4, 2).requires_grad_(False)
        model = nn.ModuleDict({"student": student, "teacher": teacher})
        model.forward = lambda x: (student(x) - teacher(x)).square().mean()
        optimizer = torch.optim.Adam(student.parameters())

        @torch.no_grad()
        def average(*_: object) -> None:
            steps.append(0)
            divisor = torch.tensor(0.0 if len(steps) == bad_at else 2.0)
            for mean, weight in zip(teacher.parameters(), student.parameters(), strict=True):
                mean.add_(weight).abs_().div_(divisor)

        optimizer.register_step_post_hook(average)
        for x in batches_of(5):
            loss = model(x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    (incident,) = incidents_in(tmp_path)
    assert (incident.step, incident.phase) == (bad_at - 1, "optimizer")
    assert (incident.causes[0].slug, incident.causes[0].proven) == ("ema_poisoned", True)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_what_a_state_does_not_have_was_not_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    with attached(RunSettings(run_dir=str(tmp_path))):
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
        state = {name: value.clone() for name, value in model.state_dict().items() if name != "1.weight"}
        with torch.no_grad():
            model.get_parameter("1.weight").fill_(torch.nan)
        model.load_state_dict(state, strict=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        train(model, optimizer, batches_of(1))
    assert "resume: the state that was loaded into Sequential has no 1.weight, and" in capsys.readouterr().err
    assert not [c for i in incidents_in(tmp_path) for c in i.causes if c.slug == "corrupt_checkpoint" and c.proven]


@pytest.mark.parametrize("rollback", [True, False])
@pytest.mark.parametrize("times", [1, 3])
def test_weights_that_the_script_spoils_make_way_for_an_older_state(
    tmp_path: Path, times: int, rollback: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    with attached(RunSettings(run_dir=str(tmp_path), rollback=rollback)) as attachment:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(times):
            train(model, optimizer, batches_of(10))
            with torch.no_grad():
                model.bias.fill_(float("nan"))
        train(model, optimizer, batches_of(3))
        (loop,) = attachment.registry
        assert loop.bad_state() == []
        assert loop.tally.rollbacks == times
        assert [group["lr"] for group in optimizer.param_groups] == [0.01]
    said = capsys.readouterr().err
    assert "state of step 8, lr now 0.01" in said  # the newest copy, not the first
    assert ("state of step 29" in said) is (times == 3)
