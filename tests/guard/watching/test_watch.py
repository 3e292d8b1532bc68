"""Watched values with limits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import nantrap
from guard.loops import make_run
from journals import steps_in
from nantrap import Limit


class Gated(nn.Module):
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(0.5))
        self.weight = nn.Parameter(torch.tensor([-3.0, 2.0]))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count + 1  # replaced, not written
        return (self.alpha * x + self.weight.sum() * 0).square().mean()


def gated(watch: object, lr: float = 0.0):
    run = make_run(lambda m: torch.optim.SGD(m.parameters(), lr=lr), model=Gated, loss=lambda m, b: m(b), data=[])
    return run, run.guard(watch=watch, quiet=False, max_grad_norm=None)


def test_values_are_followed_by_name_and_vectors_by_their_absmax(tmp_path: object) -> None:
    run = make_run(lambda m: torch.optim.SGD(m.parameters(), lr=0.0), model=Gated, loss=lambda m, b: m(b), data=[])
    guard = run.guard(watch=("*",), run_dir=tmp_path)
    for _ in range(3):
        guard.attempt(run.forward, torch.ones(2))
    guard.close()
    lines = steps_in(tmp_path)
    assert [line["watch"]["count"] for line in lines] == [1.0, 2.0, 3.0]
    assert lines[0]["watch"] == {"alpha": 0.5, "weight": 3.0, "count": 1.0}


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (0.1, "nantrap: step 0: watched value alpha: 0.5 is above 0.1\n"),
        (Limit(max=0.1), "nantrap: step 0: watched value alpha: 0.5 is above 0.1\n"),
        (Limit(min=0.7), "nantrap: step 0: watched value alpha: 0.5 is below 0.7\n"),
        (Limit(max=0.1, until=2), "nantrap: step 0: watched value alpha: 0.5 is above 0.1 before step 2\n"),
        ([Limit(max=1.0), Limit(min=0.6)], "nantrap: step 0: watched value alpha: 0.5 is below 0.6\n"),
        (None, ""),
        (Limit(min=0.0, max=1.0), ""),
    ],
)
def test_a_limit_is_reported_once(limit: object, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    run, guard = gated({"alpha": limit})
    for _ in range(4):
        guard.attempt(run.forward, torch.ones(2))
    assert capsys.readouterr().err == words


def test_a_limit_speaks_again_after_the_value_came_back(capsys: pytest.CaptureFixture[str]) -> None:
    run, guard = gated({"alpha": Limit(max=1.0)})
    for value in (0.5, 2.0, 2.0, 0.5, 3.0):
        run.model.alpha.data.fill_(value)
        guard.attempt(run.forward, torch.ones(2))
    assert capsys.readouterr().err.count("is above 1") == 2


def test_a_pattern_without_a_match() -> None:
    with pytest.raises(nantrap.UsageError) as caught:
        gated(("*.gamma",))
    assert str(caught.value) == ("watch='*.gamma' matches no parameter or buffer; names look like alpha, weight, count")


def test_a_limit_that_is_none() -> None:
    with pytest.raises(nantrap.UsageError) as caught:
        gated({"alpha": "high"})
    assert str(caught.value) == (
        "watch['alpha']='high': expected a number (the largest value), a nantrap.Limit or a list of them"
    )
