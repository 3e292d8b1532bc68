"""No file that has an effect when torch loads it is called `ok`, by whatever way it reaches the code."""

from __future__ import annotations

import os
import py_compile
from pathlib import Path

import pytest

from checkpoints.audit.gadgets import GADGETS, LIBRARY
from checkpoints.audit.name_gadgets import NAME_GADGETS, NAME_HARMLESS, NAME_LIBRARY
from checkpoints.audit.source_gadgets import (
    SOURCE_BASE,
    SOURCE_DYNAMIC,
    SOURCE_GADGETS,
    SOURCE_HARMLESS,
    SOURCE_LIBRARY,
)
from checkpoints.audit.state_gadgets import STATE_GADGETS, STATE_LIBRARY
from checkpoints.audit.test_differential import left_by
from nantrap.checkpoints.audit import audit
from nantrap.cli import main

ALL = GADGETS | STATE_GADGETS | SOURCE_GADGETS | NAME_GADGETS
RUNS = "import os\nclass Runs:\n    def __setstate__(self, state):\n        os.mkdir(state['path'])\n"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with classes whose methods act, one without its source, and one that acts when it is imported."""
    folder = tmp_path / "library"
    (folder / "attackpkg").mkdir(parents=True)
    (folder / "attacklib.py").write_text(LIBRARY + STATE_LIBRARY)
    modules = {"sourcelib": SOURCE_LIBRARY, "sourcebase": SOURCE_BASE, "sourcedynamic": SOURCE_DYNAMIC}
    for name, text in {**modules, "namelib": NAME_LIBRARY}.items():
        (folder / f"{name}.py").write_text(text)
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
            assert main(["audit", str(files / name)]) == 1
    assert "ok " not in capsys.readouterr().err


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("attacks", "harmless"),
    [(SOURCE_GADGETS, SOURCE_HARMLESS), (NAME_GADGETS, NAME_HARMLESS)],
    ids=["sources", "names"],
)
def test_what_acts_is_told_from_what_is_beside_it(
    tmp_path: Path, attacks: dict[str, bytes], harmless: dict[str, bytes]
) -> None:
    """Each of these is `ask` or `bad`, and the harmless classes and names of the same module are `ok`."""
    file = tmp_path / "a.pt"
    found = {}
    for label, raw in {**attacks, **harmless}.items():
        file.write_bytes(raw)
        found[label] = audit(file).checkpoints[0].verdict
    assert [label for label in attacks if found[label] == "ok"] == []
    assert {label: found[label] for label in harmless} == dict.fromkeys(harmless, "ok")
