"""`nantrap selftest` on the simulated device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nantrap.doctor.selftest import selftest
from nantrap.doctor.selftest.checks import all_checks
from nantrap.guard.sync import Arrival

ALONE = {"run: graphs", "several processes", "nantrap run"}
"""What another kind of device has, or another process would need."""
SLOW = {"run: compiled", "cost"}


def test_the_quick_ones_hold() -> None:
    names = [
        "found_inf",
        "late values",
        "random numbers",
        "run: GradScaler",
        "run: side stream",
        "no waiting",
        "rollback",
    ]
    report = selftest("sim", only=names)
    assert [check.status for check in report.checks] == ["ok"] * len(names), report.failures


@pytest.mark.slow
def test_every_check_holds() -> None:
    chosen = [name for name in all_checks() if name not in SLOW]
    report = selftest("sim", only=chosen)
    assert {check.name for check in report.checks if check.status == "skip"} == ALONE
    assert not report.failures, report.failures
    assert report.target == "sim:0"
    late = [check.name for check in report.checks if "read one step later" in check.message]
    assert "run: side stream" in late
    assert "run: GradScaler" in late
    assert "run: AdamW foreach" not in late


@pytest.mark.slow
def test_the_slow_ones_hold() -> None:
    assert not selftest("sim", only=SLOW).failures


def test_a_device_of_this_process_is_the_default() -> None:
    assert selftest(only=["flags"]).target == "sim:0"


def test_a_wait_in_a_healthy_step_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Arrival.of

    def waiting(values: torch.Tensor) -> Any:
        values.sum().item()
        return sent(values)

    monkeypatch.setattr(Arrival, "of", staticmethod(waiting))
    (check,) = selftest("sim", only=["no waiting"]).checks
    assert check.status == "fail"
    assert check.message == "attempt, plain: a healthy step waits: called a synchronizing operation of sim: item"


def test_values_that_are_read_too_early_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arrival, "read", lambda sent: sent.values.tolist())
    (check,) = selftest("sim", only=["late values"]).checks
    assert check.status == "fail"
    assert "copy 0 behind a queue of work arrived as [nan" in check.message
