"""A fault on one of two real processes that run the user's factory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nantrap.doctor.preflight.drill import ranks_in_waiting

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file")

FACTORIES = """
import torch
from torch import nn


def make():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    return {"model": model, "batch": torch.randn(6, 4), "loss": lambda model, batch: model(batch).square().mean()}


def stubborn():
    made = make()
    made["optimizer"] = torch.optim.SGD(made["model"].parameters(), lr=0.1)

    def loss(model, batch):
        if torch.distributed.get_rank() == 1:  # another random initialisation on one rank
            with torch.no_grad():
                model[0].weight.add_(0.1)
        return model(batch).square().mean()

    return {**made, "loss": loss}


def single():
    import sys
    if '"rank"' in sys.argv[-1]:  # the job of one of the two processes
        raise RuntimeError("this factory cannot be run in two processes")
    return make()
"""


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rank_factories.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("factories")
def test_both_ranks_skip_the_step() -> None:
    with ranks_in_waiting("rank_factories:make") as finish:
        check = finish()
    assert (check.status, check.values.get("held")) == ("ok", ["activation", "grad"]), check
    assert check.message.endswith("the same step is skipped, the weights stay equal")


@pytest.mark.slow
@pytest.mark.usefixtures("factories")
def test_ranks_that_drift_apart_are_reported() -> None:
    with ranks_in_waiting("rank_factories:stubborn") as finish:
        check = finish()
    assert (check.status, check.values.get("broken")) == ("fail", ["activation", "grad"]), check


@pytest.mark.slow
@pytest.mark.usefixtures("factories")
def test_a_factory_that_cannot_be_run_twice() -> None:
    with ranks_in_waiting("rank_factories:single") as finish:
        check = finish()
    assert check.status == "skip"
    assert "cannot be run in two processes" in check.message
    assert "RuntimeError: this factory cannot be run in two processes" in check.message
