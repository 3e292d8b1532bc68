"""A name that the loop assigns again: the loss is computed from the value that it had, or not at all."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap.incident import Incident
from nantrap.locate.twoline.rewriting import NotRepeatable
from nantrap.locate.twoline.slicing import depended_on

pytestmark = pytest.mark.filterwarnings("ignore:std")
AGAIN = "the loss was computed again from its source"


def only(incidents: list[Incident | None]) -> Incident:
    (incident,) = [each for each in incidents if each is not None]
    return incident


def guarded(model: nn.Module) -> nantrap.Guard:
    return nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), quiet=True)


def test_advantages_that_are_normalised_under_their_own_name() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    observations, all_advantages = torch.randn(9, 4), torch.randn(9)
    found: list[Incident | None] = []
    with guarded(model) as guard:
        for start in (0, 4, 8):
            chosen = torch.arange(start, min(start + 4, 9))
            advantages = all_advantages[chosen]
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            loss = -(advantages * model(observations[chosen]).squeeze(-1)).mean()
            guard.backward(loss)
            found.append(guard.step().incident)
    incident = only(found)
    assert (incident.causes[0].slug, incident.causes[0].proven) == ("std_of_one_element", True)
    assert incident.source is not None
    assert incident.source.text.strip().startswith("advantages = (advantages")


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = self.cell(x, state)
        return self.head(state), state


def recurrent(divisor: Callable[[int], Tensor]) -> Incident:
    """Two names that only this loop knows: `hidden` is replaced by what the model gives, `weight` is not."""
    torch.manual_seed(0)
    model = Recurrent()
    hidden = torch.zeros(2, 4)
    found: list[Incident | None] = []
    with guarded(model) as guard:
        for step in range(3):
            x, weight = torch.randn(2, 3), divisor(step)
            hidden = hidden.detach()
            output, hidden = model(x, hidden)
            loss = (output / weight).sum()
            guard.backward(loss)
            found.append(guard.step().incident)
    return only(found)


def test_a_state_that_the_model_replaces_is_the_one_that_it_was_given() -> None:
    incident = recurrent(lambda step: torch.tensor(float(step != 1)))
    assert any(note.startswith(AGAIN) for note in incident.notes)
    assert (incident.op, incident.causes[0].slug, incident.causes[0].proven) == ("aten.div", "division_by_zero", True)


def test_a_state_that_was_bad_is_named_and_nothing_of_this_step_is_blamed() -> None:
    torch.manual_seed(0)
    model = Recurrent()
    hidden = torch.zeros(2, 4)
    found: list[Incident | None] = []
    with guarded(model) as guard:
        for step in range(2):
            x = torch.randn(2, 3)
            output, hidden = model(x, hidden.detach() if step == 0 else torch.full((2, 4), torch.nan))
            loss = output.sum()
            guard.backward(loss)
            found.append(guard.step().incident)
    incident = only(found)
    assert not incident.causes[0].proven
    assert "state" in incident.causes[0].summary


def test_a_value_of_before_is_not_taken_from_after() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    scale = torch.ones(1)
    found: list[Incident | None] = []
    with guarded(model) as guard:
        for step in range(3):
            output = model(torch.ones(2, 3))
            loss = (output / scale).mean()  # of the step before
            scale = torch.zeros(1) if step == 0 else torch.ones(1)
            guard.backward(loss)
            found.append(guard.step().incident)
    incident = only(found)
    assert not any(note.startswith(AGAIN) for note in incident.notes)
    assert incident.causes[0].slug == "division_by_zero"


# ---- the walk itself


def dependence(code: str, held: dict[str, Any], **given: Any) -> tuple[list[str], dict[str, Any]]:
    *statements, last = ast.parse(code).body
    assert isinstance(last, ast.Expr)
    found = depended_on(statements, last.value, held, follows_all=True, **given)
    return [ast.unparse(each) for each in found.statements], found.before


@pytest.mark.parametrize(
    ("code", "kept"),
    [
        ("a = f(b)\na = g(a)\na", ["a = f(b)", "a = g(a)"]),
        ("c = 1\na = f(b)\nc", ["c = 1"]),
        ("x = [a for a in b]\na = 1\nx", ["x = [a for a in b]"]),
        ("with c:\n    a = f(b)\na", ["with c:\n    a = f(b)"]),
        ("for i in b:\n    a = f(i)\na", ["for i in b:\n    a = f(i)"]),
        ("if c:\n    a = f(b)\nd = a\nd", ["if c:\n    a = f(b)", "d = a"]),
        ("g = lambda a: a + b\na = 2\ng(1)", ["g = lambda a: a + b"]),
    ],
)
def test_which_statements_run_again(code: str, kept: list[str]) -> None:
    assert dependence(code, {name: object() for name in "abcdfgx"})[0] == kept


@pytest.mark.parametrize("code", ["a = f(a)\na", "y = a + b\na = f(b)\ny", "if c:\n    a = f(a)\na"])
def test_a_value_that_is_gone_is_not_made_up(code: str) -> None:
    with pytest.raises(NotRepeatable):
        dependence(code, {name: torch.ones((), requires_grad=True) * 1 for name in "abcfy"})


def test_values_of_before_from_the_loader_and_from_the_call() -> None:
    held = {name: torch.ones((), requires_grad=True) * 1 for name in "axy"}
    assert dependence("x = x / 2\nx", held, begun={"x": 8}) == (["x = x / 2"], {"x": 8})

    def arguments(call: ast.Call) -> dict[str, Any]:
        return {"a": 5} if ast.unparse(call.func) == "m" else {}

    assert dependence("a = f(a)\ny, a = m(a)\ny", held, arguments=arguments) == (["y, a = m(a)"], {"a": 5})


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 1)
        self.inverse = Inverse()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.body(x)
        return result


class Inverse(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 1 / x


def test_a_part_of_the_model_whose_call_leaves_no_graph_is_run_again() -> None:
    torch.manual_seed(0)
    model = Weighted()
    found: list[Incident | None] = []
    with guarded(model) as guard:
        for step in range(3):
            weight = model.inverse(torch.full((2, 1), float(step != 1)))
            guard.backward((weight * model(torch.ones(2, 3))).mean())
            found.append(guard.step().incident)
    incident = only(found)
    assert (incident.module, incident.causes[0].slug) == ("inverse", "division_by_zero")
