"""The resume check: which restored state overrides the configured rate, and what else does not fit, in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

import nantrap
from nantrap.checkpoints import CheckpointStore
from nantrap.checkpoints.audit import audit
from nantrap.checkpoints.store.config_rate import compare_with_config, configured_rate
from nantrap.checkpoints.store.resume import check_resume

OLD, NEW = 5e-4, 1e-4
Made = tuple[Optimizer, Any]


def one_cycle(rate: float) -> Made:
    optimizer = torch.optim.AdamW([nn.Parameter(torch.ones(2))], lr=rate)
    return optimizer, lr_scheduler.OneCycleLR(optimizer, max_lr=rate, total_steps=100)


def cosine(rate: float) -> Made:
    optimizer = torch.optim.AdamW([nn.Parameter(torch.ones(2))], lr=rate)
    return optimizer, lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)


def warmup_lambda(rate: float) -> Made:
    optimizer = torch.optim.AdamW([nn.Parameter(torch.ones(2))], lr=rate)
    return optimizer, lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))


def warmup_then_cosine(rate: float) -> Made:
    optimizer = torch.optim.AdamW([nn.Parameter(torch.ones(2))], lr=rate)
    warmup = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
    return optimizer, lr_scheduler.SequentialLR(
        optimizer, [warmup, lr_scheduler.CosineAnnealingLR(optimizer, 100)], milestones=[5]
    )


SCHEDULES: dict[str, Callable[[float], Made]] = {
    "one_cycle": one_cycle,
    "cosine": cosine,
    "lambda": warmup_lambda,
    "sequential": warmup_then_cosine,
}


def advance(optimizer: Optimizer, scheduler: Any, steps: int = 30) -> float:
    for _ in range(steps):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        scheduler.step()
    return float(optimizer.param_groups[0]["lr"])


def resumed(schedule: str, *, optimizer_state: bool = True, scheduler_state: bool = True, rate: float = NEW) -> Made:
    """A run configured with `rate`, into which states of a run with OLD are loaded."""
    old, old_scheduler = SCHEDULES[schedule](OLD)
    advance(old, old_scheduler)
    optimizer, scheduler = SCHEDULES[schedule](rate)
    if optimizer_state:
        optimizer.load_state_dict(old.state_dict())
    if scheduler_state:
        scheduler.load_state_dict(old_scheduler.state_dict())
    return optimizer, scheduler


def rate_finding(optimizer: Optimizer, scheduler: Any, **options: Any) -> Any:
    found = [f for f in check_resume(optimizer=optimizer, scheduler=scheduler, lr=NEW, **options) if f.kind == "rate"]
    return found[0] if found else None


def test_the_historic_case_word_for_word() -> None:
    """Optimizer and scheduler state restored: the old learning rate stays though the configuration has another one."""
    finding = rate_finding(*resumed("one_cycle"))
    assert finding.text == (
        "the learning rate is 0.0004997, the configuration says 0.0001: the restored optimizer state overrides it "
        "(param_groups[0]: lr 0.0004997, max_lr 0.0005)"
    )
    assert finding.help == (
        'check_resume(lr=0.0001, take="configured") sets the configured learning rate at step 30 of the schedule; '
        "do nothing if you want the old learning rate"
    )
    assert finding.severity == "error"
    assert str(finding) == f"{finding.text}\nhelp: {finding.help}"


@pytest.mark.parametrize(
    ("schedule", "optimizer_state", "scheduler_state", "sources"),
    [
        ("one_cycle", True, True, ("optimizer",)),
        ("one_cycle", True, False, ("optimizer",)),
        ("one_cycle", False, True, None),  # the scheduler's state alone does not hold a learning rate
        ("cosine", True, True, ("optimizer",)),
        ("cosine", True, False, ("optimizer",)),
        ("cosine", False, True, ()),
        ("lambda", True, True, ("optimizer", "scheduler")),
        ("lambda", True, False, ("optimizer",)),
        ("lambda", False, True, ("scheduler",)),
        ("sequential", True, True, ("optimizer",)),
        ("sequential", False, False, None),
    ],
)
def test_which_state_overrides(
    schedule: str, optimizer_state: bool, scheduler_state: bool, sources: tuple[str, ...] | None
) -> None:
    made = resumed(schedule, optimizer_state=optimizer_state, scheduler_state=scheduler_state)
    finding = rate_finding(*made)
    assert (None if finding is None else finding.data["sources"]) == sources
    # and it is true: the next learning rate of the run, compared with a run in which the configured one was set
    other = resumed(schedule, optimizer_state=optimizer_state, scheduler_state=scheduler_state)
    rate_finding(*other, take="configured")
    for_good = bool(sources) and "for the next step only" not in finding.text
    assert advance(*made, 1) / advance(*other, 1) == pytest.approx(OLD / NEW if for_good else 1.0)


def test_lambda_computes_from_its_own_base_rates() -> None:
    both = rate_finding(*resumed("lambda"))
    assert both.text.endswith(
        "the restored optimizer state overrides it (param_groups[0]: lr 0.0005, initial_lr 0.0005) and the restored "
        "scheduler state overrides it (base_lrs[0]: 0.0005)"
    )
    alone = rate_finding(*resumed("lambda", scheduler_state=False))
    assert alone.text.endswith("; for the next step only, then the schedule computes it from its own base_lrs")
    without_effect = rate_finding(*resumed("cosine", optimizer_state=False))
    assert without_effect.text.endswith(": a restored state holds it, without effect on the next steps")
    assert without_effect.severity == "warning"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_take_the_configured_learning_rate(schedule: str) -> None:
    optimizer, scheduler = resumed(schedule)
    expected, expected_scheduler = SCHEDULES[schedule](NEW)
    advance(expected, expected_scheduler)
    finding = rate_finding(optimizer, scheduler, take="configured")
    assert ". The configured learning rate was set: it is " in finding.text
    assert finding.text.endswith("now at step 30 of the schedule")
    assert finding.severity == "warning"
    assert optimizer.param_groups[0]["lr"] == pytest.approx(expected.param_groups[0]["lr"])
    for _ in range(40):
        assert advance(optimizer, scheduler, 1) == pytest.approx(advance(expected, expected_scheduler, 1))
    assert rate_finding(optimizer, scheduler) is None


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_resume_with_the_same_learning_rate_is_silent(schedule: str) -> None:
    optimizer, scheduler = resumed(schedule, rate=OLD)
    assert check_resume(optimizer=optimizer, scheduler=scheduler, lr=OLD, step=30) == []


def test_nothing_of_the_run_is_touched_by_looking() -> None:
    optimizer, scheduler = resumed("sequential")
    before = (optimizer.state_dict(), scheduler.state_dict(), scheduler.get_last_lr())
    check_resume(optimizer=optimizer, scheduler=scheduler, lr=NEW)
    assert (optimizer.state_dict()["param_groups"], scheduler.state_dict(), scheduler.get_last_lr()) == (
        before[0]["param_groups"],
        before[1],
        before[2],
    )


def test_without_a_schedule_and_with_several_groups() -> None:
    weights = [nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))]
    optimizer = torch.optim.SGD([{"params": weights[:1], "lr": 0.1}, {"params": weights[1:], "lr": 0.02}])
    assert check_resume(optimizer=optimizer, lr=(0.1, 0.02)) == []
    (finding,) = check_resume(optimizer=optimizer, lr=(0.1, 0.01), take="configured")
    assert finding.text.startswith(
        "the learning rate is 0.02, the configuration says 0.01: the restored optimizer state"
    )
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.1, 0.01])


def test_a_learning_rate_that_rollbacks_lowered_is_reported_as_such() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.05)
    (finding,) = check_resume(optimizer=optimizer, lr=0.1, lowered_by=0.5)
    assert finding.text.endswith("(param_groups[0]: lr 0.05); rollbacks had multiplied the learning rate by 0.5")


class Odd:
    """A scheduler of the user, which cannot be tried on a copy."""

    base_lrs = (OLD,)
    last_epoch = 3

    def step(self) -> None:
        raise RuntimeError("needs a metric")


def test_a_custom_scheduler_works() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=OLD)
    finding = rate_finding(optimizer, Odd())
    assert finding.data["sources"] == ("optimizer", "scheduler")


# ---- keys and values


def test_missing_and_unexpected_keys() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    found = check_resume(model=model, expected_keys=["0.weight", "0.bias", "1.weight", "head.bias"])
    assert [(f.kind, f.text) for f in found] == [
        ("missing_keys", "1 key of the model is not in the checkpoint: 1.bias"),
        ("unexpected_keys", "1 key of the checkpoint is not in the model: head.bias"),
    ]
    assert found[0].help == (
        "they hold the values of the constructor: load a checkpoint that has them, or initialise them on purpose"
    )
    assert check_resume(model=model, expected_keys=model.state_dict()) == []


@pytest.mark.parametrize(
    ("prefix", "writer"), [("module.", "DistributedDataParallel"), ("_orig_mod.", "torch.compile")]
)
def test_keys_of_a_wrapper(prefix: str, writer: str) -> None:
    model = nn.Linear(2, 2)
    (finding,) = check_resume(model=model, expected_keys=[prefix + key for key in model.state_dict()])
    assert finding.text == (
        f"every key of the checkpoint begins with {prefix!r}: it was saved from {writer}, nothing was loaded"
    )
    assert f"key.removeprefix({prefix!r})" in finding.help


def test_values_that_were_never_filled() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    model = nn.Sequential(first, second)
    model.register_buffer("mask", torch.full((2, 2), float("-inf")).triu(1))
    assert check_resume(model=model) == []
    with torch.no_grad():
        first.weight[0, 0] = 3e38
        second.bias[0] = float("nan")
    (finding,) = check_resume(model=model)
    assert finding.text == "2 tensors hold NaN, Inf or numbers no training makes: 1.bias, 0.weight"
    assert "memory that was never filled" in finding.help
    with torch.device("meta"):
        empty = nn.Linear(2, 2)
    (finding,) = check_resume(model=empty)
    assert finding.data["tensors"] == ("weight", "bias")


@pytest.mark.parametrize(
    ("scale", "severity", "words"),
    [
        (4.5e-44, "error", "halved at every overflow until gradients underflow instead"),
        (0.25, "warning", "halved at every overflow"),
        (2.0**30, "warning", "so large that the first steps will overflow"),
    ],
)
def test_the_scale_of_a_grad_scaler(scale: float, severity: str, words: str) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    (finding,) = check_resume(scaler=scaler)
    assert (finding.kind, finding.severity) == ("loss_scale", severity)
    assert words in finding.text
    assert check_resume(scaler=torch.amp.GradScaler("cpu")) == []
    assert check_resume(scaler=torch.amp.GradScaler("cpu", enabled=False)) == []


def test_steps_that_do_not_fit_together() -> None:
    optimizer, scheduler = resumed("cosine", scheduler_state=False, rate=OLD)
    (finding,) = check_resume(optimizer=optimizer, scheduler=scheduler)
    assert finding.text.startswith(
        "the schedule is at its beginning, and the optimizer has made 30 steps: the scheduler's state was not restored"
    )
    optimizer, scheduler = resumed("cosine")
    (finding,) = check_resume(optimizer=optimizer, scheduler=scheduler, step=20)
    assert finding.text == (
        "the optimizer has made 30 steps, and the run continues at step 20: they come from different saves"
    )
    optimizer, scheduler = resumed("cosine", optimizer_state=False)
    (finding,) = check_resume(optimizer=optimizer, scheduler=scheduler, step=30)
    assert finding.text == "the run continues at step 30, and the optimizer has no state: its moments start at zero"
    optimizer, scheduler = one_cycle(OLD)
    advance(optimizer, scheduler, 99)
    (finding,) = check_resume(optimizer=optimizer, scheduler=scheduler, step=99)
    assert finding.text == "the schedule has 100 steps, and 99 are made: the next scheduler.step() raises"
    plain = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    assert check_resume(optimizer=plain, step=30) == []


def test_wrong_use_is_reported() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(nantrap.UsageError, match=r"take='new'\): choose restored or configured"):
        check_resume(optimizer=optimizer, take="new")
    with pytest.raises(nantrap.UsageError, match="needs optimizer="):
        check_resume(lr=0.1)
    with pytest.raises(nantrap.UsageError, match="needs lr=, the configured learning rate"):
        check_resume(optimizer=optimizer, take="configured")
    with pytest.raises(nantrap.UsageError, match="2 learning rates for 1 parameter groups"):
        check_resume(optimizer=optimizer, lr=(0.1, 0.2))
    with pytest.raises(nantrap.UsageError, match="positive numbers"):
        check_resume(optimizer=optimizer, lr=-0.1)


def test_through_the_guard() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=OLD)
    guard = nantrap.Guard(model, optimizer, quiet=True)
    (finding,) = guard.check_resume(lr=NEW, expected_keys=model.state_dict())
    assert finding.kind == "rate"
    guard.check_resume(lr=NEW, take="configured")
    assert optimizer.param_groups[0]["lr"] == pytest.approx(NEW)


# ---- with a configuration file


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.yaml", "lr: 1e-4", ("lr", 1e-4)),
        ("a.yml", "trainer:\n  lr: 0.0001\n  min_lr: 1e-6\n", ("trainer.lr", 1e-4)),
        ("a.json", '{"optimizer": {"lr": 0.0001}}', ("optimizer.lr", 1e-4)),
        ("a.yaml", "learning_rate: 3e-4\noptimizer: {lr: 1}", ("learning_rate", 3e-4)),
        ("a.yaml", "model:\n  head:\n    lr: 0.5", ("model.head.lr", 0.5)),
    ],
)
def test_the_learning_rate_of_a_configuration(
    tmp_path: Path, name: str, text: str, expected: tuple[str, float]
) -> None:
    (tmp_path / name).write_text(text)
    assert configured_rate(tmp_path / name) == expected


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.yaml", "epochs: 3", "no learning rate was found; looked for lr, learning_rate, optimizer.lr, trainer.lr"),
        ("a.yaml", "a: {lr: 1}\nb: {lr: 2}", r"no learning rate was found: a\.lr, b\.lr are all possible"),
        ("a.yaml", "- 1", "expected a mapping"),
        ("a.json", "{", "not JSON"),
        ("a.yaml", "a: [", "not YAML"),
    ],
)
def test_a_configuration_without_a_learning_rate(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(nantrap.UsageError, match=words):
        configured_rate(tmp_path / name)


@pytest.mark.parametrize("writer", ["torch", "store"])
def test_an_audit_with_a_configuration(tmp_path: Path, writer: str) -> None:
    optimizer, scheduler = one_cycle(OLD)
    advance(optimizer, scheduler)
    folder = tmp_path / "run"
    folder.mkdir()
    if writer == "torch":
        state = {"model": {}, "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(), "step": 30}
        torch.save(state, folder / "step_30.pt")
    else:
        CheckpointStore(folder).save(step=30, optimizer=optimizer, scheduler=scheduler)
    config = tmp_path / "config.yaml"
    config.write_text("trainer: {lr: 1e-4}")
    ((path, finding),) = compare_with_config(audit(folder), config)
    assert Path(path).parent == folder
    assert finding.text == (
        "the configuration says 0.0001 (trainer.lr), and the optimizer state (optimizer.param_groups[0]: lr 0.0004997, "
        "max_lr 0.0005) holds another learning rate: loading overrides the configured one"
    )
    assert finding.help == (
        'after loading, guard.check_resume(lr=0.0001, take="configured") sets the configured learning rate'
    )
    config.write_text("trainer: {lr: 5e-4}")
    assert compare_with_config(audit(folder), config) == []


def test_an_audit_names_the_scheduler_too(tmp_path: Path) -> None:
    optimizer, scheduler = warmup_lambda(OLD)
    advance(optimizer, scheduler)
    torch.save({"optimizer": optimizer.state_dict(), "lr_scheduler": scheduler.state_dict()}, tmp_path / "x.pt")
    config = tmp_path / "config.json"
    config.write_text('{"lr": 0.0001}')
    ((_, finding),) = compare_with_config(audit(tmp_path / "x.pt"), config)
    assert "and the scheduler state (lr_scheduler: base_lrs 0.0005) hold another learning rate" in finding.text
