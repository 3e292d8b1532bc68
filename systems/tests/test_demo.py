"""`nantrap demo`: exit codes, what goes where, and the last line."""

from __future__ import annotations

import argparse
import io
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from nantrap.cli.demo import DemoCommand
from nantrap.errors import MissingExtraError, UsageError
from nantrap_systems import SYSTEMS, load_system
from nantrap_systems.catalogue import make_catalogue, read_catalogue, summary
from nantrap_systems.gallery import Picture, show_all, write_summary
from nantrap_systems.measuring import Result
from nantrap_systems.showcase import Showcase, outcome_of, policy_of, reported_before

FAULT = "nan_row"


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    demo = DemoCommand()
    demo.prepare_parser(parser)
    return demo.run(parser.parse_args(arguments))


def test_without_arguments_it_lists_systems_and_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    out = capsys.readouterr().out
    assert "pixeldlm: token ids as pixels" in out
    assert "  short_text " in out
    assert max(map(len, out.splitlines())) <= 80


def test_the_list_imports_no_torch() -> None:
    code = "import sys; from nantrap.cli import main; assert main(['demo']) == 0; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, stdout=subprocess.DEVNULL)


def test_the_catalogue_is_what_the_systems_say() -> None:
    assert read_catalogue() == make_catalogue(), "run `python -m nantrap_systems.catalogue`"
    faults = [fault for name in SYSTEMS for fault in load_system(name).faults]
    said = summary(read_catalogue())
    assert said.startswith(f"{len(faults)} faults. The guard names the cause of {sum(bool(f.cause) for f in faults)}.")
    others = sum(fault.cause is None for fault in faults)
    assert f"What reports the other {others}: the guard, " in said
    assert sum(map(int, re.findall(r": (\d+)", said))) == others
    page = Path(__file__).parents[2] / "docs" / "commands" / "demo.md"
    assert said in page.read_text(encoding="utf-8").replace("\n", " "), "the page has the same numbers"


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json") == 0
    systems = json.loads(capsys.readouterr().out)
    assert [system["name"] for system in systems] == ["radiodiff", "latentdlm", "restran_mhc", "temi", "pixeldlm"]
    assert systems[-1]["faults"][0]["cause"] == "softmax_fully_masked_row"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("pixeldlm", "--fault", "x"), "it has short_text"),
        (("pixel",), "there are radiodiff, latentdlm, restran_mhc, temi, pixeldlm"),
        (("--fault", "short_text"), "of which system"),
        (("pixeldlm", "--steps", "0"), "at least 1"),
        (("pixeldlm", "--all", "--fault", "short_text"), "choose one"),
        (("pixeldlm", "--all", "--jobs", "0"), "--jobs 0: at least 1"),
    ],
)
def test_wrong_use(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run(*arguments)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "pixeldlm" / "short_text").mkdir(parents=True)
    (tmp_path / "pixeldlm" / "short_text" / "report.md").touch()
    for arguments in (("pixeldlm",), ("pixeldlm", "--all"), ("--all",)):
        with pytest.raises(UsageError, match=r"pixeldlm/short_text is not empty; nothing is overwritten"):
            run(*arguments, "--run-dir", str(tmp_path))


@pytest.mark.slow
def test_the_whole_command(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "nantrap", "demo", "pixeldlm", "--fault", "short_text", "--steps", "20", "--json"]
    done = subprocess.run(
        [*command, "--run-dir", str(folder)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "nantrap.demo/1"
    assert document["named"]
    assert document["proven"]
    names = [result["name"] for result in document["results"]]
    assert names[0] == "clean"
    assert names[-1] == "nantrap"
    assert "error[NT203]" in done.stderr
    *_, incident, comparison, report = done.stderr.splitlines()
    assert Path(incident.removeprefix("incident: "), "incident.json").exists()
    assert comparison == f"comparison: {folder / 'pixeldlm' / 'short_text' / 'report.md'}"
    assert report == f"report: {folder / 'pixeldlm' / 'short_text' / 'report.html'}"
    assert Path(report.removeprefix("report: ")).read_text().startswith("<!doctype html>")
    assert json.loads((folder / "pixeldlm" / "short_text" / "showcase.json").read_text()) == document


@pytest.mark.slow
def test_the_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("pixeldlm", "--steps", "20") == 0
    out, err = capsys.readouterr()
    rows = {line.split("  ")[0]: line.split() for line in out.splitlines() if line}
    assert rows["plain"][-1] == "NaN"
    assert rows["nantrap"][-3:] == ["finite", "NT203", "proven"]
    assert all(len(line) <= 80 for line in out.split("plain:")[0].splitlines())
    assert "error[NT203]" in err
    assert err.splitlines()[-1].startswith("report: ")


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_table_is_whole_in_80_columns(name: str) -> None:
    system = load_system(name)
    for fault in system.faults:
        names = ["clean", "plain", *(remedy.name for remedy in fault.remedies), "nantrap"]
        results = tuple(
            Result(
                name=each,
                steps=1000,
                applied=1000,
                first_bad=None,
                final_loss=-1.2345e5,
                held_out_loss=1.2345e5,
                quality=1,
                state_finite=True,
            )
            for each in names
        )
        out = io.StringIO()
        Console(file=out, width=80).print(Showcase(system, fault, results, None).table())
        assert "…" not in out.getvalue(), out.getvalue()
        assert out.getvalue().count("-1.23e+05") == len(names)


BEFORE = {
    "restran_mhc no_mixing": (
        r"`nantrap doctor`: high\[NT866\] .*takes the diagonal",
        r"restran_mhc.parts.py:\d+",
    ),
    "latentdlm pure_bf16": (r"`nantrap doctor`: medium\[NT817\] .* are bfloat16 .*", r"latentdlm.config.yaml:\d+"),
    "radiodiff min_lr_factor": (r"`nantrap doctor`: low\[NT808\] .* learning rate.*", r"radiodiff.parts.py:\d+"),
    "radiodiff png_scale": (r"`nantrap data`: scale_suspect\[NT163\]: .* not divided by 255: 0, 1", r"batch-003-0.pt"),
}
"""What is reported, and where."""


def test_what_is_reported_before_training() -> None:
    coded = {f"{name} {fault.name}" for name in SYSTEMS for fault in load_system(name).faults if fault.code}
    assert coded == set(BEFORE)
    small = {"first_stage.train_num_steps": 1, "data.image_size": 32, "data.batch_size": 2}
    for both, (message, place) in BEFORE.items():
        name, fault = both.split()
        system = load_system(name)
        found = reported_before(system, system.fault(fault), seed=8, changes=small if name == "radiodiff" else None)
        assert re.fullmatch(rf"{message} \({place}\)", found[0]), found
        repaired = replace(system.fault(fault), parts={}, faulty_settings={})
        if repaired.reported_by == "doctor":
            assert reported_before(system, repaired, seed=8) == (), "the repaired system has nothing to find"
    system = load_system("temi")
    assert reported_before(system, system.faults[0], seed=8) == ()


def test_a_fault_that_no_check_reports_is_not_named() -> None:
    system = load_system("restran_mhc")
    silent = Showcase(system, system.fault("no_mixing"), (), None, before=())
    assert not silent.named
    assert replace(silent, before=("high[NT866]",)).named


def result(name: str, **changes: Any) -> Result:
    values: dict[str, Any] = {"steps": 10, "applied": 10, "first_bad": None, "final_loss": 1.0, "held_out_loss": 1.0}
    values |= {"quality": 0.5, "state_finite": True, "losses": [1.0] * 10}
    return Result(name=name, **{**values, **changes})


def test_sentences_are_those_of_the_run() -> None:
    """The same fault, two ends: what is said of a run follows its result."""
    assert outcome_of(result("plain")) == "10 of 10 steps applied; parameters and buffers finite"
    lost = result("plain", state_finite=False, losses=[1.0] * 7 + [math.nan] * 3)
    assert outcome_of(lost) == (
        "10 of 10 steps applied; loss not finite from step 7 on; NaN or Inf in parameters or buffers"
    )
    once = result("plain", losses=[1.0, math.nan, *[1.0] * 8])
    assert "loss not finite first in step 1;" in outcome_of(once)
    alike = result("nantrap", applied=8, skipped=[2, 5], ranks_agree=True, skipped_alike=True, incidents=2)
    assert "the processes hold equal weights; all of them left out the steps 2, 5" in outcome_of(alike)
    apart = result("nantrap", applied=8, skipped=[2], ranks_agree=False, skipped_alike=False)
    assert "the processes hold unequal weights; they left out different steps" in outcome_of(apart)
    assert "the evaluation is not finite" in outcome_of(result("plain", held_out_loss=math.nan))


def test_who_told_the_fault_is_what_happened_and_not_what_was_expected() -> None:
    system = load_system("restran_mhc")
    stale, mixing, black = (system.fault(name) for name in ("stale_rate", "no_mixing", "black_frames"))
    runs = (result("clean"), result("plain"), result("nantrap"))
    for fault in (stale, mixing, black):
        assert Showcase(system, fault, runs, None).rows()[-1][-2] == "no incident"
    said = ("the learning rate is 4, the configuration says 0.01: the restored optimizer state overrides it",)
    assert Showcase(system, stale, runs, None, said).rows()[-1][-2] == "resume check"
    assert Showcase(system, mixing, runs, None, before=("high[NT866]",)).rows()[-1][-2] == "doctor NT866"


def test_a_guarded_run_that_ends_in_an_error_is_not_as_expected() -> None:
    system = load_system("latentdlm")
    fails = result("nantrap", error="RuntimeError: Connection closed by peer")
    quiet = system.fault("cosine_end")
    assert Showcase(system, quiet, (result("nantrap"),), None).named
    assert not Showcase(system, quiet, (fails,), None).named
    ends = system.fault("no_masked_token")
    assert Showcase(system, ends, (result("nantrap", error="UsageError: the loss has no graph"),), None).named
    assert not Showcase(system, ends, (fails,), None).named
    assert not Showcase(system, ends, (result("nantrap"),), None).named


def test_runs_that_ended_better_than_the_guarded_one_are_named() -> None:
    system = load_system("pixeldlm")
    better, worse = result("nan_to_num", quality=0.6), result("skip bad output", quality=0.4)
    lost = result("plain", quality=0.7, state_finite=False)

    def said(*results: Result) -> list[str]:
        shown = Showcase(system, system.faults[0], results, None)
        return [text for name, text in shown.outcomes() if name == "nantrap" and "ended better" in text]

    (text,) = said(lost, better, worse, result("nantrap", applied=9))
    assert text == (
        "nan_to_num (60.0%) ended better than this run (50.0%). nantrap left 1 step out: it does not change what the "
        "program computes"
    )
    back = result("nantrap", applied=9, rollbacks=1)
    assert said(better, back)[0].endswith(", and a rollback goes back to an older state with a lower learning rate")
    assert said(replace(better, applied=9), result("nantrap", applied=9)) == [
        "nan_to_num (60.0%) ended better than this run (50.0%)"
    ]
    both = (replace(worse, quality=0.7), better)
    assert said(*both, result("nantrap"))[0].startswith("skip bad output (70.0%), nan_to_num (60.0%) ended better")
    assert said(worse, result("nantrap")) == []


def test_a_policy_that_is_not_the_default_is_said() -> None:
    system = load_system("temi")
    assert policy_of(system.fault("dead_heads")) == "Policy(bad_terms='drop')"
    assert policy_of(system.faults[0]) == ""


def test_what_is_not_installed_is_left_out_of_all_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("nantrap_systems.demo._show_all", lambda console, faults, folder, arguments: len(faults))
    assert run("radiodiff", "--all", "--run-dir", str(tmp_path)) == len(load_system("radiodiff").faults) - 1
    err = " ".join(capsys.readouterr().err.split())
    assert "radiodiff amp_without_scaler is left out: accelerate is not installed" in err
    assert "pip install 'nantrap[accelerate]'" in err
    with pytest.raises(MissingExtraError, match="accelerate"):
        run("radiodiff", "--fault", "amp_without_scaler", "--run-dir", str(tmp_path))


def test_the_report_has_story_table_and_diagnosis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("temi", "--fault", FAULT, "--steps", "6", "--run-dir", str(tmp_path)) in (0, 1)
    report = (tmp_path / "temi" / FAULT / "report.md").read_text()
    system = load_system("temi")
    fault = system.fault(FAULT)
    assert report.startswith(f"# temi, {FAULT}\n")
    assert fault.story in report
    assert "| run | applied | final loss | held out | cluster purity | state | cause | proven |" in report
    assert report.count("\n| clean |") == report.count("\n| nantrap |") == 1
    measured, known = report.split("## What is known of these runs")
    assert f"- **plain**: {fault.damage}" in known
    assert "- **plain**: 6 of 6 steps applied; " in measured
    assert fault.damage not in measured
    assert fault.answer not in measured
    assert capsys.readouterr().err.splitlines()[-1] == f"report: {tmp_path / 'temi' / FAULT / 'report.html'}"


def test_all_of_them_are_shown_in_order_with_a_process_each(tmp_path: Path) -> None:
    system = load_system("temi")
    chosen = [(system, fault) for fault in reversed(system.faults[:2])]
    pictures = list(show_all(chosen, steps=2, seed=8, folder=tmp_path, at_a_time=2))
    assert [picture.fault for picture in pictures] == [fault.name for _, fault in chosen]
    for picture in pictures:
        assert picture.document["fault"] == picture.fault
        assert f"temi, {picture.fault}: 2 steps each, seed 8" in picture.output
        assert picture.errors.splitlines()[-1].startswith("report: ")
    report, text = write_summary(pictures, tmp_path)
    good = sum(picture.code == 0 for picture in pictures)
    assert text.startswith(f"2 faults: {good} named, 0 without a cause; {good} as expected, longest ")
    for picture in pictures:
        assert f"| temi | [{picture.fault}](temi/{picture.fault}/report.md) |" in report.read_text()
        assert (tmp_path / "temi" / picture.fault / "report.md").is_file()


def test_a_process_that_dies_is_reported_with_its_last_output(tmp_path: Path) -> None:
    picture = Picture("temi", "x", output="", errors="working\nSegmentation fault\n", code=139, document={}, seconds=2)
    report, text = write_summary([picture], tmp_path)
    first, second = text.splitlines()
    assert first == "1 fault: 0 named, 0 without a cause; 0 as expected, longest 2 s"
    assert second == "temi x: exit code 139: Segmentation fault"
    assert "| temi | x |  |  | died | 2 |" in report.read_text()
