"""Pages of data, preflight, doctor and audit show what the commands print, as far as numbers are stable."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from docs_scripts import docs_script
from nantrap.cli import main

pytest.importorskip("PIL")


@pytest.fixture(scope="module")
def outputs() -> Any:
    return docs_script("command_outputs")


def stable(text: str) -> list[str]:
    """Each check in one line, without numbers, and without the drill on two ranks and the counts that include it."""
    joined = re.sub(r"\n {30}", " ", text).partition("\nSequential, ")[0]
    lines = [re.sub(r"[-+×]?\d[\d.,e+-]*", "#", line) for line in joined.splitlines()]
    unstable = ("guard cost", "guard on two ranks", "margin: learning rate")
    return [" ".join(line.split()) for line in lines if line[5:30].strip() not in unstable]


@pytest.mark.parametrize("number", [0, 2, 3, 4], ids=["data", "doctor", "doctor --suggest", "audit --show"])
def test_output(outputs: Any, number: int, tmp_path: Path) -> None:
    """The size of a file depends on the version of torch that wrote it."""
    example = outputs.EXAMPLES[number]
    made, shown = (
        re.sub(r"[\d.]+ kB", "# kB", text)
        for text in (outputs.output_of(example, tmp_path), outputs.shown_output(example))
    )
    assert made == shown


def test_preflight(
    outputs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, which has torch already, and without the two processes of the last drill."""
    example = outputs.EXAMPLES[1]
    example.write(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "train", raising=False)
    try:
        assert main([*example.command.split()[1:], "--no-ranks"]) == 1
    finally:
        sys.modules.pop("train", None)
    out, err = capsys.readouterr()
    made = stable(err + out)
    assert made == stable(outputs.shown_output(example))
    assert len(made) > 18
