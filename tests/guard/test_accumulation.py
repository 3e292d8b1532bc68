"""Gradient accumulation: a bad micro-batch is dropped, and the rest counts as if it had never been."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nantrap
from guard.loops import (
    FORMS,
    INF,
    NAN,
    Net,
    Run,
    assert_same_state,
    batches,
    make_run,
    mse,
    poison,
    state_of,
    train_plain,
)
from nantrap import Accumulation, Action, Policy


def without_dropout() -> Net:
    net = Net()
    net.drop = nn.Identity()
    return net


def close_states(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            torch.testing.assert_close(value, right[name], rtol=2e-4, atol=2e-6, msg=name)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", [(0,), (1,), (3,), (0, 2), (1, 2, 3)], ids=str)
@pytest.mark.parametrize("value", [NAN, INF])
def test_the_rest_is_weighted_right(form: str, bad: tuple[int, ...], value: float) -> None:
    data = batches(8)
    plain = make_run(lambda m: torch.optim.SGD(m.parameters(), lr=0.1), model=without_dropout, data=data)
    good = tuple(batch for i, batch in enumerate(data[:4]) if i not in bad)
    train_plain(plain, [good, tuple(data[4:])])
    run = make_run(lambda m: torch.optim.SGD(m.parameters(), lr=0.1), model=without_dropout, data=data)
    window = tuple(poison(batch, value) if i in bad else batch for i, batch in enumerate(data[:4]))
    FORMS[form](run, run.guard(), [window, tuple(data[4:])])
    first, second = run.outcomes
    assert first.applied
    assert first.incident is not None
    assert first.incident.action is Action.APPLY
    assert second.incident is None
    assert first.loss == pytest.approx(plain.losses[0], rel=1e-5)
    close_states(state_of(plain, rng=False), state_of(run, rng=False))


@pytest.mark.parametrize("form", FORMS)
def test_all_bad_is_one_skipped_step(form: str) -> None:
    run = make_run(micro=3)
    guard = run.guard()
    FORMS[form](run, guard, run.windows(run.batches[:3]))
    before = state_of(run, rng=False)
    FORMS[form](run, guard, [tuple(poison(batch) for batch in run.batches[3:6])])
    outcome = run.outcomes[-1]
    assert outcome.action is Action.SKIP
    assert outcome.incident is not None
    assert outcome.incident.action is Action.SKIP
    assert guard.tally.dropped_micro_batches == 3
    assert_same_state(before, state_of(run, rng=False))
    assert all(parameter.grad is None for parameter in run.model.parameters())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_the_window_can_be_dropped_instead(form: str, bad: int) -> None:
    run = make_run(micro=3)
    guard = run.guard(policy=Policy(accumulation=Accumulation(bad="window")))
    FORMS[form](run, guard, run.windows(run.batches[:3]))
    before = state_of(run, rng=False)
    window = tuple(poison(batch) if i == bad else batch for i, batch in enumerate(run.batches[3:6]))
    FORMS[form](run, guard, [window])
    assert run.outcomes[-1].action is Action.SKIP
    assert_same_state(before, state_of(run, rng=False))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_raising_leaves_everything_as_before_the_window(form: str, bad: int) -> None:
    run = make_run(micro=3)
    guard = run.guard(policy=Policy.strict())
    FORMS[form](run, guard, run.windows(run.batches[:3]))
    before = state_of(run, rng=False)
    window = tuple(poison(batch) if i == bad else batch for i, batch in enumerate(run.batches[3:6]))
    with pytest.raises(nantrap.NonFiniteError):
        FORMS[form](run, guard, [window])
    assert_same_state(before, state_of(run, rng=False))


def test_a_sum_of_losses_is_not_scaled_up() -> None:
    data = batches(3)
    plain = make_run(lambda m: torch.optim.SGD(m.parameters(), lr=0.01), model=without_dropout, data=data)
    for batch in (data[0], data[2]):
        mse(plain.model, batch).backward()
    torch.nn.utils.clip_grad_norm_(plain.model.parameters(), 1.0)
    plain.optimizer.step()
    run = make_run(lambda m: torch.optim.SGD(m.parameters(), lr=0.01), model=without_dropout, data=data)
    guard = run.guard(policy=Policy(accumulation=Accumulation(weight="sum")))
    for batch in (data[0], poison(data[1]), data[2]):
        guard.backward(mse(run.model, batch))
    assert guard.step().applied
    close_states(state_of(plain, rng=False), state_of(run, rng=False))


@pytest.mark.parametrize("form", FORMS)
def test_a_step_that_fails_after_good_micro_batches_gives_all_their_buffers_back(form: str) -> None:
    """The micro-batches were good one by one; the optimizer then makes NaN. BatchNorm saw all of them."""

    class Broken(torch.optim.SGD):
        armed = False

        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            if self.armed:
                with torch.no_grad():
                    self.param_groups[0]["params"][0].mul_(NAN)

    run = make_run(lambda m: Broken(m.parameters(), lr=0.1), micro=4)
    guard = run.guard()
    FORMS[form](run, guard, run.windows(run.batches[:4]))
    before = state_of(run, rng=False)
    Broken.armed = True
    FORMS[form](run, guard, run.windows(run.batches[4:8]))
    Broken.armed = False
    assert run.outcomes[-1].incident is not None
    assert run.outcomes[-1].incident.phase == "optimizer"
    assert_same_state(before, state_of(run, rng=False))


@pytest.mark.parametrize("form", FORMS)
def test_with_a_scaler(form: str) -> None:
    def made(data: list[Any]) -> Run:
        return make_run(
            lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
            model=without_dropout,
            data=data,
            autocast=torch.float16,
            scaler=lambda: torch.amp.GradScaler("cpu", init_scale=64.0),
        )

    data = batches(4)
    plain = made(data)
    train_plain(plain, [(data[0], data[1], data[3])])
    run = made(data)
    FORMS[form](run, run.guard(), [(data[0], data[1], poison(data[2]), data[3])])
    assert run.outcomes[0].applied
    left, right = state_of(plain, rng=False), state_of(run, rng=False)
    for name, value in left.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            torch.testing.assert_close(value, right[name], rtol=2e-2, atol=2e-3, msg=name)  # fp16 rounding
    assert left["scaler scale"] == right["scaler scale"]


def test_attempt_takes_micro_batches_and_divides() -> None:
    run = make_run(model=without_dropout)
    plain = make_run(model=without_dropout)
    train_plain(plain, [tuple(plain.batches[:3])])
    outcome = run.guard().attempt(run.forward, *run.batches[:3])
    assert outcome.loss == pytest.approx(plain.losses[0], rel=1e-6)
    close_states(state_of(plain, rng=False), state_of(run, rng=False))


def test_the_line_says_what_was_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(micro=3)
    guard = run.guard(quiet=False, policy=Policy(diagnose="off"))
    FORMS["two_line"](run, guard, [(run.batches[0], poison(run.batches[1]), run.batches[2])])
    guard.close()
    said = capsys.readouterr().err
    assert "nantrap: step 0 applied: " in said
    assert "micro-batch 2 dropped, the others stay" in said
    assert "1 micro-batch dropped" in said
