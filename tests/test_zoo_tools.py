"""The interface of the zoo's tools: programs apart from each other, judged the same way, stored and read again."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import nantrap
from zoo import results
from zoo.__main__ import as_text
from zoo.isolated import answers, is_possible
from zoo.judging import Answer, Tally, is_place_as_named, measure
from zoo.loading import ZOO, find, manifest
from zoo.outside.scripts import run as run_script
from zoo.running import Alarm, NamedCause, Run
from zoo.tables import PAGES, written
from zoo.tools import find_tool, tools

ROOT = ZOO.parent
FAILS, HEALTHY = "advantage_std_last_batch", "causal_mask_of_minus_inf"
pytestmark = pytest.mark.filterwarnings("ignore")
NOTICE = {
    "anomaly_mode": True, "arc": True, "debug_mode": True, "debug_underflow_overflow": False, "grad_scaler": True,
    "isfinite_hooks": True, "lightning_detect_anomaly": True, "nantrap_attempt": True, "nantrap_two_lines": True,
    "remedy_loss_and_norm_skip": True, "remedy_loss_raises": True, "remedy_norm_raises": True,
    "remedy_loss_skips": True, "stabilityguard": True,
}  # fmt: skip
"""Whether a tool notices at the right step that the loss function, outside every module, made a NaN."""


def _installed(name: str) -> bool:
    return all(
        importlib.util.find_spec(module) is not None
        for module in getattr(tools()[name], "preload", ())
        if "." not in module
    )


@pytest.mark.parametrize("name", sorted(NOTICE))
def test_a_tool_on_a_failing_and_a_healthy_program(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not _installed(name):
        pytest.skip("its package is not installed")
    monkeypatch.chdir(tmp_path)
    tool = find_tool(name)
    (failing,), (healthy,) = find(FAILS), find(HEALTHY)
    answer = measure(tool, failing, to_the_end=True)
    assert answer.raised == ""
    assert (answer.found and answer.step) is NOTICE[name]
    assert measure(tool, healthy, to_the_end=True).found is False


STRANGER = """
import os, time
from zoo.running import Alarm, NamedCause

class Tool:
    about, stops = "a tool that does what its name says", True

    def __init__(self, name):
        self.name = name

    def train(self, run):
        for batch in run.batches():
            if self.name == "crashes":
                os.abort()
            if self.name == "hangs":
                time.sleep(60)
            if not run.loss(batch).isfinite():
                causes = (NamedCause("std_of_one_element", proven=True),)
                run.alarm(Alarm(phase="forward", module="loss", op="aten.std", line="adv.std()", causes=causes))
                return

TOOLS = (Tool("crashes"), Tool("hangs"), Tool("answers"))
"""


def _apart(folder: Path, name: str, seconds: float) -> Answer:
    file = folder / "stranger.py"
    file.write_text(STRANGER, encoding="utf-8")
    (answer,) = answers(f"{file}::{name}", find(FAILS), seconds=seconds)
    return answer


@pytest.mark.skipif(not is_possible(), reason="this system has no fork")
@pytest.mark.parametrize(
    ("name", "seconds", "said"), [("crashes", 100, "ended with -6"), ("hangs", 1, "time limit"), ("answers", 100, "")]
)
def test_a_tool_of_your_own_runs_apart(name: str, seconds: float, said: str, tmp_path: Path) -> None:
    answer = _apart(tmp_path, name, seconds)
    assert said in answer.raised
    assert bool(said) is bool(answer.raised)
    assert answer.full_place is answer.cause is answer.proven is (name == "answers")
    assert answer.all_steps is not True


@pytest.mark.skipif(not is_possible(), reason="this system has no fork")
@pytest.mark.parametrize(("name", "notices"), [("plain", False), ("anomaly_mode", True), ("nantrap_run", True)])
def test_whole_scripts_are_run_by_tools_that_can(name: str, notices: bool) -> None:
    found = {answer.program: answer for answer in answers(name, find("siamese_duplicate_pair", "hmm_logspace_healthy"))}
    failing, healthy = found["siamese_duplicate_pair"], found["hmm_logspace_healthy"]
    assert (failing.found, failing.step, failing.line, failing.raised) == (notices, notices, notices, "")
    assert (failing.finite, failing.all_steps) == {
        "plain": (False, True), "anomaly_mode": (True, False), "nantrap_run": (True, True)
    }[name]  # fmt: skip
    assert (healthy.control, healthy.found, healthy.finite, healthy.all_steps) == (True, False, True, True)


def test_a_file_with_several_tools_asks_for_a_name(tmp_path: Path) -> None:
    file = tmp_path / "stranger.py"
    file.write_text(STRANGER, encoding="utf-8")
    with pytest.raises(ValueError, match=r"has crashes, hangs, answers; name one"):
        find_tool(str(file))
    with pytest.raises(ValueError, match="there is no tool 'nantrip' in the zoo"):
        find_tool("nantrip")


def test_a_place_is_judged_by_what_is_named() -> None:
    truth = {"phase": "forward", "module": "a.b", "op": "aten.log"}
    right = [
        Alarm(module="a.b"),
        Alarm(op="aten.log"),
        Alarm(node="LogBackward0"),
        Alarm(phase="forward", module="a.b"),
    ]
    wrong = [Alarm(), Alarm(phase="forward"), Alarm(module="a"), Alarm(node="ExpBackward0"),
             Alarm(module="a.b", op="aten.exp"), Alarm(phase="backward", module="a.b")]  # fmt: skip
    assert all(is_place_as_named(truth, alarm) for alarm in right)
    assert not any(is_place_as_named(truth, alarm) for alarm in wrong)


def test_a_run_counts_steps_and_ends_after_the_first_alarm_if_asked() -> None:
    (path,) = find(FAILS)
    run = Run(path, to_the_end=False)
    for _ in run.batches():
        if len(run.begins) == 3:
            run.alarm(Alarm(causes=(NamedCause("std_of_one_element"),)))
    assert [step for step, _ in run.alarms] == [2]
    assert len(run.begins) == len(run.step_seconds()) == 3
    assert run.seconds_to_answer(2) > 0


def test_a_stored_result_gives_the_same_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    tool = find_tool("remedy_loss_skips")
    found = {path: measure(tool, path, to_the_end=True) for path in find(FAILS, HEALTHY)}
    results.save(tool, found, [FAILS, HEALTHY])
    results.save(tool, {}, ["held_back"])
    stored = results.read(tmp_path / "remedy_loss_skips.json")
    command = "python -m zoo --save --tool remedy_loss_skips"
    assert [each["command"] for each in stored["measured"]] == [f"{command} {FAILS} {HEALTHY}", f"{command} held_back"]
    assert _without_times(results.tally_of(stored)) == _without_times(Tally(list(found.values())))


def test_a_piece_counts_until_its_programs_are_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    tool, (one, two) = find_tool("plain"), find(FAILS, HEALTHY)
    left = []
    for commit, names in (("a", [one, two]), ("b", [one]), ("c", [two])):
        monkeypatch.setattr(results, "commit_of", lambda _, commit=commit: commit)
        found = {path: Answer(path.stem, tool.name, control=False) for path in names}
        results.save(tool, found, [path.stem for path in names])
        left.append([each["commit"] for each in results.read(tmp_path / "plain.json")["measured"]])
    assert left == [["a"], ["a", "b"], ["b", "c"]]


def test_a_part_of_a_stored_file_is_replaced_alone(tmp_path: Path) -> None:
    file = tmp_path / "results" / "parts.json"
    results.save_parts(file, {"one": 1, "two": 2}, "first")
    results.save_parts(file, {"two": 3}, "second")
    kept = {name: (part["found"], part["command"]) for name, part in results.read(file).items()}
    assert kept == {"one": (1, "first"), "two": (3, "second")}


def test_the_citation_names_this_version_and_the_zoo() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == nantrap.__version__
    assert [(each["type"], each["version"]) for each in citation["references"]] == [("data", nantrap.__version__)]


def _without_times(tally: Tally) -> dict[str, object]:
    return {name: value for name, value in tally.counts().items() if "seconds" not in name}


def _called(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zoo", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)


def test_the_command_lists_tools() -> None:
    listed = _called("--list")
    assert listed.returncode == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()] == list(tools())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("no_such_program", "there is no family, collection or program 'no_such_program'"),
        (f"--freeze {FAILS}", f"{FAILS} is no collection, so it has no first measurement"),
        ("--freeze threads_2026", "threads_2026 has a first measurement of attempt; it is frozen"),
    ],
)
def test_the_command_refuses_before_anything_runs(given: str, said: str) -> None:
    wrong = _called("--tool", "nantrap_attempt", *given.split())
    assert wrong.returncode == 2
    assert said in wrong.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_are_those_of_the_results_on_disk(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert written(text) == text, "run make tables"


def test_the_manifest_is_written_as_it_is_stored() -> None:
    assert as_text(manifest()) == (ZOO / "manifest.json").read_text(encoding="utf-8")


def test_a_line_of_a_script_is_read_from_what_a_tool_prints(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nx = torch.zeros(1, requires_grad=True)\ny = torch.sqrt(x) * 0\ny.sum().backward()\n",
        encoding="utf-8",
    )
    said = run_script("anomaly_mode", script, [], tmp_path / "run", {}, 100)
    assert (said.alarm, said.line, said.exit) == ("SqrtBackward0", "train.py:3", 1)
    assert run_script("plain", script, [], tmp_path / "run", {}, 100).exit == 0
