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
@pytest.mark.parametrize(("every", "least"), [(9, 12), pytest.param(1, 150, marks=pytest.mark.slow)])
def test_nothing_that_has_an_effect_is_called_ok(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], every: int, least: int
) -> None:
    """Every file that is called `ok` is loaded, and of the others each EVERY-th, to see that the attacks are real."""
    files, loaded = tmp_path / "files", tmp_path / "loaded"
    files.mkdir()
    loaded.mkdir()
    labels = {}
    fine = set()
    for number, (label, raw) in enumerate(ALL.items()):
        file = files / f"{number}.pt"
        file.write_bytes(raw)
        labels[file.name] = label
        is_fine = audit(file).checkpoints[0].verdict == "ok"
        fine |= {file.name} if is_fine else set()
        if is_fine or number % every == 0:
            (loaded / file.name).write_bytes(raw)
    left = left_by(loaded)
    assert sum(map(bool, left.values())) > least
    assert [labels[name] for name in fine if left[name]] == []
    for name in list(left)[::20]:
        if left[name]:
            assert main(["audit", "--strict", str(files / name)]) == 1
    assert "ok " not in capsys.readouterr().err
