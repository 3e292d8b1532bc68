"""The terms of a loss that a function of the program adds up, under `nantrap run`."""

from __future__ import annotations

import json
import math
import runpy
from pathlib import Path

import pytest

from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings

SCRIPT = Path(__file__).parent / "scripts" / "added_terms.py"


@pytest.mark.parametrize("way", ["function", "window", "other_function"])
def test_the_terms_that_a_function_adds_up_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    monkeypatch.setenv("ADDED_TERMS", way)
    with attached(RunSettings(run_dir=str(tmp_path / "run"))):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    first = min(tmp_path.glob("run/**/incident.json"))
    terms = {name: math.isfinite(float(value)) for name, value in json.loads(first.read_text())["terms"].items()}
    assert terms == ({} if way == "other_function" else {"error": True, "spread": False})
    assert ("= terms:" in capsys.readouterr().err) == bool(terms)
