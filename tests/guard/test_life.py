"""The life of a guard: context manager, hooks, several guards side by side, wrapped and compiled models."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import nantrap
from guard.loops import FORMS, NAN, Net, assert_same_state, make_run, mse, poison, state_of
from nantrap import Guard, Policy, Rollback


def hooks_of(module: nn.Module) -> dict[str, int]:
    """Every kind of hook a module can carry, by module and kind, with how many there are."""
    return {
        f"{name}.{kind}": len(hooks)
        for name, part in module.named_modules()
        for kind, hooks in vars(part).items()
        if "hooks" in kind and hasattr(hooks, "__len__")
    }


@pytest.mark.parametrize("form", FORMS)
def test_close_removes_every_hook(form: str) -> None:
    run = make_run()
    before = hooks_of(run.model)
    optimizer_before = len(run.optimizer._optimizer_step_pre_hooks), len(run.optimizer._optimizer_step_post_hooks)
    with run.guard() as guard:
        assert hooks_of(run.model) != before
        FORMS[form](run, guard)
        FORMS[form](run, guard, [(poison(run.batches[0]),)])
    assert hooks_of(run.model) == before
    assert optimizer_before == (
        len(run.optimizer._optimizer_step_pre_hooks),
        len(run.optimizer._optimizer_step_post_hooks),
    )
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks
    mse(run.model, run.batches[0])  # and the model continues without the guard


def test_close_removes_every_hook_of_a_model_whose_parts_are_called() -> None:
    run = make_run(loss=lambda m, b: nn.functional.mse_loss(m.head(torch.relu(m.norm(m.inner(b[0])))), b[1]))
    before = hooks_of(run.model)
    guard = run.guard()
    FORMS["two_line"](run, guard)
    kept = state_of(run, rng=False)
    FORMS["two_line"](run, guard, [(poison(run.batches[0]),)])
    assert not run.outcomes[-1].applied
    assert_same_state(kept, state_of(run, rng=False))
    guard.close()
    assert hooks_of(run.model) == before


def test_a_guard_that_failed_to_be_made_leaves_no_hook(tmp_path: Any) -> None:
    run = make_run()
    before = hooks_of(run.model)
    (tmp_path / "file").write_text("")
    with pytest.raises(nantrap.UsageError):
        run.guard(run_dir=tmp_path / "file")
    assert hooks_of(run.model) == before


def test_the_context_manager_closes_and_passes_errors_on() -> None:
    run = make_run()
    with pytest.raises(KeyError, match="mine"), run.guard() as guard:
        raise KeyError("mine")
    with pytest.raises(nantrap.UsageError, match="closed"):
        guard.attempt(run.forward, run.batches[0])


def test_an_error_in_the_users_function_is_the_users() -> None:
    run = make_run()
    guard = run.guard()

    def broken(batch: Any) -> Tensor:
        run.forward(batch).backward()
        raise MemoryError("out of memory")

    with pytest.raises(MemoryError):
        guard.attempt(broken, run.batches[0])
    reference = make_run()
    mse(reference.model, reference.batches[0])  # the buffers saw the failed forward too
    state = torch.get_rng_state()
    reference.guard().attempt(reference.forward, reference.batches[0])
    torch.set_rng_state(state)
    guard.attempt(run.forward, run.batches[0])
    assert_same_state(state_of(reference, rng=False), state_of(run, rng=False))


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 6))

    def forward(self, z: Tensor) -> Tensor:
        return self.body(z)


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def gan(*, guarded: bool, bad: tuple[int, ...] = (), steps: int = 8) -> list[Tensor]:
    torch.manual_seed(5)
    generator, critic = Generator(), Critic()
    for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
    for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
    guards: tuple[Guard, ...] = (
        (Guard(generator, for_generator, max_grad_norm=1.0, quiet=True), Guard(critic, for_critic, quiet=True))
        if guarded
        else ()
    )
    softplus = nn.functional.softplus
    for step in range(steps):
        real, z = torch.randn(8, 6), torch.randn(8, 4)
        if step in bad:
            real[0, 0] = NAN
        loss = softplus(-critic(real)).mean() + softplus(critic(generator(z).detach())).mean()
        if guarded:
            guards[1].backward(loss)
            outcome = guards[1].step()
            assert outcome.applied is (step not in bad)
        else:
            for_critic.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
            for_critic.step()
        loss = softplus(-critic(generator(z))).mean()
        if guarded:
            guards[0].backward(loss)
            assert guards[0].step().applied
        else:
            for_generator.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(generator.parameters(), 1.0)
            for_generator.step()
    return [t.detach().clone() for model in (generator, critic) for t in model.state_dict().values()]


def test_a_gan_with_two_guards() -> None:
    for plain, guarded in zip(gan(guarded=False), gan(guarded=True), strict=True):
        assert torch.equal(plain, guarded)
    assert all(torch.isfinite(t).all() for t in gan(guarded=True, bad=(2, 3, 5)))


def test_two_optimizers_on_one_model() -> None:
    net = Net()
    body = torch.optim.SGD([*net.inner.parameters(), *net.norm.parameters()], lr=0.1)
    head = torch.optim.AdamW(net.head.parameters(), lr=0.1)
    guards = [Guard(net, optimizer, quiet=True) for optimizer in (body, head)]
    data = make_run().batches
    for batch in data:
        for guard in guards:
            assert guard.attempt(lambda b: mse(net, b), batch).applied
    before = [p.detach().clone() for p in net.parameters()]
    for guard in guards:
        assert not guard.attempt(lambda b: mse(net, b), poison(data[0])).applied
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_a_compiled_model_with_a_fault(form: str) -> None:
    run = make_run()
    user_model = run.model
    run.model = cast("Net", torch.compile(user_model, backend="eager"))
    before_hooks = hooks_of(user_model)
    with run.guard() as guard:
        FORMS[form](run, guard, run.windows(run.batches[:3]))
        run.model = user_model
        before = state_of(run, rng=False)
        run.model = cast("Net", torch.compile(user_model, backend="eager"))
        FORMS[form](run, guard, [(poison(run.batches[3]),)])
        assert run.outcomes[-1].incident is not None
        run.model = user_model
        assert_same_state(before, state_of(run, rng=False))
    assert hooks_of(user_model) == before_hooks


def test_evaluation_between_steps_is_not_part_of_a_step() -> None:
    run = make_run(model=lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))
    guard = run.guard()
    FORMS["two_line"](run, guard, run.windows(run.batches[:2]))
    run.model.eval()
    with torch.no_grad():
        mse(run.model, poison(run.batches[0]))
    run.model.train()
    FORMS["two_line"](run, guard, run.windows(run.batches[2:4]))
    assert all(outcome.applied for outcome in run.outcomes)


def test_buffers_that_an_evaluation_poisoned_are_repaired_by_a_rollback() -> None:
    run = make_run(data=make_run().batches * 3)
    guard = run.guard(policy=Policy(max_consecutive_skips=2, rollback=Rollback(anchor_every=2), diagnose="off"))
    FORMS["attempt"](run, guard, run.windows(run.batches[:5]))
    with torch.no_grad():
        run.model(poison(run.batches[0])[0])  # in training mode by mistake
    assert torch.isnan(run.model.written).any()
    FORMS["attempt"](run, guard, run.windows(run.batches[5:12]))
    assert [str(outcome.action) for outcome in run.outcomes[5:]] == ["skip", "skip", "rollback", *["apply"] * 4]
    assert guard.check_state() == []


class OwnAverage:
    """What many code bases call EMA: no module, a dict of shadows."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.updates = 0

    def update(self, model: nn.Module) -> None:
        self.updates += 1
        for name, p in model.named_parameters():
            self.shadow[name].lerp_(p.detach(), 0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": self.shadow, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        for name, value in state["shadow"].items():
            self.shadow[name].copy_(value)


def test_averages_of_other_kinds() -> None:
    run = make_run(ema=OwnAverage)
    guard = run.guard(policy=Policy(max_consecutive_skips=0, rollback=Rollback(anchor_every=2), diagnose="off"))
    FORMS["attempt"](run, guard, run.windows(run.batches[:4]))
    at_four = {name: value.clone() for name, value in run.ema.shadow.items()}
    FORMS["attempt"](run, guard, run.windows(run.batches[4:5]))
    assert run.ema.updates == 5
    guard.attempt(run.forward, poison(run.batches[5]))  # rolled back to step 4
    assert run.ema.updates == 4
    assert all(torch.equal(at_four[name], value) for name, value in run.ema.shadow.items())
    calls: list[int] = []
    plain = make_run()
    guard = nantrap.Guard(plain.model, plain.optimizer, ema=lambda: calls.append(1), quiet=True)
    guard.attempt(plain.forward, plain.batches[0])
    guard.attempt(plain.forward, poison(plain.batches[0]))
    assert len(calls) == 1


def test_a_forward_pass_without_a_step_is_the_users() -> None:
    """Statistics gathered in a warm-up pass are not undone when the attempt after it fails."""
    run = make_run()
    guard = run.guard(policy=Policy(diagnose="off"))
    for batch in run.batches[:3]:
        run.model(batch[0])
    warm = state_of(run, rng=False)
    assert not guard.attempt(run.forward, poison(run.batches[3])).applied
    assert_same_state(warm, state_of(run, rng=False))
