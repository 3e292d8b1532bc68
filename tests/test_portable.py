"""`tests/portable.py` fails when a test has another outcome on another CPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = """
import os
import pytest

OTHER = "ATEN_CPU_CAPABILITY" in os.environ

def test_that_passes():
    pass

def test_that_fails():
    assert not OTHER

def test_that_skips():
    if OTHER:
        pytest.skip()
"""


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_outcome_that_changes_between_settings_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("ATEN_CPU_CAPABILITY", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(variable, raising=False)
    tests = tmp_path / "test_program.py"
    tests.write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    portable = load("portable")
    common = [str(tests), "--jobs", "0", "--results", str(tmp_path / "results"), "--shuffle", "5"]
    assert portable.main([*common, "--setting", "as it is"]) == 0
    assert "random order 5\n" in capsys.readouterr().out
    assert portable.main([*common, "--setting", "ATen default"]) == 1  # compared with the one before
    out = capsys.readouterr().out
    assert "random order 9\n" in out  # the fifth setting
    assert "ATen default: 1 passed, 1 skipped, 1 failure, 0 error\n  test_program::test_that_fails\n" in out
    assert "3 tests, 2 settings, 2 with more than one outcome\n" in out
    assert "  test_program::test_that_skips: as it is passed, ATen default skipped\n" in out


def test_equal_outcomes_are_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"test_program::test_that_passes": "passed", "test_program::test_that_skips": "skipped"}
    assert load("portable").tell({"as it is": found, "ATen default": found}) == 0
    assert "2 tests, 2 settings, 0 with more than one outcome" in capsys.readouterr().out
