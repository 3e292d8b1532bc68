"""Weights that are bad before the first step of a sharded model: each rank holds a part of them, and no rule waits for
the others to read the rest."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import Any

import pytest
import torch
from torch import nn

import nantrap
from guard.ranks import ways
from ranked import Ranks, run_scenarios
from sharding import RUNS

pytestmark = pytest.mark.skipif(sys.platform == "win32" or not RUNS, reason="FSDP2 over gloo")


def _train(rank: int, folder: str, *, weights: str) -> dict[str, Any]:
    """Two steps of a model that `to_empty` left with whatever was in memory."""
    parts = ways.build("sharded", faulty=False)
    with torch.no_grad():
        for name, parameter in parts.inner.named_parameters():
            own = ways.local(parameter)
            if weights == "huge":
                own.fill_(1e20)
            elif name == "body.bias" and rank == 1:
                own[:2] = ways.NAN
    with contextlib.redirect_stderr(io.StringIO()) as said:
        guard = nantrap.Guard(parts.model, parts.optimizer, run_dir=folder)
        incidents = []
        for step in range(2):
            inputs, targets = ways.batch_of("sharded", rank, step, 0)
            guard.backward(nn.functional.mse_loss(parts.model(inputs), targets))
            incidents.append(guard.step().incident)
        guard.close()
    first = incidents[0]
    assert first is not None
    return {
        "cause": first.causes[0].slug if first.causes else None,
        "phase": first.phase,
        "origin": first.origin_rank,
        "notes": list(first.notes),
        "said": said.getvalue(),
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    scenarios = {"huge": {"weights": "huge"}, "nan": {"weights": "nan"}}
    return run_scenarios(_train, scenarios, tmp_path_factory.mktemp("weights"))


def test_a_rule_reads_the_part_of_its_own_rank(ranks: Ranks) -> None:
    zero, one = ranks("huge")
    assert zero["cause"] == one["cause"] == "bad_initialisation"
    assert not any("failed" in note for note in (*zero["notes"], *one["notes"]))


def test_a_bad_weight_of_one_rank_is_named_by_all(ranks: Ranks) -> None:
    zero, one = ranks("nan")
    assert zero["origin"] == one["origin"] == 1
    assert zero["phase"] == one["phase"] == "state"
    assert "body.bias" in zero["said"]
