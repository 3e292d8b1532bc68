"""`nantrap selftest` on the CPU: its table, its exit codes, and that each kind of check can fail."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from nantrap.cli import main
from nantrap.doctor.selftest import operations, processes, selftest, training
from nantrap.doctor.selftest.checks import all_checks


def test_the_table_and_the_document(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    given = [
        "selftest",
        "--device",
        "cpu",
        "--only",
        "flags",
        "found_inf",
        "late values",
        "run: GradScaler",
        "run: graphs",
    ]
    assert main(given) == 0
    out = capsys.readouterr().out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "ok   run: GradScaler          as plain bit for bit" in out
    assert "skip late values              values of a CPU are here at once" in out
    assert "skip run: graphs              only CUDA has graphs" in out
    assert main([*given, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "nantrap.selftest/1"
    assert [check["status"] for check in document["checks"]] == ["ok", "ok", "skip", "ok", "skip"]
    assert torch.__version__ in document["summary"]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name == "run: compiled"))
        for name in all_checks()
        if name.startswith("run: ")
    ],
)
def test_every_run_holds_or_says_why_not(name: str) -> None:
    (check,) = selftest("cpu", only=[name]).checks[:1]
    assert check.status == "ok" or check.message.startswith(
        ("the loop without a guard does not run here", "a CPU has no streams", "only CUDA")
    ), check.message


def test_operations_diagnosis_rollback_and_files() -> None:
    report = selftest("cpu", only=["flags", "found_inf", "restore", "random", "diagnosis", "rollback", "save"])
    assert [check.status for check in report.checks] == ["ok"] * 7, report.failures


@pytest.mark.slow
def test_several_processes_and_a_script() -> None:
    report = selftest("cpu", only=["several processes", "nantrap run", "cost"])
    assert [check.status for check in report.checks] == ["ok"] * 3, report.failures


def test_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--device", "nothing"]) == 2
    assert "no device nothing here" in capsys.readouterr().err
    assert main(["selftest", "--device", "cpu", "--only", "magic"]) == 2
    assert "no check is called magic; there are: flags, found_inf" in capsys.readouterr().err


def test_the_streams_of_the_program_stay() -> None:
    before = torch.get_rng_state()
    selftest("cpu", only=["random", "run: Adam f"])
    assert torch.equal(torch.get_rng_state(), before)


# ---- each kind of check fails where what it tests is broken


def test_a_kernel_that_restores_nothing_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(operations, "restore_where", lambda bad, targets, sources: None)
    assert main(["selftest", "--device", "cpu", "--only", "restore"]) == 1
    assert "fail restore" in capsys.readouterr().out


def test_a_guard_that_lets_a_step_through_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = training.Training.guard
    monkeypatch.setattr(
        training.Training, "guard", lambda run, *a, **o: guard(run, *a, **{**o, "on_incident": "observe"})
    )
    (check,) = selftest("cpu", only=["run: AdamW fused"]).checks
    assert check.status == "fail"
    assert check.message == "attempt: the bad step 10 gave 4 incidents, the last in step 13"


def test_a_step_that_is_not_the_plain_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = training.Training.guarded

    def changed(run: Any, guard: Any, form: Any, windows: Any) -> None:
        guarded(run, guard, form, windows)
        with torch.no_grad():
            run.model.head.weight.mul_(1 + 2e-7)

    monkeypatch.setattr(training.Training, "guarded", changed)
    (check,) = selftest("cpu", only=["run: schedule"]).checks
    assert check.message == "attempt: a healthy run is not bit for bit the plain one: parameter head.weight"


def test_a_plain_loop_that_is_not_deterministic_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    loss_of = training.loss_of
    count = iter(range(10**6))
    monkeypatch.setattr(training, "loss_of", lambda *given: loss_of(*given) * (1 + 1e-3 * next(count)))
    (check,) = selftest("cpu", only=["run: SGD fused"]).checks
    assert check.status == "skip"
    assert check.message.startswith("the loop without a guard gives other bits when made again: ")


def test_what_raises_is_a_failure_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(values: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access\nmore")

    monkeypatch.setattr(operations.finite, "flag_of", broken)
    (check,) = selftest("cpu", only=["flags"]).checks
    assert (check.status, check.message) == ("fail", "raised RuntimeError: CUDA error: an illegal memory access")


def test_nothing_is_begun_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nantrap.doctor.selftest.checks.SECONDS", -1.0)
    report = selftest("cpu")
    assert {check.message for check in report.checks} == {"not tried: the time for the whole test was over"}


def test_a_process_that_dies_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_SCRIPT", "raise SystemExit('no such device')")
    (check,) = selftest("cpu", only=["nantrap run"]).checks
    assert check.message == "the script (plain) did not end: no such device"
