"""Whole scripts that handle a bad value in their own way: step, place, cause and counts, by what is known of each."""

from __future__ import annotations

import json
import math
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings
from nantrap.launch.summary import RunSummary

SCRIPTS = Path(__file__).parent / "scripts"


def run(name: str, tmp_path: Path) -> tuple[RunSummary, list[dict[str, object]]]:
    """The summary of a script, and its incidents in the order of their steps."""
    with attached(RunSettings(run_dir=str(tmp_path / "run"))) as attachment:
        runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
        attachment.registry.record_abandoned()
        summary = RunSummary.of(attachment)
    found = [json.loads(path.read_text()) for path in tmp_path.glob("run/**/incident.json")]
    return summary, sorted(found, key=lambda incident: int(incident["step"]))


def skipped(tmp_path: Path) -> list[int]:
    """The steps that were skipped, by the journals."""
    journals = "".join(path.read_text() for path in tmp_path.glob("run/**/journal-r0.jsonl"))
    lines = list(map(json.loads, journals.splitlines()))
    return sorted(line["step"] for line in lines if line.get("action") == "skip")


def line_of(name: str, text: str) -> int:
    lines = (SCRIPTS / f"{name}.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def slugs(incidents: list[dict[str, object]]) -> list[str]:
    return [incident["causes"][0]["slug"] for incident in incidents]  # type: ignore[index]


def test_a_loss_of_one_of_two_optimizers_that_is_replaced_by_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary, incidents = run("gan_zero_loss", tmp_path)
    assert skipped(tmp_path) == [6, 10, 14, 18, 22]
    assert set(slugs(incidents)) == {"log_of_zero"}
    assert {incident["source"]["line"] for incident in incidents} == {line_of("gan_zero_loss", "d_loss = -(")}  # type: ignore[index]
    assert (summary.steps, summary.applied, summary.given_up) == (48, 43, 5)
    words = "the script replaced this non-finite loss by a constant, so there is no gradient"
    err = capsys.readouterr().err
    assert err.count(words) >= 5
    assert err.count("nantrap: optimizer 2 (Adam of D): step ") == 5  # each optimizer counts its own steps


@pytest.mark.filterwarnings("ignore:Converting a tensor")
def test_evaluations_of_a_closure_are_one_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary, incidents = run("lbfgs_fit", tmp_path)
    (incident,) = incidents
    assert (incident["step"], slugs(incidents)) == (3, ["exp_overflow"])
    assert incident["source"]["line"] == line_of("lbfgs_fit", "torch.exp(b * t)")  # type: ignore[index]
    assert (summary.steps, summary.applied, summary.given_up) == (4, 3, 0)
    err = capsys.readouterr().err
    assert "1 of 5 in a row" in err
    assert "nantrap: step 3 skipped" in err  # one optimizer needs no number


def test_an_update_by_hand_that_diverges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary, incidents = run("updated_by_hand", tmp_path)
    assert set(slugs(incidents)) == {"lr_too_high"}
    assert {incident["source"]["line"] for incident in incidents} == {line_of("updated_by_hand", "** 2).mean()")}  # type: ignore[index]
    out, err = capsys.readouterr()
    said = next(line for line in out.splitlines() if "leaving the epoch" in line)
    assert f"{said.split(':')[0].strip()} applied; " in err  # the same step as the script counts
    assert "error[NT501]: " in err
    assert "the learning rate may be too high: the loss grew until it overflowed" in err
    assert "nan" not in err.partition("help:")[2].splitlines()[0]
    assert summary.loose_values == 3


def test_a_state_that_the_script_returns_to_is_no_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary, incidents = run("retries", tmp_path)
    assert set(slugs(incidents)) == {"fp16_forward_overflow"}
    assert {incident["module"] for incident in incidents} == {"pool"}
    assert summary.incidents == 8
    assert "resume:" not in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:std")
def test_a_running_scale_outside_the_model_is_put_back_and_its_line_named(tmp_path: Path) -> None:
    summary, incidents = run("running_scale", tmp_path)
    assert [incident["step"] for incident in incidents] == [4, 9, 14]  # not 4, 5, 6: the scale is finite again
    assert slugs(incidents) == ["std_of_one_element"] * 3
    assert incidents[0]["source"]["line"] == line_of("running_scale", "r.detach().std()")  # type: ignore[index]
    assert incidents[0]["dataset_indices"] == [64]
    assert (summary.given_up, summary.state_finite) == (3, True)


def test_one_image_of_a_list_is_a_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary, incidents = run("detector", tmp_path)
    assert [incident["dataset_indices"] for incident in incidents] == [[17]] * 3  # not the channel, which is 1
    assert slugs(incidents) == ["bad_input_data"] * 3
    assert {incident["causes"][0]["proven"] for incident in incidents} == {True}  # type: ignore[index]
    assert (summary.given_up, summary.applied, summary.steps) == (4, 20, 24)
    out, err = capsys.readouterr()
    assert "nan" not in out  # the last batch of an epoch is bad, and its statistics are gone before the evaluation
    assert "the script made no step from this loss" in err
    assert "by nan_to_num: row 1 of a tensor of shape 3×4×4" in err
    assert "the code between the two made it" not in err  # the loop holds the next batch when the gradients are cleared
    sample = incidents[0]["samples"][0]  # type: ignore[index]
    assert f"images[{sample}] holds 1 NaN among 48 values before the forward pass, sample {sample}" in err


def test_a_noised_batch_of_numpy_indices_and_gradients_changed_to_zero(tmp_path: Path) -> None:
    summary, incidents = run("noised", tmp_path)
    assert [incident["dataset_indices"] for incident in incidents] == [[13]] * 3  # the fourth looks like the first
    assert set(slugs(incidents)) == {"bad_input_data"}
    assert (summary.incidents, summary.applied, summary.state_finite) == (4, 16, True)
    order = [(incident["step"], incident["batch"]) for incident in incidents]
    assert all(batch in (2 * step, 2 * step + 1) for step, batch in order)  # type: ignore[operator]


def test_a_loss_that_passes_through_another_network_is_no_step_of_it(tmp_path: Path) -> None:
    summary, incidents = run("gan_retries", tmp_path)
    found = [(incident["step"], incident["causes"][0]["slug"]) for incident in incidents]  # type: ignore[index]
    assert found == [(2, "bad_input_data"), (5, "log_of_zero"), (6, "bad_input_data")]
    assert [incidents[0]["dataset_indices"], incidents[2]["dataset_indices"]] == [[21], [21]]
    assert (summary.steps, summary.applied, summary.given_up) == (16, 13, 0)


def test_arguments_of_a_model_that_computes_its_loss_have_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary, (incident,) = run("own_loss", tmp_path)
    assert incident["dataset_indices"] == [11]
    assert (summary.steps, summary.applied, summary.given_up) == (6, 5, 1)
    err = capsys.readouterr().err
    assert "the input batch already contains NaN: batch.feats" in err
    assert "proof:  batch.feats holds 1 NaN among 20 values before the forward pass, sample 3" in err
    assert "help: the batch without sample 3: verified" in err
    assert "not tried: fix or remove the sample where batch.feats is created" in err


def test_nothing_is_armed_when_the_script_has_ended(tmp_path: Path) -> None:
    """The cause is a guess, so the next steps would be traced; but no step follows."""
    found = subprocess.run(
        [sys.executable, "-m", "nantrap", "run", "--run-dir", str(tmp_path / "run"), str(SCRIPTS / "exits.py")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 1
    assert "(a guess: not proven)" in found.stderr
    assert "the loss is not finite\n" in found.stderr
    assert "armed: the next" not in found.stderr


def test_a_loss_that_is_replaced_for_ever_is_a_dead_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary, incidents = run("kept_scale", tmp_path)
    assert (summary.steps, summary.applied, summary.given_up) == (48, 2, 46)
    assert (incidents[0]["step"], incidents[0]["samples"], incidents[0]["dataset_indices"]) == (2, [1], [17])
    err = capsys.readouterr().err
    assert len(re.findall(r"^nantrap: step \d+ skipped[:;] ", err, re.MULTILINE)) == 5
    assert "further ones of this cause are counted" in err
    assert "step 11: 10 incidents with the cause " in err
    assert "step 6: the script skipped the last 5 steps itself; further skips are counted, not printed\n" in err
    assert "step 21: the script has skipped all 20 steps since step 2 itself: nothing is learned (NT505" in err
    assert "the script skipped the last 46 steps itself: nothing was learned (NT505 dead_training)" in summary.notes


def test_a_value_that_the_loop_keeps_is_not_called_the_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, incidents = run("kept_scale", tmp_path)
    later = incidents[1]
    assert later["causes"][0]["summary"] == "a tensor that the loss reads without a gradient is non-finite: scale"  # type: ignore[index]
    assert not later["causes"][0]["proven"]  # type: ignore[index]
    assert later["samples"] == []
    assert later["source"]["line"] == line_of("kept_scale", "out / scale")  # type: ignore[index]
    assert "skipped: forward: [NT101] perhaps the batch holds values" in capsys.readouterr().err  # looks like step 3


@pytest.mark.parametrize(
    ("name", "called", "step"),
    [("episodes", "returns", 3), ("master_weights", "images", 2), ("schedule_table", "schedule.weights", 2)],
)
def test_a_tensor_has_the_name_of_the_program(tmp_path: Path, name: str, called: str, step: int) -> None:
    _, incidents = run(name, tmp_path)
    assert incidents[0]["step"] == step
    summary = incidents[0]["causes"][0]["summary"]  # type: ignore[index]
    assert summary == f"a tensor that the loss reads without a gradient is non-finite: {called}"
    assert not incidents[0]["causes"][0]["proven"]  # type: ignore[index]


def test_a_step_that_is_refused_all_the_same_counts_no_loss_as_left_out(tmp_path: Path) -> None:
    summary, _ = run("two_heads", tmp_path)
    assert (summary.steps, summary.applied, summary.left_out) == (4, 3, 0)
    assert not any("that the script left out" in line for line in summary.lines(0))


@pytest.mark.parametrize(
    ("way", "good", "bad"),
    [
        ("sum", ["error", "1e-05 * size"], ["weight * spread"]),
        ("again", ["error", "1e-05 * size"], ["weight * spread"]),
        ("dict", ["error"], ["spread"]),
        ("in_place", [], []),
        ("product", [], []),
    ],
)
def test_the_terms_that_a_statement_adds_up_are_shown(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    way: str,
    good: list[str],
    bad: list[str],
) -> None:
    monkeypatch.setenv("ADDED_TERMS", way)
    _, incidents = run("added_terms", tmp_path)
    terms = {name: float(value) for name, value in incidents[0]["terms"].items()}  # type: ignore[attr-defined]
    assert sorted(name for name, value in terms.items() if math.isfinite(value)) == sorted(good)
    assert [name for name, value in terms.items() if not math.isfinite(value)] == bad
    assert ("= terms:" in capsys.readouterr().err) == bool(good)


def test_a_value_that_is_only_printed_is_no_loss_that_was_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary, incidents = run("printed_only", tmp_path)
    assert (summary.steps, summary.applied, summary.left_out, incidents) == (4, 4, 0, [])
    assert "entropy nan" in capsys.readouterr().out


def test_a_state_that_the_script_loads_after_a_bad_loss_was_not_written_by_the_forward_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary, incidents = run("goes_back", tmp_path)
    assert [incident["dataset_indices"] for incident in incidents] == [[14], [14]]
    assert "in the dataset below it the index is 30" in capsys.readouterr().err
    assert all(incident["restored"] for incident in incidents)
    assert (summary.steps, summary.applied, summary.given_up) == (8, 6, 2)


def test_a_division_in_a_derivative_is_no_division_of_the_program(tmp_path: Path) -> None:
    _, incidents = run("inner_gradient", tmp_path)
    assert incidents[0]["step"] == 2
    assert not any(cause["proven"] for cause in incidents[0]["causes"])  # type: ignore[attr-defined]
    source = incidents[0]["source"]
    assert source is None or source["line"] != line_of("inner_gradient", "/ 4")  # type: ignore[index]


@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_what_hooks_collect_is_not_there_twice_after_a_replay(tmp_path: Path) -> None:
    summary, incidents = run("sample_gradients", tmp_path)
    assert (summary.steps, summary.applied) == (4, 3)
    assert incidents[0]["dataset_indices"] == [17]
    assert incidents[0]["trials"]  # so the hooks ran again


@pytest.mark.parametrize(("where", "is_input"), [("inf", True), ("bias", False)])
def test_infinity_in_the_input_comes_before_what_a_product_makes_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, is_input: bool
) -> None:
    monkeypatch.setenv("SLICED_INPUT", where)
    _, incidents = run("sliced_input", tmp_path)
    assert incidents[0]["step"] == 2
    causes = incidents[0]["causes"]
    said = [cause["summary"] for cause in causes]  # type: ignore[attr-defined]
    assert ("the model's input already contains Inf: features" in said[:1]) == is_input


@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_healthy_network_over_a_sparse_graph_is_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(SCRIPTS / "sparse_graph.py"), run_name="__main__")
    plain = capsys.readouterr().out
    summary, incidents = run("sparse_graph", tmp_path)
    assert capsys.readouterr().out == plain
    assert (summary.steps, summary.applied, incidents) == (4, 4, [])


@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_bad_weight_of_a_sparse_graph_is_the_input_and_no_mask(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["sparse_graph.py", "bad"])
    summary, incidents = run("sparse_graph", tmp_path)
    assert (summary.steps, summary.applied) == (4, 0)
    cause = incidents[0]["causes"][0]  # type: ignore[index]
    assert (cause["slug"], cause["proven"]) == ("bad_input_data", False)
    assert cause["summary"] == "the model's input already contains Inf: adjacency"
    assert cause["evidence"][0]["text"] == "adjacency holds 1 +Inf among 40 values"
    err = capsys.readouterr().err
    assert "a mask" not in err
    assert "the rule for" not in err
