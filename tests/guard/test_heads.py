"""`Policy(bad_terms="drop")` where the losses are finite and the gradient of one head is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from guard.loops import FORMS, assert_same_state, state_of
from guard.loops import Run as Loop
from nantrap import Policy
from nantrap.incident import Action

Heads = Callable[[list[Tensor]], dict[str, Tensor]]


class ThreeHeads(nn.Module):
    """A body and three heads; what a head gives has an infinite slope where it is exactly 0."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.2))
        self.heads = nn.ModuleList(nn.Linear(3, 2) for _ in range(3))

    def forward(self, x: Tensor) -> list[Tensor]:
        h = self.body(x)
        return [head(h).square().sum(-1) for head in self.heads]


def named(losses: list[Tensor]) -> dict[str, Tensor]:
    return {f"head{i}": loss for i, loss in enumerate(losses)}


def vector(losses: list[Tensor]) -> dict[str, Tensor]:
    return {"fit": losses[0] * 0.1, "heads": torch.stack(losses) / 3}


def unbound(losses: list[Tensor]) -> dict[str, Tensor]:
    return {f"head{i}": -(loss / 3) for i, loss in enumerate(-torch.stack(losses))}


def selected(losses: list[Tensor]) -> dict[str, Tensor]:
    stacked = torch.stack(losses)
    return {"head0": stacked[0], "head1": stacked[1], "head2": stacked[-1]}


SHAPES: dict[str, tuple[Heads, str]] = {
    "named": (named, "head1"),
    "vector": (vector, "heads[1]"),
    "unbound": (unbound, "head1"),
    "selected": (selected, "head1"),
}


def loss_of(heads: Heads, *, without: str = "") -> Callable[[nn.Module, Any], dict[str, Tensor]]:
    """The roots of what the heads give; in a bad batch head 1 gives exactly 0, where a root has no slope."""

    def loss(model: nn.Module, batch: tuple[Tensor, bool]) -> dict[str, Tensor]:
        x, bad = batch
        outputs = model(x)
        if bad and without:  # the same step over the good heads alone
            outputs[1] = outputs[1].detach()
        elif bad:
            outputs[1] = outputs[1] * 0
        terms = heads([z.sqrt().mean() for z in outputs])
        if bad and without.startswith("heads["):  # what is left of a vector: its other entries
            stacked = terms.pop("heads")
            terms |= {"heads[0]": stacked[0], "heads[2]": stacked[2]}
        return {name: term for name, term in terms.items() if not bad or name != without}

    return loss


def run_of(loss: Callable[[nn.Module, Any], Any], *, micro: int = 1, **options: Any) -> Loop:
    torch.manual_seed(0)
    model = ThreeHeads()
    generator = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 4, generator=generator), step == 3) for step in range(6)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return Loop(model, optimizer, loss, batches, micro=micro, **options)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_step_is_made_with_the_good_heads(form: str, shape: str) -> None:
    heads, name = SHAPES[shape]
    run = run_of(loss_of(heads))
    FORMS[form](run, run.guard(policy=Policy(bad_terms="drop")))
    assert all(outcome.applied for outcome in run.outcomes)
    incident = run.outcomes[3].incident
    assert incident is not None
    assert incident.action is Action.APPLY
    assert [f.name for f in incident.findings if f.kind == "term"] == [name]
    assert incident.cause is not None
    assert incident.cause.slug == "singular_gradient_at_zero"
    assert name in incident.terms
    assert name not in run.outcomes[3].terms

    plain = run_of(loss_of(heads, without=name))
    FORMS[form](plain, plain.guard())
    assert_same_state(state_of(plain), state_of(run))


@pytest.mark.parametrize("form", FORMS)
def test_a_micro_batch_keeps_its_good_heads(form: str) -> None:
    run = run_of(loss_of(named), micro=2)
    FORMS[form](run, run.guard(policy=Policy(bad_terms="drop")))
    assert all(outcome.applied for outcome in run.outcomes)
    incident = run.outcomes[1].incident
    assert incident is not None
    assert any(note.startswith("loss term head1 left out, the other 2 applied") for note in incident.notes)
    plain = run_of(loss_of(named, without="head1"), micro=2)
    FORMS[form](plain, plain.guard())
    assert_same_state(state_of(plain), state_of(run))


@pytest.mark.parametrize("form", FORMS)
def test_with_a_scaler_the_head_is_not_taken_for_an_overflow_of_the_scale(form: str) -> None:
    run = run_of(loss_of(named), scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    FORMS[form](run, run.guard(policy=Policy(bad_terms="drop")))
    assert all(outcome.applied for outcome in run.outcomes)
    assert run.scaler.get_scale() == 1024.0
    plain = run_of(loss_of(named, without="head1"), scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    FORMS[form](plain, plain.guard())
    assert_same_state(state_of(plain), state_of(run))


@pytest.mark.parametrize("form", FORMS)
def test_heads_that_cannot_be_separated_are_skipped_as_a_whole(form: str) -> None:
    def one_tensor(model: nn.Module, batch: tuple[Tensor, bool]) -> dict[str, Tensor]:
        x, bad = batch
        rows = torch.stack(model(x))
        if bad:
            rows = rows * torch.tensor([1.0, 0.0, 1.0])[:, None]
        return {"heads": rows.sqrt().mean(1)}

    run = run_of(one_tensor)
    guard = run.guard(policy=Policy(bad_terms="drop"))
    FORMS[form](run, guard, run.windows(run.batches[:3]))
    before = state_of(run, rng=False)
    FORMS[form](run, guard, run.windows(run.batches[3:4]))
    assert not run.outcomes[3].applied
    assert_same_state(before, state_of(run, rng=False))
    assert not guard.tally.dropped_terms


@pytest.mark.parametrize("form", FORMS)
def test_a_bad_value_and_a_bad_gradient_in_one_step(form: str) -> None:
    def both(model: nn.Module, batch: tuple[Tensor, bool]) -> dict[str, Tensor]:
        terms = loss_of(unbound)(model, batch)
        return {**terms, "head2": terms["head2"] * float("inf")} if batch[1] else terms

    run = run_of(both)
    guard = run.guard(policy=Policy(bad_terms="drop"))
    FORMS[form](run, guard)
    assert all(outcome.applied for outcome in run.outcomes)
    assert set(run.outcomes[3].terms) == {"head0"}
    assert dict(guard.tally.dropped_terms) == {"head2": 1, "head1": 1}


def test_every_bad_head_is_named_in_the_message(capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(loss_of(vector))
    with run.guard(policy=Policy(bad_terms="drop"), quiet=False) as guard:
        FORMS["attempt"](run, guard)
    said = capsys.readouterr().err
    assert "step 3 applied; lr 0.05; loss term heads[1] left out" in said
    assert "error[NT301]: " in said
    assert "loss term heads[1] left out, the other 3 applied" in said
    assert "the gradient of loss term heads[1] is not finite" in said
    assert "loss terms left out of applied steps: heads[1] 1 ×" in said


def test_healthy_heads_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(loss_of(vector))
    run.batches = [(x, False) for x, _ in run.batches]
    with run.guard(policy=Policy(bad_terms="drop"), quiet=False) as guard:
        FORMS["two_line"](run, guard)
    assert "left out" not in capsys.readouterr().err
    plain = run_of(loss_of(vector))
    plain.batches = run.batches
    FORMS["two_line"](plain, plain.guard())
    assert_same_state(state_of(plain), state_of(run))


@pytest.mark.parametrize("form", FORMS)
def test_a_compiled_model_is_never_asked_for_a_second_backward(form: str) -> None:
    """Its backward pass has given its memory away; the bad step is skipped as a whole."""
    torch._dynamo.reset()  # after many compiled functions of other tests it would be run as it is
    run = run_of(loss_of(named))
    compiled = torch.compile(run.model, backend="aot_eager")
    run.loss = lambda _, batch: loss_of(named)(compiled, batch)  # type: ignore[arg-type]
    FORMS[form](run, run.guard(policy=Policy(bad_terms="drop")), run.windows(run.batches[:5]))
    assert [outcome.applied for outcome in run.outcomes] == [True, True, True, False, True]
