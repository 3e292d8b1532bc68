"""No file that has an effect when torch loads it is called `ok`, by whatever way it reaches the code."""

from __future__ import annotations

import os
import py_compile
from pathlib import Path

import pytest

from checkpoints.audit.gadgets import GADGETS, LIBRARY
from checkpoints.audit.state_gadgets import STATE_GADGETS, STATE_LIBRARY
from checkpoints.audit.test_differential import left_by
from nantrap.checkpoints.audit import audit
from nantrap.cli import main

ALL = GADGETS | STATE_GADGETS
RUNS = "import os\nclass Runs:\n    def __setstate__(self, state):\n        os.mkdir(state['path'])\n"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with classes whose methods act, one without its source, and one that acts when it is imported."""
    folder = tmp_path / "library"
    (folder / "attackpkg").mkdir(parents=True)
    (folder / "attacklib.py").write_text(LIBRARY + STATE_LIBRARY)
    (folder / "attackbase.py").write_text(RUNS)
    (folder / "attackstar.py").write_text("from attackbase import *\n")
    (folder / "attackpkg" / "__init__.py").write_text("import os\ndef setter(self, s): os.mkdir(s['path'])\n")
    (folder / "attackpkg" / "__main__.py").write_text("import os\nclass Thing: pass\nos.mkdir('marker')\n")
    py_compile.compile(str(folder / "attackbase.py"), cfile=str(folder / "attackpyc.pyc"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.mark.usefixtures("library")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="loads in forked children")
def test_nothing_that_has_an_effect_is_called_ok(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for number, raw in enumerate(ALL.values()):
        (files / f"{number}.pt").write_bytes(raw)
    left = left_by(files)
    verdicts = {
        label: (audit(files / f"{number}.pt").checkpoints[0].verdict, bool(left[f"{number}.pt"]))
        for number, label in enumerate(ALL)
    }
    assert sum(acts for _, acts in verdicts.values()) > 150
    assert [label for label, (verdict, acts) in verdicts.items() if acts and verdict == "ok"] == []
    for number in range(0, len(ALL), 20):
        if left[f"{number}.pt"]:
            assert main(["audit", str(files / f"{number}.pt")]) == 1
    assert "ok " not in capsys.readouterr().err
