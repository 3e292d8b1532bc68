"""`nantrap check`: formats, exit codes, hostile names."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from nantrap.cli import main


def write(path: Path, losses: list[float]) -> str:
    path.write_text("".join(f"step {i} | loss {loss} | lr 1e-4\n" for i, loss in enumerate(losses)))
    return str(path)


@pytest.fixture
def good(tmp_path: Path) -> str:
    return write(tmp_path / "good.log", [10 / (i + 1) for i in range(100)])


@pytest.fixture
def dead(tmp_path: Path) -> str:
    return write(tmp_path / "dead.log", [10 / (i + 1) for i in range(100)] + [float("nan")] * 20)


def test_text_and_exit_codes(good: str, dead: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", good]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"✓ healthy  {good}  (text log, 100 rows, last step 99, last written ")
    assert "  ✓ loss_falls   the loss falls from" in out
    assert main(["check", dead]) == 1
    assert "✖ loss_finite  dead since step 100: no finite loss in the last 20 values" in capsys.readouterr().out
    assert main(["check", good + "?"]) == 2
    assert "no such file or folder" in capsys.readouterr().err


def test_json(dead: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", dead, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["verdict"]) == ("nantrap.check/1", "sick")
    assert document["findings"][0]["evidence"]["dead_since"] == 100


def test_junit_and_github(dead: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", dead, "--format", "junit"]) == 1
    suite = ElementTree.fromstring(capsys.readouterr().out.encode())
    assert suite.attrib["failures"] == "1"
    assert main(["check", dead, "--format", "github"]) == 1
    first = capsys.readouterr().out.splitlines()[0]
    assert (
        first == "::error title=nantrap check%3A loss_finite::dead since step 100: no finite loss in the last 20 values"
    )


def test_a_plan(tmp_path: Path, good: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "stages.yaml"
    plan.write_text("stages:\n  - {name: start, steps: 0-50, loss: falls, values: {lr: {below: 1e-5}}}\n")
    assert main(["check", good, "--expect", str(plan)]) == 1
    out = capsys.readouterr().out
    assert "✖ stage: start (steps 0-50, complete)" in out
    assert "lr is 0.0001 at step 0, expected below 1e-05" in out
    plan.write_text("stages: 3")
    assert main(["check", good, "--expect", str(plan)]) == 2
    assert "stages.yaml: stages: expected a list, got 3" in capsys.readouterr().err


def test_warnings_count_with_strict(tmp_path: Path) -> None:
    flat = write(tmp_path / "flat.log", [1.0 + 0.01 * (i % 7) for i in range(100)])
    assert main(["check", flat]) == 0
    assert main(["check", flat, "--strict"]) == 1


def test_nothing_to_judge_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "x.jsonl"
    log.write_text("")
    assert main(["check", str(log)]) == 1
    assert capsys.readouterr().out.startswith(f"? unknown  {log}")
    log.write_text('{"val_accuracy": 0.1}\n{"val_accuracy": 0.2}\n')
    assert main(["check", str(log)]) == 1
    assert "? loss_finite  the log has no loss" in capsys.readouterr().out


def test_names_cannot_reach_the_terminal_or_the_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.jsonl"
    hostile = 'val_\x1b[2J"<b>&'
    path.write_text("".join(json.dumps({"step": i, "loss": 1.0 / (i + 1), hostile: 0.5 - i}) + "\n" for i in range(30)))
    main(["check", str(path)])
    assert "\x1b" not in capsys.readouterr().out
    main(["check", str(path), "--format", "junit"])
    ElementTree.fromstring(capsys.readouterr().out.encode())


def test_a_folder_of_runs_gives_a_line_for_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, losses in (("fine", [2.0 / (step + 1) + 0.5 for step in range(40)]), ("dead", [math.nan] * 40)):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        rows = [{"step": step, "loss": loss, "action": "apply"} for step, loss in enumerate(losses)]
        (folder / "journal-r0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["check", str(tmp_path / "runs")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.split()[1] for line in lines) == ["healthy", "sick"]
    assert main(["check", str(tmp_path / "runs"), "--json"]) == 1
    assert {run["verdict"] for run in json.loads(capsys.readouterr().out)["runs"]} == {"healthy", "sick"}
    for command in ("report", "watch"):
        assert main([command, str(tmp_path / "runs")]) == 2
        out, err = capsys.readouterr()
        assert len(out.splitlines()) == 2
        assert f"holds 2 runs; give one: nantrap {command} " in err
        assert main([command, str(tmp_path / "runs"), "--json", *(["--once"] if command == "watch" else [])]) == 2
        assert {run["verdict"] for run in json.loads(capsys.readouterr().out)["runs"]} == {"healthy", "sick"}
    assert main(["check", str(tmp_path / "runs" / "fine")]) == 0


def test_a_run_with_a_second_optimizer_is_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = "".join(
        json.dumps({"step": step, "loss": 2.0 / (step + 1), "action": "apply"}) + "\n" for step in range(40)
    )
    for folder in (tmp_path / "gan", tmp_path / "gan" / "optimizer-2"):
        folder.mkdir()
        (folder / "journal-r0.jsonl").write_text(lines)
    assert main(["report", str(tmp_path / "gan")]) == 0
    assert (tmp_path / "gan" / "report.html").is_file()


def test_a_run_without_a_step_has_no_last_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "journal-r0.jsonl").touch()
    assert main(["check", str(tmp_path / "one")]) == 1
    assert main(["check", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "-1" not in said.replace(str(tmp_path), "")
    assert said.count("no steps") == 3
