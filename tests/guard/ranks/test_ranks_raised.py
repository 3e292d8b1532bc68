"""An exception on one of two ranks that NaN caused: the rank that raised reports it, and no rank waits for another.

In the step that fails the other rank does nothing at all, so that any message to it would end the test by a timeout.
"""

from __future__ import annotations

import contextlib
import io
import math
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn.parallel import DistributedDataParallel

import nantrap
from nantrap import Policy
from ranked import Ranks, run_scenarios

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file")


def _train(rank: int, folder: str, *, form: str, fault: str = "nan", observe: bool = False) -> dict[str, Any]:
    """Two steps by both ranks, and one by rank 1 alone that raises an exception."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    policy = Policy(on_incident="observe") if observe else Policy()
    guard = nantrap.Guard(model, optimizer, policy=policy, run_dir=folder)

    def loss_of(x: Tensor) -> Tensor:
        if fault == "bug" and not bool(x.all()):
            raise KeyError("a bug")
        return -Normal(model(x), 1.0, validate_args=True).log_prob(torch.zeros(8, 2)).mean()

    def make(x: Tensor) -> None:
        if form == "attempt":
            guard.attempt(loss_of, x)
        else:
            guard.backward(loss_of(x))
            guard.step()

    written, raised = io.StringIO(), ""
    with contextlib.redirect_stderr(written):
        try:
            with guard:
                for _ in range(2):
                    make(torch.ones(8, 4))
                if rank == 1:
                    x = torch.ones(8, 4)
                    x[3, 1] = math.nan if fault == "nan" else 0.0
                    make(x)
        except (ValueError, KeyError) as error:
            raised = type(error).__name__
    incident = guard.last_incident
    return {
        "raised": raised,
        "written": written.getvalue(),
        "incidents": guard.tally.incidents,
        "weights": [p.detach().sum().item() for p in model.parameters()],
        "incident": None if incident is None else incident.to_dict(),
    }


SCENARIOS: dict[str, dict[str, Any]] = {
    "two lines": {"form": "two lines"},
    "attempt": {"form": "attempt"},
    "observed": {"form": "attempt", "observe": True},
    "bug in two lines": {"form": "two lines", "fault": "bug"},
    "bug in attempt": {"form": "attempt", "fault": "bug"},
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    return run_scenarios(_train, SCENARIOS, tmp_path_factory.mktemp("raised"))


@pytest.mark.parametrize("form", ["two lines", "attempt", "observed"])
def test_the_rank_that_raised_reports_what_was_behind_it(ranks: Ranks, form: str) -> None:
    other, guilty = ranks(form)
    assert (other["raised"], other["incidents"]) == ("", 0)
    assert guilty["raised"] == "ValueError", "the exception of the program is what ends it"
    incident = guilty["incident"]
    assert (incident["phase"], incident["origin_rank"], incident["samples"]) == ("data", 1, [3])
    assert incident["causes"][0]["slug"] == "bad_input_data"
    assert incident["notes"][0].startswith("the step ended with ValueError: Expected parameter loc")
    assert "[NT101]: the " in guilty["written"], "rank 1 prints it"
    assert other["weights"] == guilty["weights"]


def test_what_is_said_of_the_other_ranks(ranks: Ranks) -> None:
    words = "the other ranks cannot leave out a step that ends on this rank alone"
    assert words in ranks("attempt")[1]["written"]
    assert words not in ranks("two lines")[1]["written"], "there the guard could not refuse it in any case"
    assert words not in ranks("observed")[1]["written"], "nothing is refused there"
    assert "step 2 skipped" in ranks("attempt")[1]["written"]
    assert "the run ended with ValueError" in ranks("two lines")[1]["written"]


@pytest.mark.parametrize("form", ["two lines", "attempt"])
def test_an_exception_of_the_users_own_is_not_reported(ranks: Ranks, form: str) -> None:
    other, guilty = ranks(f"bug in {form}")
    assert (guilty["raised"], guilty["incidents"], other["incidents"]) == ("KeyError", 0, 0)
    assert "NT" not in guilty["written"]
