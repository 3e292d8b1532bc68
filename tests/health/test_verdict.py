"""The verdict on runs and logs: each check passes what is healthy and names what is not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nantrap import health, record
from nantrap.errors import FormatError
from nantrap.health.expectations import parse_expectations
from nantrap.record import Journal

RNG = np.random.default_rng(0)
FALLING = 8 * np.exp(-np.arange(400) / 80) + 2 + RNG.normal(0, 0.2, 400)


Values = Sequence[float] | np.ndarray[Any, Any]


def log(folder: Path, losses: Values, **columns: Values) -> record.Run:
    path = folder / "log.jsonl"
    rows = [
        {"step": i, "loss": float(loss), **{name: float(values[i]) for name, values in columns.items()}}
        for i, loss in enumerate(losses)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return record.open_run(path)


def finding(verdict: health.HealthVerdict, check: str) -> health.HealthFinding:
    return next(found for found in verdict.findings if found.check == check)


def outcomes(verdict: health.HealthVerdict) -> dict[str, str]:
    return {found.check: found.outcome for found in verdict.findings}


def test_a_healthy_log(tmp_path: Path) -> None:
    warm = np.minimum(1.0, np.arange(400) / 50) * 1e-4
    run = log(tmp_path, FALLING, grad_norm=1 + RNG.random(400), lr=warm, eval_accuracy=np.linspace(0.1, 0.9, 400))
    verdict = health.judge(run, now=run.modified + 30)
    assert (verdict.word, verdict.last_step, verdict.state) == ("healthy", 399, "last written 30 s ago")
    assert set(outcomes(verdict).values()) == {"pass"}
    assert finding(verdict, "loss_falls").summary.startswith("the loss falls from 8.4")
    assert finding(verdict, "evaluation").summary.endswith("last 0.9: it improves")
    json.dumps(verdict.to_dict(), allow_nan=False)


def test_a_dead_log(tmp_path: Path) -> None:
    dead = np.where(np.arange(400) >= 300, np.nan, FALLING)
    verdict = health.judge(log(tmp_path, dead))
    assert verdict.word == "sick"
    assert finding(verdict, "loss_finite").summary == "dead since step 300: no finite loss in the last 100 values"
    assert finding(verdict, "loss_finite").evidence["dead_since"] == 300
    json.dumps(verdict.to_dict(), allow_nan=False)


def test_nan_that_passes_is_a_warning_and_much_of_it_is_not(tmp_path: Path) -> None:
    some = FALLING.copy()
    some[[50, 90]] = np.inf
    assert outcomes(health.judge(log(tmp_path, some)))["loss_finite"] == "warn"
    some[100:200:5] = np.nan
    assert outcomes(health.judge(log(tmp_path, some)))["loss_finite"] == "fail"


@pytest.mark.parametrize(
    ("losses", "outcome", "words"),
    [
        (FALLING[::-1], "fail", "the loss rises from"),
        (np.concatenate([FALLING, np.linspace(2, 7, 100)]), "fail", "the loss diverges: 1.9"),
        (5 + RNG.normal(0, 0.3, 400), "warn", "the loss shows no clear trend"),
        (np.concatenate([FALLING, np.full(60, 0.6931)]), "fail", "the loss does not change any more: 0.6931"),
        (FALLING[:15], "unknown", "only 15 finite losses: too few for a trend"),
        (-FALLING[::-1], "pass", "the loss falls from -2."),
    ],
    ids=["rises", "diverges", "flat", "frozen", "short", "negative"],
)
def test_the_course_of_the_loss(tmp_path: Path, losses: np.ndarray, outcome: str, words: str) -> None:
    found = finding(health.judge(log(tmp_path, losses)), "loss_falls")
    assert found.outcome == outcome
    assert found.summary.startswith(words)


@pytest.mark.parametrize("seed", range(20))
def test_no_alarm_on_noise(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(100, 5000))
    noise = rng.choice([0.05, 0.3, 1.0])
    losses = 6 * np.exp(-np.arange(count) / (count / 5)) + 3 + rng.normal(0, noise, count)
    verdict = health.judge(log(tmp_path, losses))
    assert outcomes(verdict)["loss_falls"] == "pass"
    assert outcomes(verdict)["spikes"] == "pass"


def test_spikes(tmp_path: Path) -> None:
    losses = FALLING.copy()
    losses[[120, 200, 333]] = (40, 50, 60)
    found = finding(health.judge(log(tmp_path, losses)), "spikes")
    assert (found.outcome, found.evidence["spikes"]) == ("warn", 3)
    assert found.summary == "3 spikes in the loss; the largest: 60 at step 333, 50 at step 200, 40 at step 120"


@pytest.mark.parametrize(
    ("late", "outcome", "words"),
    [
        (1000.0, "fail", "the gradient norm explodes from 1 to 1000"),
        (20.0, "warn", "the gradient norm grows"),
        (0.0, "fail", "the gradient norm is 0"),
        (1e-9, "warn", "the gradient norm vanishes"),
        (0.5, "pass", "the gradient norm goes from 1 to 0.5"),
    ],
)
def test_gradient_norm(tmp_path: Path, late: float, outcome: str, words: str) -> None:
    norms = np.where(np.arange(400) < 300, 1.0, late)
    found = finding(health.judge(log(tmp_path, FALLING, gnorm=norms)), "grad_norm")
    assert found.outcome == outcome
    assert found.summary.startswith(words)


def test_learning_rate(tmp_path: Path) -> None:
    cosine = 1e-4 * (1 + np.cos(np.arange(400) / 400 * np.pi)) / 2
    assert outcomes(health.judge(log(tmp_path, FALLING, lr=cosine)))["lr"] == "pass"
    resumed = cosine.copy()
    resumed[350:] = 4.92e-4
    found = finding(health.judge(log(tmp_path, FALLING, lr=resumed)), "lr")
    assert found.outcome == "warn"
    assert found.summary.endswith("to 0.000492 at step 350")
    assert outcomes(health.judge(log(tmp_path, FALLING, lr=np.zeros(400))))["lr"] == "fail"


def test_evaluation_that_gets_worse_or_is_nan(tmp_path: Path) -> None:
    worse = np.abs(np.arange(400) - 200) / 100 + 1
    found = finding(health.judge(log(tmp_path, FALLING, val_loss=worse)), "evaluation")
    assert (found.outcome, found.evidence["best_step"]) == ("warn", 200)
    worse[399] = np.nan
    assert outcomes(health.judge(log(tmp_path, FALLING, val_loss=worse)))["evaluation"] == "fail"


def journal(
    folder: Path, *, skipped: set[int], steps: int = 200, alpha: float = 0.01, end: dict[str, str] | None = None
) -> record.Run:
    book = Journal(folder)
    for step in range(steps):
        line = {"step": step, "loss": float(FALLING[step]), "grad_norm": 1.0, "lr": [1e-3],
                "action": "apply", "ms": 1.0, "scale": 65536.0,
                "watch": {"blocks.0.alpha": alpha}, "epoch": step // 10}  # fmt: skip
        if step in skipped:
            where = {"phase": "forward", "module": "attn", "op": "aten._softmax", "cause": "softmax_fully_masked_row"}
            line |= {"action": "skip", "loss": float("nan"), "incident": where}
        book.append(line)
    if end is not None:
        book.append({"step": steps, "kind": record.RUN_ENDS, **end})
    book.close()
    return record.open_run(folder)


def test_skips_of_a_guarded_run(tmp_path: Path) -> None:
    verdict = health.judge(journal(tmp_path / "some", skipped={20, 21, 22}))
    assert verdict.word == "doubtful"
    assert finding(verdict, "loss_finite").summary.endswith("none of them reached the weights")
    assert finding(verdict, "applied").summary == "197 of 200 (98.5%) steps applied"
    assert finding(verdict, "incidents").summary == "3 incidents: 3 × softmax_fully_masked_row"
    stuck = health.judge(journal(tmp_path / "stuck", skipped=set(range(150, 200))))
    assert finding(stuck, "applied").summary == "no step was applied since step 150: none of the last 50"
    assert stuck.word == "sick"


def test_a_log_of_another_program_may_say_what_was_applied(tmp_path: Path) -> None:
    def verdict_of(name: str, values: list[object]) -> health.HealthVerdict:
        rows = [{"step": step, "loss": 2.0 - step / 100, "applied": value} for step, value in enumerate(values)]
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        plan = parse_expectations({"stages": [{"name": "all", "steps": "0-99", "applied": 0.9}]})
        return health.judge(record.open_run(tmp_path / name), expect=plan)

    some = verdict_of("some.jsonl", [step % 5 != 0 for step in range(100)])
    assert finding(some, "applied").summary == "80 of 100 (80%) steps applied"
    assert [stage.outcome for stage in some.stages] == ["fail"]
    counted = verdict_of("counted.jsonl", list(range(100)))  # a number of steps is no answer
    assert not any(each.check == "applied" for each in counted.findings)


def test_only_the_last_start_of_a_run_counts(tmp_path: Path) -> None:
    journal(tmp_path, skipped=set(range(100, 200)))
    run = journal(tmp_path, skipped=set())
    assert len(run.main) == 400
    assert health.judge(run).word == "healthy"
    assert (run.tally().attempted, run.tally().applied) == (200, 200)


PLAN = {
    "run": {"lr": 1e-3},
    "stages": [
        {"name": "begin", "epochs": "1-5", "loss": "falls", "incidents": 0, "values": {"*alpha": {"below": 0.1}}},
        {"name": "go on", "epochs": "6-20", "loss": "stable", "applied": 0.9, "spikes": 1},
        {"name": "scale up", "epochs": "21-", "loss": {"below": 1}},
    ],
    "then": ["MHC_N 2 -> 4", "LEARNING_RATE x 1.5"],
}


def test_stages(tmp_path: Path) -> None:
    plan = parse_expectations(PLAN)
    verdict = health.judge(journal(tmp_path / "good", skipped=set()), expect=plan)
    assert [(stage.state, stage.outcome) for stage in verdict.stages] == [
        ("complete", "pass"),
        ("in progress", "pass"),
        ("not reached", "unknown"),
    ]
    assert verdict.advice == ""
    bad = health.judge(journal(tmp_path / "bad", skipped={3}, alpha=0.5), expect=plan)
    begin = {found.check: found for found in bad.stages[0].findings}
    assert begin["incidents"].outcome == "fail"
    assert begin["values"].summary == (
        "watch.blocks.0.alpha is 0.5 at step 0, expected below 0.1 (50 of 50 (100%) values outside)"
    )


def test_stages_of_a_run_that_is_over(tmp_path: Path) -> None:
    plan = parse_expectations({"stages": [{"epochs": "1-5"}, {"epochs": "6-20"}]})
    for folder, steps, state in (("all", 200, "complete"), ("part", 150, "ended early")):
        run = journal(tmp_path / folder, skipped=set(), steps=steps, end={"error": "ValueError"})
        verdict = health.judge(run, expect=plan)
        assert [stage.state for stage in verdict.stages] == ["complete", state]
        assert verdict.state == "ended by ValueError"
    run = journal(tmp_path / "open", skipped=set(), end={})
    verdict = health.judge(run, expect=parse_expectations({"stages": [{"epochs": "6-"}]}))
    assert (verdict.stages[0].state, verdict.state) == ("complete", "finished")


def test_when_all_stages_are_passed_the_plan_says_what_is_next(tmp_path: Path) -> None:
    plan = parse_expectations({"stages": [{"steps": "0-100", "loss": "falls"}], "then": PLAN["then"]})
    verdict = health.judge(journal(tmp_path, skipped=set()), expect=plan)
    assert (verdict.stages[0].state, verdict.advice) == ("complete", "MHC_N 2 -> 4, LEARNING_RATE x 1.5")


def test_a_learning_rate_other_than_configured(tmp_path: Path) -> None:
    plan = parse_expectations({"run": {"lr": {"peak": "1e-4"}}})
    verdict = health.judge(journal(tmp_path, skipped=set()), expect=plan)
    assert "peak learning rate 0.001 (step 0), configured 0.0001" in [found.summary for found in verdict.findings]
    assert verdict.word == "sick"


def test_epochs_that_a_log_does_not_name(tmp_path: Path) -> None:
    run = log(tmp_path, FALLING)
    stages = [{"epochs": "1-2", "loss": "falls"}]
    verdict = health.judge(run, expect=parse_expectations({"stages": stages}))
    assert "set steps_per_epoch in the plan" in verdict.stages[0].findings[0].summary
    verdict = health.judge(run, expect=parse_expectations({"stages": stages, "steps_per_epoch": 100}))
    assert (verdict.stages[0].state, verdict.stages[0].outcome) == ("complete", "pass")


def test_stalled_and_finished(tmp_path: Path) -> None:
    run = log(tmp_path, FALLING)
    verdict = health.judge(run, stalled_after=600, now=run.modified + 7200)
    assert finding(verdict, "stalled").summary == "last written 2 h ago (more than 10 min)"
    assert verdict.word == "sick"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"stages": [{"epoch": 1}]}, r"stages\[0\]: unknown key 'epoch'"),
        ({"stages": [{"loss": "falls"}]}, r"give either epochs or steps"),
        ({"stages": [{"steps": "5-1"}]}, r"ends before it begins"),
        ({"stages": [{"steps": "a"}]}, r"expected a range such as 1-5 or 6-"),
        ({"run": {"loss": "sinks"}}, r"run: loss: expected falls, stable or limits"),
        ({"run": {"values": {"a": {"below": "much"}}}}, r"expected a number, got 'much'"),
        ([], r"expected a mapping"),
    ],
)
def test_a_wrong_plan_is_named(document: object, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse_expectations(document)


def test_less_than_all_is_never_called_100_percent(tmp_path: Path) -> None:
    lines = [{"step": s, "loss": 2.0 - s / 9000, "action": "skip" if s == 700 else "apply"} for s in range(5000)]
    (tmp_path / "journal-r0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (applied,) = [found for found in health.judge(record.open_run(tmp_path)).findings if found.check == "applied"]
    assert applied.summary == "4,999 of 5,000 (99.98%) steps applied"
