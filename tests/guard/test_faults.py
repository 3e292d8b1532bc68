"""A fault in every phase is caught before it reaches the weights, and the incident names what was bad."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from guard.loops import FORMS, INF, NAN, Net, Run, assert_same_state, batches, make_run, mse, poison, state_of
from nantrap import Action, BatchChecks, Guard, Incident, Policy, Skips


def state(run: Run) -> dict[str, Any]:
    return state_of(run, rng=False)


def names(incident: Incident, kind: str) -> set[str]:
    return {finding.name for finding in incident.findings if finding.kind == kind}


def caught(run: Run, form: str, batch: Any, *, warm: int = 2, **options: Any) -> Incident:
    """Run a few good steps and the bad one; the state must be as before."""
    guard = run.guard(**options)
    FORMS[form](run, guard, run.windows(run.batches[:warm]))
    before = state(run)
    FORMS[form](run, guard, [(batch,)])
    assert_same_state(before, state(run))
    outcome = run.outcomes[-1]
    assert outcome.action is Action.SKIP
    assert outcome.incident is not None
    assert outcome.incident.step == warm
    return outcome.incident


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_batch(form: str, value: float) -> None:
    run = make_run()
    incident = caught(run, form, poison(run.batches[2], value))
    assert incident.phase == "data"
    assert "loss" in names(incident, "loss")
    if form == "attempt":
        assert incident.samples == (2,)


@pytest.mark.parametrize("value", [NAN, INF])
def test_batch_that_is_looked_at_first(value: float) -> None:
    run = make_run()
    calls = []
    guard = run.guard(policy=Policy(batches=BatchChecks(finite=True)))

    def counted(batch: Any) -> Tensor:
        calls.append(batch)
        return run.forward(batch)

    guard.attempt(counted, run.batches[0])
    before = state_of(run)
    outcome = guard.attempt(counted, poison(run.batches[1], value))
    assert_same_state(before, state_of(run))  # the random streams too: nothing was computed
    assert len(calls) == 1
    assert outcome.incident is not None
    assert (outcome.incident.phase, outcome.incident.samples) == ("data", (2,))
    assert outcome.incident.causes[0].slug == "bad_input_data"
    assert names(outcome.incident, "batch") == {"[0]"}
    assert guard.attempt(counted, run.batches[1]).applied


def test_bad_batch_among_micro_batches_is_dropped_before_anything_is_computed() -> None:
    run = make_run(model=lambda: nn.Linear(6, 3), data=batches(3))
    reference = make_run(model=lambda: nn.Linear(6, 3), data=batches(3))
    good = [run.batches[0], run.batches[2]]
    guard = run.guard(policy=Policy(batches=BatchChecks(finite=True)))
    outcome = guard.attempt(run.forward, run.batches[0], poison(run.batches[1]), run.batches[2])
    assert outcome.applied
    assert outcome.incident is not None
    assert outcome.incident.phase == "data"
    reference.guard().attempt(reference.forward, *good)
    assert torch.allclose(run.model.weight, reference.model.weight, atol=1e-6)
    bad = [poison(batch) for batch in run.batches]
    before = state(run)
    outcome = guard.attempt(run.forward, *bad)
    assert not outcome.applied
    assert_same_state(before, state(run))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [NAN, INF])
def test_parameter_that_is_bad_before_the_step(form: str, value: float) -> None:
    run = make_run()
    guard = run.guard()
    FORMS[form](run, guard, run.windows(run.batches[:2]))
    with torch.no_grad():
        run.model.head.weight[1, 3] = value
    FORMS[form](run, guard, [(run.batches[2],)])
    incident = run.outcomes[-1].incident
    assert incident is not None
    assert incident.phase == "state"
    assert incident.module == "head"
    assert "head.weight" in names(incident, "parameter")
    assert incident.action is Action.ROLLBACK, "a skip leaves the weight as it is, and every further step fails"
    assert guard.check_state() == []
    assert run.optimizer.param_groups[0]["lr"] == 1e-2, "the learning rate is not to blame"


def test_a_bad_parameter_that_takes_no_part_is_named_once_and_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run()
    run.model.spare = nn.Parameter(torch.full((3,), NAN), requires_grad=False)
    guard = run.guard(quiet=False)
    FORMS["attempt"](run, guard)
    assert all(outcome.applied for outcome in run.outcomes)
    said = capsys.readouterr().err
    assert said.count("parameter spare was non-finite before this step and takes no part in it; it is not changed") == 1


def terms(bad: str | None) -> Callable[[nn.Module, Any], dict[str, Tensor]]:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        output = model(batch[0])
        return {
            "fit": nn.functional.mse_loss(output, batch[1]),
            "energy": output.square().mean() * (NAN if bad == "energy" else 0.1),
            "heads": torch.stack(
                [output[:, 0].mean() * 1e-3 + (INF if bad == f"heads[{i}]" else 0.0) for i in range(5)]
            ),
        }

    return loss


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", ["energy", "heads[3]"])
def test_the_guilty_term_is_named(form: str, bad: str) -> None:
    run = make_run(loss=terms(None))
    guard = run.guard()
    FORMS[form](run, guard, run.windows(run.batches[:2]))
    assert set(run.outcomes[0].terms) == {"fit", "energy", *(f"heads[{i}]" for i in range(5))}
    run.loss = terms(bad)
    before = state(run)
    FORMS[form](run, guard, [(run.batches[2],)])
    incident = run.outcomes[-1].incident
    assert incident is not None
    assert names(incident, "term") == {bad}
    assert_same_state(before, state(run))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", ["energy", "heads[3]"])
def test_bad_terms_can_be_dropped(form: str, bad: str) -> None:
    run = make_run(loss=terms(bad))
    FORMS[form](run, run.guard(policy=Policy(bad_terms="drop")), [(run.batches[0],)])
    outcome = run.outcomes[0]
    assert outcome.applied
    assert outcome.incident is not None
    assert names(outcome.incident, "term") == {bad}
    assert outcome.incident.action is Action.APPLY

    def without(model: nn.Module, batch: Any) -> dict[str, Tensor]:
        given = terms(None)(model, batch)
        if bad == "energy":
            del given["energy"]
        else:
            heads = given.pop("heads")
            given |= {f"heads[{i}]": heads[i] for i in (0, 1, 2, 4)}
        return given

    reference = make_run(loss=without)
    FORMS[form](reference, reference.guard(), [(reference.batches[0],)])
    assert_same_state(state(reference), state(run))


@pytest.mark.parametrize("form", FORMS)
def test_a_dropped_head_sends_no_zero_times_infinity(form: str) -> None:
    """Backward of one entry of a stack sends a zero to all the others, and 0 × Inf is NaN."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        output = model(batch[0])
        return {"fit": mse(model, batch), "heads": torch.stack([output.mean(), output.mean() * INF])}

    run = make_run(loss=loss)
    FORMS[form](run, run.guard(policy=Policy(bad_terms="drop")), [(run.batches[0],)])
    assert run.outcomes[0].applied
    reference = make_run(loss=lambda m, b: {"fit": mse(m, b), "head": torch.stack([m(b[0]).mean()])[0]})
    FORMS[form](reference, reference.guard(), [(reference.batches[0],)])
    mine, theirs = state(run), state(reference)
    assert mine.keys() == theirs.keys()
    assert all(torch.isfinite(value).all() for value in mine.values() if isinstance(value, Tensor))


@pytest.mark.parametrize("form", FORMS)
def test_terms_that_are_all_bad_cannot_be_dropped(form: str) -> None:
    run = make_run(loss=lambda m, b: {"only": mse(m, b) * NAN})
    before = state(run)
    FORMS[form](run, run.guard(policy=Policy(bad_terms="drop")), [(run.batches[0],)])
    assert not run.outcomes[0].applied
    assert_same_state(before, state(run))


class _Bomb(torch.autograd.Function):
    """The identity forward; backward puts a value into the gradient."""

    @staticmethod
    def forward(context: Any, x: Tensor, value: float) -> Tensor:
        context.value = value
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.clone()
        gradient.reshape(-1)[0] = context.value
        return gradient, None


def bomb(value: float) -> Callable[[Net, Any], Tensor]:
    def loss(model: Net, batch: tuple[Tensor, Tensor]) -> Tensor:
        return mse(model, batch) + _Bomb.apply(model.head.bias, value).sum() * 1e-3

    return loss


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("clip", [1.0, None])
def test_gradient_of_a_single_parameter_with_a_finite_loss(form: str, value: float, clip: float | None) -> None:
    run = make_run(max_grad_norm=clip)
    guard = run.guard()
    FORMS[form](run, guard, run.windows(run.batches[:2]))
    run.loss = bomb(value)
    before = state(run)
    FORMS[form](run, guard, [(run.batches[2],)])
    incident = run.outcomes[-1].incident
    assert incident is not None
    assert incident.phase == "backward"
    assert names(incident, "gradient") == {"head.bias"}
    assert_same_state(before, state(run))


@pytest.mark.parametrize("form", FORMS)
def test_finite_gradients_whose_norm_overflows_are_their_own_finding(form: str) -> None:
    run = make_run()
    run.loss = bomb(3e38)
    before = state(run)
    FORMS[form](run, run.guard(), [(run.batches[2],)])
    incident = run.outcomes[-1].incident
    assert incident is not None
    assert names(incident, "gradient") == set()
    (finding,) = [finding for finding in incident.findings if finding.kind == "grad_norm"]
    assert finding.value == INF
    assert finding.note == "every gradient is finite, their norm is 3e+38, which overflowed to inf"
    assert_same_state(before, state(run))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fused", [False, True])
def test_a_gradient_so_large_that_adams_second_moment_overflows(form: str, fused: bool) -> None:
    """Finite gradient, finite norm in float64; the weight would never move again."""
    run = make_run(
        model=lambda: nn.Linear(6, 3),
        optimizer=lambda m: torch.optim.Adam(m.parameters(), lr=1e-3, fused=fused, betas=(0.9, 0.0)),
        loss=lambda m, b: mse(m, b) if b[0][0, 0] < 1e3 else m.bias[0] * 1.85e19 + mse(m, (b[0] * 0, b[1])),
        max_grad_norm=None,
    )
    huge = (torch.full((8, 6), 1e4), run.batches[2][1])
    incident = caught(run, form, huge)
    assert incident.phase in ("optimizer", "backward")


@pytest.mark.parametrize("form", FORMS)
def test_half_precision_adam_whose_eps_is_zero(form: str) -> None:
    """fp16 weights, eps 1e-8: NaN weights from finite gradients, and the loss of this step is finite."""

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(6, 3)
            self.dead = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x) + self.dead * 0.0

    run = make_run(
        model=lambda: Half().half(),
        optimizer=lambda m: torch.optim.Adam(m.parameters(), lr=1e-3, eps=1e-8),
        data=[(x.half(), y.half()) for x, y in batches(4)],
    )
    incident = caught(run, form, run.batches[0], warm=0)
    assert incident.phase == "optimizer"
    assert "dead" in names(incident, "parameter")
    assert incident.loss is not None
    assert abs(incident.loss) < INF


@pytest.mark.parametrize("form", FORMS)
def test_bfloat16_adam_whose_beta2_rounds_to_one(form: str) -> None:
    class DebiasInState(torch.optim.Optimizer):
        """Keeps its constants in the parameter's dtype, where 0.999 is 1: the debiasing divides by zero."""

        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 1e-3})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    beta2 = torch.tensor(0.999, dtype=p.dtype)
                    v = self.state[p].setdefault("v", torch.zeros_like(p))
                    v.mul_(beta2).addcmul_(p.grad, p.grad, value=0.001)
                    p.addcdiv_(p.grad, (v / (1 - beta2)).sqrt(), value=-group["lr"])

    def dead_column(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return mse(model, (batch[0] * torch.tensor([0, 1, 1, 1, 1, 1], dtype=torch.bfloat16), batch[1]))

    run = make_run(
        model=lambda: nn.Linear(6, 3).bfloat16(),
        optimizer=lambda m: DebiasInState(m.parameters()),
        loss=dead_column,
        data=[(x.bfloat16(), y.bfloat16()) for x, y in batches(4)],
    )
    incident = caught(run, form, run.batches[0], warm=0)
    assert incident.phase == "optimizer"
    assert "weight" in names(incident, "parameter")


@pytest.mark.parametrize("form", FORMS)
def test_weight_decay_beyond_the_stability_limit_is_not_taken_for_safe(form: str) -> None:
    """No gradient is ever large: the decay alone multiplies the weights by -1e8 a step."""
    run = make_run(
        model=lambda: nn.Linear(6, 3),
        optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=1e5, weight_decay=999.0),
        loss=lambda m, b: (m.weight * 0.0).sum(),
        data=batches(8),
    )
    FORMS[form](run, run.guard(policy=Policy(diagnose="off", max_consecutive_skips=20)))
    assert torch.isfinite(run.model.weight).all()
    assert any(outcome.incident for outcome in run.outcomes)


@pytest.mark.parametrize("form", FORMS)
def test_optimizer_state_that_is_bad_before_the_step(form: str) -> None:
    run = make_run()
    guard = run.guard()
    FORMS[form](run, guard, run.windows(run.batches[:2]))
    run.optimizer.state[run.model.head.weight]["exp_avg"][0, 0] = NAN
    FORMS[form](run, guard, [(run.batches[2],)])
    incident = run.outcomes[-1].incident
    assert incident is not None
    assert run.outcomes[-1].action is Action.ROLLBACK, "no skip puts the state of the optimizer back"
    assert run.model.head.weight.isfinite().all()
    assert all(moment.isfinite().all() for moments in run.optimizer.state.values() for moment in moments.values())
    assert names(incident, "optimizer_state") | names(incident, "parameter") >= {"head.weight"}


@pytest.mark.parametrize("form", FORMS)
def test_all_labels_ignored_is_reported_and_skipped_and_never_rolled_back(form: str) -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], ignore_index=-100)

    data = [(x, torch.randint(3, (8,))) for x, _ in batches(3)]
    run = make_run(loss=loss, data=data)
    guard = run.guard(policy=Policy(max_consecutive_skips=30, skips=Skips(in_window=2)))
    FORMS[form](run, guard)
    before = state(run)
    ignored = (data[0][0], torch.full((8,), -100))
    FORMS[form](run, guard, [(ignored,)] * 30)
    assert_same_state(before, state(run))
    assert {outcome.action for outcome in run.outcomes[3:]} == {Action.SKIP}
    assert all(outcome.incident is not None for outcome in run.outcomes[3:])
    FORMS[form](run, guard, [(data[0],)])
    assert run.outcomes[-1].applied


def test_lbfgs_is_undone_as_a_whole() -> None:
    run = make_run(
        lambda m: torch.optim.LBFGS(m.parameters(), max_iter=3),
        model=lambda: nn.Linear(6, 3),
        loss=lambda m, b: {"fit": mse(m, b), "small": 1e-3 * m.weight.square().sum()},
    )
    guard = run.guard()
    for batch in run.batches[:2]:
        assert guard.attempt(run.forward, batch).applied
    before = state(run)
    outcome = guard.attempt(run.forward, poison(run.batches[2]))
    assert not outcome.applied
    assert outcome.incident is not None
    assert names(outcome.incident, "term") == {"fit"}
    assert_same_state(before, state(run))
    assert guard.attempt(run.forward, run.batches[2]).applied


def test_a_diagnosis_that_fails_costs_the_diagnosis_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr("nantrap.guard.diagnosis.diagnose.locate", broken)
    run = make_run()
    outcome = run.guard().attempt(run.forward, poison(run.batches[0]))
    assert outcome.incident is not None
    assert outcome.incident.notes == ("the diagnosis failed with RuntimeError: a bug of ours",)
    assert not outcome.applied


def test_a_scaler_does_not_keep_buffers_from_being_put_back_for_the_replay() -> None:
    """The question whether the scale is to blame runs the step once more; the replay still begins where it began."""

    class Running(torch.nn.Module):
        mean: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)
            with torch.no_grad():
                self.mean.lerp_(y.mean(0), 0.1)
            return y + self.mean

    model = Running()
    scaler = torch.amp.GradScaler("cpu")
    guard = Guard(model, torch.optim.AdamW(model.parameters()), scaler=scaler, quiet=True)

    def loss(x: torch.Tensor) -> torch.Tensor:
        y = model(x)
        return y.square().mean() + (0 * y.square()).sqrt().sum()

    incident = guard.attempt(loss, torch.randn(8, 4)).incident
    assert incident is not None
    assert incident.restored is True
    assert incident.notes == ("each of the 8 samples of the batch fails alone, so no single one is the reason",)
    assert torch.equal(model.mean, torch.zeros(4))
