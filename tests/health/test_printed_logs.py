"""Logs in the styles of public trainers: a sick run is never called healthy, a healthy one never sick."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from health.more_printed_logs import MORE_HEALTHY, MORE_SICK
from health.printed_logs import DOUBTFUL, HEALTHY, PLAIN, SICK, TRACEBACK, nanogpt
from health.third_printed_logs import NOT_FINITE, THIRD_HEALTHY, THIRD_SICK
from nantrap import health, record
from nantrap.report.live import view_of
from nantrap.report.serving.foreign import ForeignLog
from nantrap.report.view_run import view_run


def judged(folder: Path, name: str, text: str) -> health.HealthVerdict:
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    return health.judge(record.open_run(path))


def said(verdict: health.HealthVerdict) -> str:
    return "\n".join(f"{found.outcome} {found.check}: {found.summary}" for found in verdict.findings)


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy(tmp_path: Path, name: str) -> None:
    verdict = judged(tmp_path, *HEALTHY[name])
    assert verdict.word == "healthy", said(verdict)
    assert verdict.steps >= 100


@pytest.mark.parametrize("name", DOUBTFUL)
def test_doubtful(tmp_path: Path, name: str) -> None:
    verdict = judged(tmp_path, *DOUBTFUL[name])
    assert verdict.word == "doubtful", said(verdict)


@pytest.mark.parametrize("name", SICK)
def test_sick(tmp_path: Path, name: str) -> None:
    file, text, check = SICK[name]
    verdict = judged(tmp_path, file, text)
    assert verdict.word == "sick", said(verdict)
    assert check in [found.check for found in verdict.findings if found.outcome == "fail"], said(verdict)


WITHOUT_A_NAME = ("vits", "build_nanogpt", "pix2pix", "tensor_print", "bare_numbers")
"""Logs whose losses have no name: nothing says that they are losses."""


@pytest.mark.parametrize("name", MORE_HEALTHY)
def test_healthy_in_further_styles(tmp_path: Path, name: str) -> None:
    verdict = judged(tmp_path, *MORE_HEALTHY[name])
    known = {"nnunet": "doubtful"} | dict.fromkeys(WITHOUT_A_NAME, "unknown")
    assert verdict.word == known.get(name, "healthy"), said(verdict)


@pytest.mark.parametrize("name", MORE_SICK)
def test_sick_in_further_styles(tmp_path: Path, name: str) -> None:
    verdict = judged(tmp_path, *MORE_SICK[name])
    assert verdict.word == "sick", said(verdict)


UNREAD = ("marian", "sockeye", "darknet", "mxnet", "autoregressive_images", "motion")
"""Logs whose losses or steps have names that nothing tells from others: the verdict is that it is not known."""


@pytest.mark.parametrize("name", THIRD_HEALTHY)
def test_healthy_of_other_frameworks(tmp_path: Path, name: str) -> None:
    verdict = judged(tmp_path, *THIRD_HEALTHY[name])
    assert verdict.word == ("unknown" if name in UNREAD else "healthy"), said(verdict)


@pytest.mark.parametrize("name", THIRD_SICK)
def test_sick_of_other_frameworks(tmp_path: Path, name: str) -> None:
    verdict = judged(tmp_path, *THIRD_SICK[name])
    assert verdict.word == ("unknown" if name == "motion" else "sick"), said(verdict)


def test_steps_that_are_left_out_in_a_line_of_their_own(tmp_path: Path) -> None:
    """Now and then that is a batch; without any other line after it, nothing is learned any more."""
    healthy = THIRD_HEALTHY["llava_3d"][1].splitlines(keepends=True)
    now_and_then = "".join(line + NOT_FINITE * (number % 30 == 7) for number, line in enumerate(healthy))
    assert judged(tmp_path, "now.log", now_and_then).word == "doubtful"
    assert "lines hold NaN or Inf: Loss in not finite" in said(judged(tmp_path, "end.log", THIRD_SICK["llava_3d"][1]))


def test_the_end_of_a_log_with_very_many_notes_is_read(tmp_path: Path) -> None:
    """1,500 lines about NaN before it do not hide the error at the end."""
    noisy = "".join(
        f"{line}\n2025-01-01 dice per class: nan in an empty class\n" for line in nanogpt(PLAIN * 13).splitlines()
    )
    assert "ended" in [f.check for f in judged(tmp_path, "out.log", noisy + TRACEBACK).findings if f.outcome == "fail"]


def test_values_without_a_check_of_their_own(tmp_path: Path) -> None:
    """A divergence that stays NaN beside a finite loss is worth a look; one that was NaN for a moment is not."""
    rows = [f"step {i} | loss {2 - i / 100:.3f} | kl {{}}\n" for i in range(100)]
    gone = "".join(row.format("nan" if i >= 60 else 0.1) for i, row in enumerate(rows))
    back = "".join(row.format("nan" if 60 <= i < 70 else 0.1) for i, row in enumerate(rows))
    verdict = judged(tmp_path, "gone.log", gone)
    assert verdict.word == "doubtful"
    assert "kl is not finite since step 60 (40 values)" in said(verdict)
    assert judged(tmp_path, "back.log", back).word == "healthy"


def test_steps_that_each_epoch_counts_anew(tmp_path: Path) -> None:
    """In JSON lines too; a start from an earlier epoch is still a second pass over its steps."""
    first = [{"epoch": e, "iter": i, "loss": 9.0 - e - i / 400} for e in (1, 2, 3) for i in range(50, 400, 50)]
    again = [{"epoch": e, "iter": i, "loss": 5.0 - e} for e in (3, 4) for i in range(50, 400, 50)]
    text = "".join(json.dumps(line) + "\n" for line in [*first, *again])
    (tmp_path / "log.json").write_text(text)
    run = record.open_run(tmp_path / "log.json")
    assert run.main.step.tolist() == [
        350 * (line["epoch"] - 1) + line["iter"] for line in [*first, *again]
    ]  # fmt: skip
    assert len(run.main.segments) == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("transformers_zero_loss", "the gradient norm is NaN since step 100 (20 values), and the loss is exactly 0"),
        ("megatron_norm_nan", "the gradient norm is NaN since step 910 (30 values)"),
        ("torchtune_norm_inf", "the gradient norm is Inf since step 1,010 (20 values)"),
        ("espnet_half_of_the_norms", "60 of 120 (50%) gradient norms not finite"),
        ("last_line", "the last loss (step 119) is NaN"),
        ("megatron_loss_not_printed", "the log has no loss since step 810, though it continues"),
        ("ended_on_a_rank", "the log ends with RuntimeError: CUDA error: an illegal memory access was encountered"),
        ("killed", "the log ends with Killed"),
        (
            "deepspeed_all_skipped",
            "the log counts 590 of 1,200 (49.2%) steps as skipped; in the last third of the log 100%",
        ),
        (
            "megatron_nan_iterations",
            "the log counts 590 of 1,200 (49.2%) steps as NaN; in the last third of the log 100%",
        ),
    ],
)
def test_what_is_said(tmp_path: Path, name: str, words: str) -> None:
    file, text, _ = SICK[name]
    assert words in [found.summary for found in judged(tmp_path, file, text).findings if found.outcome == "fail"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("trl_grpo", "the loss is that of a policy (rewards/accuracy_reward/mean), made anew for each rollout"),
        ("verl", "the loss is that of a policy (actor/pg_loss), made anew for each rollout"),
    ],
)
def test_the_course_of_a_surrogate_loss_is_not_judged(tmp_path: Path, name: str, words: str) -> None:
    (found,) = (found for found in judged(tmp_path, *HEALTHY[name]).findings if found.check == "loss_falls")
    assert found.summary.startswith(words)
    assert found.summary.endswith("which is not judged")


def test_a_preference_loss_is_judged(tmp_path: Path) -> None:
    """DPO has rewards too, and its loss should fall."""
    (found,) = (found for found in judged(tmp_path, *HEALTHY["trl_dpo"]).findings if found.check == "loss_falls")
    assert found.summary.startswith("the loss falls from 0.7")


@pytest.mark.parametrize("name", [*HEALTHY, *DOUBTFUL, *SICK, *MORE_HEALTHY, *MORE_SICK])
def test_every_reader_gives_the_same_verdict(tmp_path: Path, name: str) -> None:
    """`check`, the report, the served page and `watch` say the same word of one log."""
    file, text, *_ = {**HEALTHY, **DOUBTFUL, **SICK, **MORE_HEALTHY, **MORE_SICK}[name]
    word = judged(tmp_path, file, text).word
    run = record.open_run(tmp_path / file)
    assert view_run(run).verdict.word == word
    assert ForeignLog(tmp_path / file).verdict()[0] == word
    facts = view_of(run, now=run.modified, verdict=health.judge(run)).facts
    assert f"check: {word}" in facts or (word == "unknown" and "no step yet" in facts)
