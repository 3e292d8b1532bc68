"""Rollback through the store: anchors first, then checkpoints, each once, older every time; then a stop."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import nantrap
from guard.loops import (
    FORMS,
    INF,
    NAN,
    Net,
    assert_same_state,
    batches,
    make_run,
    numpy_words,
    poison,
    state_of,
    train_plain,
)
from nantrap import Action, Policy, Rollback
from nantrap.checkpoints import CheckpointStore

QUICK: dict[str, Any] = {"diagnose": "off", "max_consecutive_skips": 0}
RATES = ("group 0.lr", "group 0.initial_lr", "group 0.max_lr", "group 0.min_lr", "scheduler base_lrs")


def whole_run(**more: Any) -> Any:
    return make_run(
        data=batches(16),
        scheduler=lambda o: OneCycleLR(o, max_lr=0.01, total_steps=200),
        scaler=lambda: torch.amp.GradScaler("cpu", 8.0, growth_interval=3),
        ema=lambda m: AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True),
        **more,
    )


def without_rates(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name not in RATES and "_last_lr" not in name}


@pytest.mark.parametrize("form", FORMS)
def test_without_anchors_the_last_good_checkpoint_is_restored_in_full(form: str, tmp_path: Path) -> None:
    run = whole_run()
    store = CheckpointStore(tmp_path / "checkpoints")
    guard = run.guard(policy=Policy(rollback=Rollback(anchor_every=0), **QUICK), store=store, save_every=4)
    FORMS[form](run, guard, run.windows(run.batches[:8]))
    at_eight = state_of(run)
    FORMS[form](run, guard, run.windows(run.batches[8:11]))
    assert [saved.step for saved in store.checkpoints()] == [8, 4]
    FORMS[form](run, guard, [(poison(run.batches[11]),)])
    assert run.outcomes[-1].action is Action.ROLLBACK
    now = state_of(run)
    assert now["group 0.lr"] == pytest.approx(at_eight["group 0.lr"] * 0.5)
    assert now["group 0.max_lr"] == pytest.approx(0.005)
    assert_same_state(without_rates(at_eight), without_rates(now))
    FORMS[form](run, guard, run.windows(run.batches[12:]))
    assert run.outcomes[-1].applied
    assert run.outcomes[-1].step == 15


def test_anchors_come_first_then_older_checkpoints_each_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(data=batches(16))
    store = CheckpointStore(tmp_path / "checkpoints", keep=10)
    policy = Policy(rollback=Rollback(anchor_every=5), max_rollbacks=10, **QUICK)
    guard = run.guard(policy=policy, store=store, save_every=3, quiet=False)
    FORMS["attempt"](run, guard, run.windows(run.batches[:13]))  # anchors at 5 and 10, checkpoints at 3, 6, 9, 12
    bad = poison(run.batches[13])
    with pytest.raises(nantrap.NonFiniteError) as caught:
        FORMS["attempt"](run, guard, [(bad,)] * 20)
    said = re.findall(r"state of step (\d+)( from \S+)?, lr now (\S+)", capsys.readouterr().err)
    assert said == [
        ("10", "", "0.005"),
        ("5", "", "0.0025"),
        ("3", " from step-000003.safetensors", "0.00125"),
    ]
    message = str(caught.value)
    assert "no skip is allowed, and every older state was tried already" in (message)
    assert message.endswith(f"last good checkpoint: {tmp_path}/checkpoints/step-000012.safetensors (step 12)")
    assert guard.tally.rollbacks == 3


def test_a_checkpoint_that_did_not_help_is_named_as_such(tmp_path: Path) -> None:
    run = make_run()
    store = CheckpointStore(tmp_path)
    guard = run.guard(
        policy=Policy(rollback=Rollback(anchor_every=0), max_rollbacks=1, **QUICK), store=store, save_every=4
    )
    FORMS["attempt"](run, guard, run.windows(run.batches[:5]))
    guard.attempt(run.forward, poison(run.batches[5]))
    with pytest.raises(nantrap.NonFiniteError) as caught:
        guard.attempt(run.forward, poison(run.batches[5]))
    assert "and 1 rollback is used up" in str(caught.value)
    assert str(caught.value).endswith(
        f"last good checkpoint: {tmp_path}/step-000004.safetensors (step 4), from which the run diverged again"
    )
    assert guard.summary().endswith("from which the run diverged again")


def test_after_progress_newer_checkpoints_count_again(tmp_path: Path) -> None:
    run = make_run(data=batches(16))
    store = CheckpointStore(tmp_path)
    guard = run.guard(policy=Policy(rollback=Rollback(anchor_every=0), **QUICK), store=store, save_every=4)
    FORMS["attempt"](run, guard, run.windows(run.batches[:5]))
    guard.attempt(run.forward, poison(run.batches[5]))  # back to 4
    FORMS["attempt"](run, guard, run.windows(run.batches[6:10]))  # saves at 8
    at_ten = guard.attempt(run.forward, poison(run.batches[10]))
    assert at_ten.action is Action.ROLLBACK
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(0.0025)


def test_a_damaged_checkpoint_is_skipped_for_an_older_one(tmp_path: Path) -> None:
    run = make_run()
    store = CheckpointStore(tmp_path)
    guard = run.guard(policy=Policy(rollback=Rollback(anchor_every=0), **QUICK), store=store, save_every=2)
    FORMS["attempt"](run, guard, run.windows(run.batches[:2]))
    at_two = state_of(run)
    FORMS["attempt"](run, guard, run.windows(run.batches[2:5]))
    newest = tmp_path / "step-000004.safetensors"
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(bytes(data))
    with pytest.warns(RuntimeWarning, match=r"cannot roll back to step-000004\.safetensors: .*checksum"):
        outcome = guard.attempt(run.forward, poison(run.batches[5]))
    assert outcome.action is Action.ROLLBACK
    assert_same_state(without_rates(at_two), without_rates(state_of(run)))


def test_nothing_whole_to_go_back_to_stops_with_everything_as_before(tmp_path: Path) -> None:
    run = make_run()
    store = CheckpointStore(tmp_path)
    guard = run.guard(policy=Policy(rollback=Rollback(anchor_every=0), **QUICK), store=store, save_every=2)
    FORMS["attempt"](run, guard, run.windows(run.batches[:3]))
    before = state_of(run, rng=False)
    (tmp_path / "step-000002.safetensors").write_bytes(b"")
    with (
        pytest.warns(RuntimeWarning, match="cannot roll back to"),
        pytest.raises(nantrap.NonFiniteError, match="no older state could be restored") as caught,
    ):
        guard.attempt(run.forward, poison(run.batches[5]))
    assert caught.value.incident.action is Action.STOP
    assert str(caught.value).endswith(f"no checkpoint was saved in {tmp_path}")
    assert_same_state(before, state_of(run, rng=False))


def test_the_learning_rate_recovers_if_asked_to() -> None:
    run = make_run(data=batches(40), scheduler=lambda o: CosineAnnealingLR(o, T_max=1000))
    clean = make_run(data=batches(40), scheduler=lambda o: CosineAnnealingLR(o, T_max=1000))
    guard = run.guard(policy=Policy(rollback=Rollback(anchor_every=1, lr_recover_steps=10), **QUICK))
    clean_guard = clean.guard()
    for batch in run.batches[:3]:
        guard.attempt(run.forward, batch)
        clean_guard.attempt(clean.forward, batch)
    guard.attempt(run.forward, poison(run.batches[3]))

    def ratio() -> float:
        return float(run.optimizer.param_groups[0]["lr"] / clean.optimizer.param_groups[0]["lr"])

    seen = []
    for batch in run.batches[4:18]:
        seen.append(ratio())
        guard.attempt(run.forward, batch)
        clean_guard.attempt(clean.forward, batch)
    expected = [0.5 ** (1 - k / 10) for k in range(10)] + [1.0] * 4
    assert seen == pytest.approx(expected, rel=1e-6)
    assert run.scheduler.base_lrs == pytest.approx([0.01])


def test_a_second_rollback_lowers_the_learning_rate_further_from_whatever_state() -> None:
    run = make_run(data=batches(16))
    guard = run.guard(policy=Policy(rollback=Rollback(anchor_every=4), max_rollbacks=5, **QUICK))
    FORMS["attempt"](run, guard, run.windows(run.batches[:10]))  # anchors at 4 and 8
    for expected in (0.005, 0.0025):
        assert guard.attempt(run.forward, poison(run.batches[10])).action is Action.ROLLBACK
        assert run.optimizer.param_groups[0]["lr"] == pytest.approx(expected)


@pytest.mark.parametrize(("rollback", "steps"), [(Rollback(), [24, 0]), (Rollback(anchor_every=4), [28, 24])])
def test_a_rollback_loses_few_steps_and_the_next_one_goes_further_back(rollback: Rollback, steps: list[int]) -> None:
    run = make_run(data=batches(32))
    guard = run.guard(policy=Policy(rollback=rollback, max_rollbacks=5, **QUICK))
    before = {}
    for number, batch in enumerate(run.batches[:30]):
        before[number] = [parameter.detach().clone() for parameter in run.model.parameters()]
        assert guard.attempt(run.forward, batch).applied
    for step in steps:
        assert guard.attempt(run.forward, poison(run.batches[30])).action is Action.ROLLBACK
        assert all(torch.equal(*pair) for pair in zip(run.model.parameters(), before[step], strict=True))


@pytest.mark.parametrize("choice", ["restore", "continue"])
def test_the_random_streams_are_restored_too_unless_configured_otherwise(choice: Any) -> None:
    run = make_run()
    guard = run.guard(policy=Policy(rollback=Rollback(anchor_every=100, rng=choice), **QUICK))
    at_start = (torch.get_rng_state(), random.getstate(), numpy_words())
    FORMS["attempt"](run, guard, run.windows(run.batches[:3]))
    random.random()
    np.random.rand()
    guard.attempt(run.forward, poison(run.batches[3]))
    now = (torch.get_rng_state(), random.getstate(), numpy_words())
    assert torch.equal(at_start[0], now[0]) is (choice == "restore")
    assert (at_start[1] == now[1]) is (choice == "restore")


# ---- saving through the guard


def test_save_and_load_continue_bit_for_bit(tmp_path: Path) -> None:
    run = whole_run()
    guard = run.guard()
    FORMS["attempt"](run, guard, run.windows(run.batches[:5]))
    path = guard.save(tmp_path / "deep" / "best.safetensors", data_position=5, extras={"note": "best"})
    assert path == tmp_path / "deep" / "best.safetensors"
    FORMS["attempt"](run, guard, run.windows(run.batches[5:9]))
    other = whole_run()
    other_guard = other.guard()
    loaded = other_guard.load(path)
    assert (loaded.step, loaded.data_position, loaded.extras) == (5, 5, {"note": "best"})
    FORMS["attempt"](other, other_guard, other.windows(other.batches[5:9]))
    assert [o.step for o in other.outcomes] == [5, 6, 7, 8]
    assert_same_state(state_of(run), state_of(other))
    assert not list((tmp_path / "deep").glob(".writing*"))


def test_a_bad_state_is_not_saved_and_the_old_file_stays(tmp_path: Path) -> None:
    run = make_run()
    guard = run.guard()
    FORMS["attempt"](run, guard, run.windows(run.batches[:2]))
    path = guard.save(tmp_path / "last.safetensors")
    assert path is not None
    before = path.read_bytes()
    with torch.no_grad():
        run.model.head.weight[0, 0] = NAN
    with pytest.raises(
        nantrap.NonFiniteError, match=r"last\.safetensors \(step 2\) was not saved: 1 value is not finite"
    ):
        guard.save(path)
    assert path.read_bytes() == before


class Masked(Net):
    """With an observer that begins at Inf, as those of quantisation do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("lowest", torch.tensor([float("inf")]))


def test_buffers_that_were_nonfinite_from_the_start_do_not_matter(tmp_path: Path) -> None:
    run = make_run(model=Masked, ema=lambda m: AveragedModel(m, use_buffers=True))
    guard = run.guard()
    FORMS["attempt"](run, guard, run.windows(run.batches[:1]))
    assert guard.save(tmp_path / "x.safetensors") is not None


def test_the_store_of_a_run_is_in_its_folder(tmp_path: Path) -> None:
    run = make_run()
    with run.guard(run_dir=tmp_path, save_every=3) as guard:
        FORMS["attempt"](run, guard, run.windows(run.batches[:7]))
        assert guard.save(pin=True) == tmp_path / "checkpoints" / "step-000007.safetensors"
    assert [saved.step for saved in CheckpointStore(tmp_path / "checkpoints").checkpoints()] == [7, 6, 3]
    other = make_run()
    assert other.guard(run_dir=tmp_path, save_every=3).load().step == 7


def test_saving_does_not_change_the_run(tmp_path: Path) -> None:
    plain, saving = train_plain(whole_run()), whole_run()
    with saving.guard(store=CheckpointStore(tmp_path, asynchronous=True), save_every=1) as guard:
        FORMS["attempt"](saving, guard)
    assert_same_state(state_of(plain), state_of(saving))
    assert [saved.step for saved in CheckpointStore(tmp_path).checkpoints()] == [16, 15, 14]


def test_a_save_that_failed_in_its_thread_does_not_hide_the_older_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    store = CheckpointStore(tmp_path, asynchronous=True)
    guard = run.guard(policy=Policy(rollback=Rollback(anchor_every=0), **QUICK), store=store, save_every=2)
    FORMS["attempt"](run, guard, run.windows(run.batches[:3]))
    store.wait()

    def full(*arguments: Any, **options: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nantrap.checkpoints.store.store.write_checkpoint", full)
    FORMS["attempt"](run, guard, run.windows(run.batches[3:5]))
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        assert guard.attempt(run.forward, poison(run.batches[5])).action is Action.ROLLBACK


def test_a_skipped_step_puts_the_save_off_to_the_next_good_one(tmp_path: Path) -> None:
    run = make_run()
    store = CheckpointStore(tmp_path)
    guard = run.guard(policy=Policy(diagnose="off"), store=store, save_every=3)
    for index, batch in enumerate(run.batches):
        guard.attempt(run.forward, poison(batch) if index == 2 else batch)
    assert [saved.step for saved in store.checkpoints()] == [6, 4]


def test_a_full_disk_does_not_end_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run()
    guard = run.guard(store=CheckpointStore(tmp_path / "store"), save_every=2)

    def full(*arguments: Any, **options: Any) -> Any:
        raise OSError(28, "the checkpoint of step 2 was not saved: No space left on device; there is none yet")

    monkeypatch.setattr("nantrap.checkpoints.store.store.write_checkpoint", full)
    with pytest.warns(RuntimeWarning, match="step 1: .*No space left on device; there is none yet. Training continues"):
        FORMS["attempt"](run, guard, run.windows(run.batches[:3]))
    assert guard.tally.applied == 3


def test_wrong_use_is_reported(tmp_path: Path) -> None:
    run = make_run()
    with pytest.raises(nantrap.UsageError, match=r"Guard\(save_every=\.\.\.\): a place is needed"):
        run.guard(save_every=10)
    with pytest.raises(nantrap.UsageError, match=r"Guard\(store=str\): expected a nantrap\.CheckpointStore"):
        run.guard(store=str(tmp_path))
    with pytest.raises(nantrap.UsageError, match=r"Guard\(save_every=-1\): expected a number of steps"):
        run.guard(save_every=-1)
    guard = run.guard()
    with pytest.raises(nantrap.UsageError, match=r"guard\.save\(\) without a path needs a store"):
        guard.save()
    with pytest.raises(nantrap.UsageError, match=r"guard\.load\('last_good'\) needs a store"):
        guard.load()
    with pytest.raises(nantrap.UsageError, match=r"none\.safetensors does not exist"):
        guard.load(tmp_path / "none.safetensors")
    with pytest.raises(nantrap.UsageError, match="this is a folder; give a file"):
        guard.save(tmp_path)


def test_an_average_that_is_a_plain_function_is_left_out(tmp_path: Path) -> None:
    run = make_run()
    averaged = nn.Linear(1, 1)
    guard = nantrap.Guard(run.model, run.optimizer, ema=lambda: averaged.weight.data.mul_(1.0), quiet=True)
    FORMS["attempt"](run, guard, run.windows(run.batches[:1]))
    path = guard.save(tmp_path / "x.safetensors")
    assert path is not None
    assert "ema" not in guard.load(path).state


@pytest.mark.parametrize("what", ["the weights are", "the optimizer's state is"])
def test_state_that_other_code_spoiled_is_taken_from_the_last_good_checkpoint(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the policy stops after too many skips, and no state is kept in memory."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    policy = Policy(then="stop", rollback=Rollback(anchor_every=0), diagnose="off")
    store = CheckpointStore(tmp_path)
    guard = nantrap.Guard(model, optimizer, policy=policy, store=store, save_every=2)
    outcomes = []
    for step in range(8):
        if step == 5:
            value = model.weight if what.startswith("the weights") else optimizer.state[model.weight]["exp_avg"]
            value.detach()[1, 2] = NAN
        outcomes.append(guard.attempt(lambda x: model(x).square().mean(), torch.randn(4, 3)))
    actions = [outcome.action for outcome in outcomes]
    assert actions == [Action.APPLY] * 5 + [Action.ROLLBACK] + [Action.APPLY] * 2
    said = capsys.readouterr().err
    assert f"{what} non-finite, which skipping does not repair; rollback 1 of 3; state of step 4" in said
    assert not any(p.isnan().any() for p in model.parameters())


class Scaled(nn.Module):
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("scale", torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.scale


@pytest.mark.parametrize("form", FORMS)
def test_a_buffer_that_other_code_spoiled_is_rolled_back_at_once(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = [(torch.randn(4, 3), torch.randn(4, 2)) for _ in range(6)]
    run = make_run(model=Scaled, data=data)
    guard = run.guard(quiet=False)
    FORMS[form](run, guard, run.windows(run.batches[:3]))
    run.model.scale[1] = NAN
    FORMS[form](run, guard, run.windows(run.batches[3:]))
    assert [outcome.action for outcome in run.outcomes] == [Action.APPLY] * 3 + [Action.ROLLBACK] + [Action.APPLY] * 2
    assert "buffer scale is non-finite, which skipping does not repair; rollback 1 of 3" in capsys.readouterr().err
    assert run.model.scale.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("form", FORMS)
def test_weights_that_are_bad_while_the_gradients_are_finite_are_rolled_back(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bias of -Inf makes the loss infinite and leaves the gradients finite: there is something to roll back."""

    def smoothed(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1)

    data = [(torch.randn(4, 3), torch.zeros(4, dtype=torch.long)) for _ in range(6)]
    run = make_run(model=lambda: nn.Linear(3, 2), loss=smoothed, data=data)
    guard = run.guard(quiet=False)
    FORMS[form](run, guard, run.windows(run.batches[:3]))
    run.model.bias.data[1] = -INF
    FORMS[form](run, guard, run.windows(run.batches[3:]))
    assert [outcome.action for outcome in run.outcomes] == [Action.APPLY] * 3 + [Action.ROLLBACK] + [Action.APPLY] * 2
    said = capsys.readouterr().err
    assert "the weights are non-finite, which skipping does not repair" in said
    assert "a rollback would repair nothing" not in said


def test_a_rollback_to_states_that_hold_the_same_nan_is_not_made(capsys: pytest.CaptureFixture[str]) -> None:
    """Next door: the buffer is non-finite from the start (it may be a mask), so each older state has it as well."""

    class Late(nn.Module):
        scale: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)
            self.is_used = False
            self.register_buffer("scale", torch.tensor([1.0, NAN, 1.0, 1.0]))

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x * self.scale if self.is_used else x)

    model = Late()
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def train() -> None:
        for step in range(20):
            model.is_used = step >= 5
            guard.backward(model(torch.randn(6, 4)).square().mean())
            guard.step()

    with pytest.raises(nantrap.NonFiniteError) as raised:
        train()
    guard.close()
    assert "and each older state holds the same non-finite values in buffer scale" in str(raised.value)
    assert (guard.tally.rollbacks, guard.tally.stops) == (0, 1)
    assert "rollback 1 of" not in capsys.readouterr().err
