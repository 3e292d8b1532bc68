"""What a rank other than 0 adds to the summary: rank 0 speaks for all, and cannot know this."""

from __future__ import annotations

import pytest

from nantrap.launch.settings import RunSettings
from nantrap.launch.summary import RunSummary, print_summary

BAD_SHARD = RunSummary(
    rank=1, ranks=2, steps=8, applied=8, optimizers=1, own_weights=True, state_finite=False, bad=("b",)
)


def test_models_of_its_own() -> None:
    own = RunSummary(rank=1, ranks=2, steps=8, applied=7, incidents=1, causes={"bad_input_data": 1}, own_models=1)
    assert own.own_lines() == ["on rank 1: 8 steps, 7 applied, 1 incident: 1 × bad_input_data"]


def test_a_common_model_is_left_to_rank_0() -> None:
    common = RunSummary(rank=1, ranks=2, incidents=1, causes={"bad_input_data": 1}, state_finite=False, bad=("b",))
    assert common.own_lines() == []


def test_faults_on_purpose_are_listed_by_each_rank() -> None:
    faults = {"grad": 3, "loss": 1}
    assert RunSummary(rank=3, ranks=4, injected=faults).own_lines() == [
        "on rank 3: faults injected on purpose: 3 × grad, 1 × loss"
    ]
    zero = RunSummary(rank=0, ranks=4, optimizers=1, injected=faults)
    assert "on rank 0: faults injected on purpose: 3 × grad, 1 × loss" in zero.lines(0)


def test_a_shard_that_ends_non_finite_is_said_even_in_a_quiet_run(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(BAD_SHARD, 1, RunSettings(quiet=True))
    assert capsys.readouterr().err == "nantrap: on rank 1: the run ends with NON-FINITE weights: b; the run failed\n"


def test_the_data_come_from_rank_0_alone(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(BAD_SHARD, 1, RunSettings(json=True))
    assert not capsys.readouterr().out


def test_one_step_of_a_scaler_is_one_step() -> None:
    assert "1 step skipped by the GradScaler while it searched its scale (normal)" in RunSummary(
        optimizers=1, scaler_probes=1
    ).lines(0)
