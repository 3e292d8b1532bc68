"""`nantrap demo`: exit codes, what goes where, and the last line."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from nantrap.cli.demo import Demo
from nantrap.errors import UsageError


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    demo = Demo()
    demo.prepare_parser(parser)
    return demo.run(parser.parse_args(arguments))


def test_without_arguments_it_lists_systems_and_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    out = capsys.readouterr().out
    assert "pixeldlm: token ids as pixels" in out
    assert "  short_text " in out


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
    ],
)
def test_wrong_use(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run(*arguments)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="not empty"):
        run("pixeldlm", "--run-dir", str(tmp_path))


@pytest.mark.slow
def test_the_whole_command(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "nantrap", "demo", "pixeldlm", "--fault", "short_text", "--steps", "20", "--json"]
    done = subprocess.run([*command, "--run-dir", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "nantrap.demo/1"
    assert document["named"]
    assert document["proven"]
    names = [result["name"] for result in document["results"]]
    assert names[0] == "clean"
    assert names[-1] == "nantrap"
    assert "error[NT203]" in done.stderr
    label, _, bundle = done.stderr.splitlines()[-1].partition(": ")
    assert label == "incident"
    assert Path(bundle, "incident.json").exists()


@pytest.mark.slow
def test_the_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("pixeldlm", "--steps", "20") == 0
    out, err = capsys.readouterr()
    rows = {line.split("  ")[0]: line.split() for line in out.splitlines() if line}
    assert rows["plain"][-1] == "NaN"
    assert rows["nantrap"][-3:] == ["finite", "NT203", "yes"]
    assert all(len(line) <= 80 for line in out.split("plain:")[0].splitlines())
    assert "error[NT203]" in err
    assert err.splitlines()[-1].startswith("incident: ")
