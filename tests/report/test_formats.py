"""Reports for machines: Markdown, JSON, JUnit, GitHub annotations, SARIF; and the command that writes them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from nantrap.cli import main
from nantrap.incident import Incident
from nantrap.report.formats import github, junit, problem_of_incident, sarif
from report.runs import EVIL, HOSTILE, MASKED, line, skipped, usual_run, write_incident, write_run


def made(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["report", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return usual_run(tmp_path / "exp1")


def test_json_of_an_incident_has_the_diagnostic_and_the_incident(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(made(capsys, str(run / "incidents" / "000007-r0"), "--json"))
    assert document["schema"] == "nantrap.report/1"
    assert document["kind"] == "incident"
    assert document["diagnostic"]["code"] == "NT203"
    assert Incident.from_dict(document["incident"]).to_dict() == MASKED.to_dict()
    assert [stop["kind"] for stop in document["path"]][-2:] == ["gate", "kept"]


def test_json_of_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(made(capsys, str(run), "--format", "json"))
    assert (document["attempted"], document["applied"]) == (300, 296)
    assert document["not_applied"] == [7, 40, 41, 42]
    assert [group["code"] for group in document["groups"]] == ["NT203", "NT401"]
    assert document["groups"][0]["steps"] == [7, 40, 41]
    assert document["evaluations"][-1] == {"step": 299, "loss": "0.01", "accuracy": "0.5"}


def test_markdown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = made(capsys, str(run), "--format", "md")
    assert text.startswith("# exp1: 300 steps, 296 applied (98.7 %), 2 causes, 1 proven.\n")
    assert (
        "| 1 | NT203 softmax over a row in which every position is masked | ✓ proven by trial 1 | 3 | 7 to 41 |" in text
    )
    text = made(capsys, str(run / "incidents" / "000007-r0" / "incident.json"), "--format", "md")
    assert "error[NT203]: softmax over a row" in text
    assert "```diff\n-        return scores.softmax(dim=-1)\n" in text


def test_markdown_escapes_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_incident(tmp_path / "incidents" / "000003-r0", HOSTILE)
    text = made(capsys, str(folder), "--format", "md")
    outside = "".join(text.split("```")[::2])
    assert "<script" not in outside
    assert "\x1b" not in text


def test_junit(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = ElementTree.fromstring(made(capsys, str(run), "--format", "junit"))
    suite = root.find("testsuite")
    assert suite is not None
    kinds = [failure.get("type") for failure in suite.iter("failure")]
    assert kinds[:2] == ["NT203", "NT401"]
    assert suite.get("failures") == str(len(kinds))
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.get("type") == "NT203"
    assert "3 times, steps 7 to 41" in (failure.get("message") or "")
    healthy = ElementTree.fromstring(junit("good", ()))
    assert healthy.find("testsuite/testcase/failure") is None
    assert healthy.find("testsuite/testcase") is not None
    ElementTree.fromstring(junit(EVIL, [problem_of_incident(HOSTILE)]))


def test_github_annotations(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = made(capsys, str(run / "incidents" / "000007-r0"), "--format", "github")
    assert shown == (
        "::error file=model.py,line=39,title=NT203 softmax over a row in which every position is masked::softmax over "
        "a row in which every position is masked gave NaN, from sample 3; fix: give the row one valid key, or use "
        "nantrap.ops.masked_softmax(scores, mask): verified, the step is finite with it (trial 1) (step 7, rank 0)\n"
    )
    assert github([problem_of_incident(HOSTILE)]).count("\n") == 1, "no name begins a command of its own"


def test_sarif(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(made(capsys, str(run), "--format", "sarif"))
    (found,) = document["runs"]
    assert document["version"] == "2.1.0"
    assert [rule["id"] for rule in found["tool"]["driver"]["rules"]] == ["NT203", "NT401"]
    result = found["results"][0]
    assert result["level"] == "error"
    assert result["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "model.py"}, "region": {"startLine": 39},
    }  # fmt: skip
    guess = replace(MASKED, causes=(replace(MASKED.causes[0], proven=False),), source=None)
    (result,) = json.loads(sarif([problem_of_incident(guess)]))["runs"][0]["results"]
    assert result["level"] == "warning"
    assert "locations" not in result


def test_the_page_goes_next_to_what_it_reports_on(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out == f"report on exp1: {run}/report.html\n"
    assert main(["report", str(run)]) == 0, "a page of our own is replaced"
    assert main(["report", str(run / "incidents" / "000007-r0")]) == 0
    assert (run / "incidents" / "000007-r0" / "report.html").read_text().startswith("<!doctype html>")


def test_nothing_else_is_overwritten(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "notes.md"
    target.write_text("mine")
    assert main(["report", str(run), "-o", str(target)]) == 2
    assert "exists and was not written by nantrap; --force overwrites it" in capsys.readouterr().err
    assert target.read_text() == "mine"
    assert main(["report", str(run), "-o", str(target), "--force"]) == 0
    assert target.read_text().startswith("# exp1: "), "the ending of the name chooses the format"
    capsys.readouterr()
    assert main(["report", str(run), "-o", "-", "--format", "html"]) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")


@pytest.mark.parametrize("content", [None, "{", '{"schema": "other/1"}', "[1]"])
def test_what_cannot_be_reported_on_is_named(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "incidents" / "000001-r0"
    folder.mkdir(parents=True)
    if content is not None:
        (folder / "incident.json").write_text(content)
    assert main(["report", str(folder)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert str(tmp_path) in captured.err
    assert len(captured.err.splitlines()) == 1


def test_a_log_of_another_tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, [line(0), line(1)])
    (tmp_path / "journal-r0.jsonl").rename(tmp_path / "train.jsonl")
    assert main(["report", str(tmp_path / "train.jsonl")]) == 0
    assert (tmp_path / "train.jsonl.report.html").exists()


def test_a_cause_without_a_folder_is_as_sure_as_the_journal_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Incidents like an earlier one are not diagnosed again: their cause is a guess, and not unknown."""
    place = {"phase": "forward", "op": "aten.mm"}
    lines = [line(step) for step in range(60)]
    for step in (10, 11):
        told = {**place, "module": "a", "cause": "bad_input_data", "guess": True}
        lines[step] = skipped(step) | {"incident": told}
    lines[20] = skipped(20) | {"incident": {**place, "module": "b", "cause": "bad_input_data"}}
    lines[30] = skipped(30) | {"incident": {**place, "module": "c"}}
    run = write_run(tmp_path / "exp1", lines)
    assert main(["report", str(run), "--format", "json", "-o", "-"]) == 0
    found = {group["place"]: group["verdict"]["word"] for group in json.loads(capsys.readouterr().out)["groups"]}
    assert found == {"in a": "a guess: not proven", "in b": "proven", "in c": "cause unknown"}


def test_a_failure_that_two_ranks_tell_of_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line(step) for step in range(30)]
    lines[7] = skipped(7)
    told = replace(MASKED, step=7, rank=0, origin_rank=0)
    write_run(tmp_path / "exp1", lines, incidents=(told,))
    run = write_run(tmp_path / "exp1", lines, incidents=(replace(told, rank=1, module="b"),), rank=1)
    assert main(["report", str(run), "--format", "json", "-o", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert sum(len(group["steps"]) for group in document["groups"]) == 1
    assert [(row["rank"], row["began"]) for row in document["ranks"]] == [(0, 1), (1, 0)]


def test_a_module_that_is_called_by_its_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the parts of `nn.Sequential` are: the journal's line and the folder of the incident are one group."""
    lines = [line(step) for step in range(30)]
    lines[7] = skipped(7) | {"incident": {"phase": "forward", "module": "0", "cause": MASKED.causes[0].slug}}
    run = write_run(tmp_path / "exp1", lines, incidents=(replace(MASKED, step=7, module="0"),))
    assert main(["report", str(run), "--format", "json", "-o", "-"]) == 0
    (group,) = json.loads(capsys.readouterr().out)["groups"]
    assert (group["steps"], group["place"]) == ([7], "model.py:39 in 0")
