"""What making an instance of a class runs, by its source; and what the audit says about files that make one."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from checkpoints.audit.test_differential import left_by
from nantrap.checkpoints.audit import audit
from nantrap.checkpoints.audit.class_sources import effect_of, is_enum
from nantrap.checkpoints.audit.pickles import Name
from nantrap.cli import main

HOOKS = ("__new__", "__del__", "__init__", "__setstate__", "__getattr__")

MODULE = """
import enum
import os
import shutil as files
from collections import namedtuple
from dataclasses import dataclass
from subprocess import Popen
from typing import NamedTuple

from torch import nn
from .inner import Base, Writes as Imported


@dataclass
class Config:
    lr: float = 0.1


class Color(enum.Enum):
    RED = 1


class Point(NamedTuple):
    x: int


Pair = namedtuple("Pair", "a b")


class Net(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        os.system("id")  # is not called by loading


class AttrDict(dict):
    def __getattr__(self, key):
        try:
            return self[key]
        except KeyError:
            raise AttributeError(key) from None

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.extra = dict(state.get("extra", {}))


class Child(Base):
    pass


class Deletes:
    def __del__(self):
        files.rmtree(self.folder)


class Calls:
    def __setstate__(self, state):
        self.callback(state)


class ByHelper:
    def __setstate__(self, state):
        self._open(state)

    def _open(self, state):
        self.file = open(state["path"], "w")


class Unpickles:
    def __setstate__(self, state):
        import pickle

        self.value = pickle.loads(state)


class Unknown(Absent):
    pass


class WritesAsBase(Imported):
    pass


class Outer:
    class Inner:
        def __new__(cls, *args):
            return object.__new__(cls)

    class Bad:
        def __new__(cls, path):
            os.mkdir(path)
            return object.__new__(cls)


class EnumWithHook(enum.Enum):
    A = 1

    @classmethod
    def _missing_(cls, value):
        os.system(value)
"""
INNER = """
class Base:
    def __setstate__(self, state):
        for key, value in state.items():
            setattr(self, key, value)


class Writes:
    def __setstate__(self, state):
        self.path.write_text("x")
"""


@pytest.fixture
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ownlib").mkdir()
    (tmp_path / "ownlib" / "__init__.py").write_text(MODULE)
    (tmp_path / "ownlib" / "inner.py").write_text(INNER)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("_package")
@pytest.mark.parametrize(
    ("name", "effect"),
    [
        ("Config", "nothing"), ("Color", "nothing"), ("Point", "nothing"), ("Pair", "nothing"), ("Net", "moves"),
        ("AttrDict", "moves"), ("Child", "moves"), ("Outer.Inner", "moves"), ("Deletes", "system"),
        ("Calls", "unclear"), ("ByHelper", "system"), ("Unpickles", "system"), ("Unknown", "unclear"),
        ("WritesAsBase", "system"), ("Outer.Bad", "system"), ("Popen", "system"), ("Missing", "unclear"),
    ],
)  # fmt: skip
def test_the_effect_of_a_class(name: str, effect: str) -> None:
    seen = effect_of(Name("ownlib", name), HOOKS)
    assert seen.effect == effect
    assert bool(seen.why) is (effect not in ("nothing", "moves"))


@pytest.mark.usefixtures("_package")
def test_words_name_the_method_and_what_it_calls() -> None:
    assert effect_of(Name("ownlib", "Deletes"), HOOKS).why == "ownlib.Deletes.__del__: shutil.rmtree"
    assert effect_of(Name("ownlib", "Calls"), HOOKS).why == "ownlib.Calls.__setstate__: callback()"
    assert is_enum(Name("ownlib", "Color"))
    assert not is_enum(Name("ownlib", "Config"))


def test_a_class_of_the_script_that_loads_is_absent() -> None:
    assert effect_of(Name("__main__", "Config"), HOOKS).effect == "absent"
    assert effect_of(Name("no_such_module_anywhere.inner", "Config"), HOOKS).effect == "absent"


def test_an_installed_package_is_not_hidden_by_a_file_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hypothesis.py").write_text("class Config:\n    pass\n")
    monkeypatch.chdir(tmp_path)
    assert effect_of(Name("hypothesis", "Config"), HOOKS).effect == "unclear"  # the real one has no such class


ATTACK = """
import os


class Runs:
    def __setstate__(self, state):
        os.mkdir(state["path"])


class RunsAtTheEnd:
    def __del__(self):
        os.mkdir(self.path)


class Unclear:
    def __setstate__(self, state):
        globals()["plan"](state["path"])


class Plain:
    def __init__(self):
        self.path = "marker"


def plan(path):
    os.mkdir(path)
"""

WRITE = """
import pickle, sys
sys.dont_write_bytecode = True
import attacklib
for name in ("Runs", "RunsAtTheEnd", "Unclear", "Plain"):
    value = object.__new__(getattr(attacklib, name))
    value.__dict__["path"] = "marker"
    with open(name + ".pkl", "wb") as file:
        pickle.dump({"model": {}, "config": value}, file)
    attacklib.RunsAtTheEnd.__del__ = lambda self: None
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="loads in forked children")
def test_no_class_on_this_machine_that_runs_code_is_called_ok(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each file is really loaded by torch in a child; what leaves its marker must end in exit code 1."""
    (tmp_path / "attacklib.py").write_text(ATTACK)
    (tmp_path / "files").mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(str(tmp_path))
    subprocess.run([sys.executable, "-c", WRITE], cwd=tmp_path / "files", check=True, timeout=120)
    left = left_by(tmp_path / "files")
    expected = {"Runs": ("bad", 1), "RunsAtTheEnd": ("bad", 1), "Unclear": ("ask", 1), "Plain": ("ok", 0)}
    for name, (verdict, code) in expected.items():
        path = tmp_path / "files" / f"{name}.pkl"
        assert left[path.name] == (["marker"] if name != "Plain" else [])
        (checkpoint,) = audit(path).checkpoints
        assert (name, checkpoint.verdict) == (name, verdict)
        assert main(["audit", str(path)]) == code
        assert capsys.readouterr().out.startswith(f"{verdict:<3} ")
    assert checkpoint.problems[0].message == "loading it imports attacklib.Plain, and runs nothing else of that"


def test_code_that_cannot_be_judged_is_reported_and_not_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "unclearlib.py").write_text("class Kept:\n    def __setstate__(self, state):\n        self.go(state)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    raw = b"\x80\x04\x8c\nunclearlib\x8c\x04Kept\x93)\x81}\x8c\x01ak\x01sb.".replace(b"k\x01", b"K\x01")
    path = tmp_path / "a.pkl"
    path.write_bytes(raw)
    assert main(["audit", str(path), "--quarantine", str(tmp_path / "away")]) == 1
    words = capsys.readouterr().out
    assert "warning[NT913]: loading it would run code of unclearlib.Kept, and nantrap cannot tell what it does" in words
    assert "(unclearlib.Kept.__setstate__: go())" in words
    assert "1 checkpoint read: 0 healthy, 0 not, 1 with code that is not known" in words
    assert path.exists()
    (checkpoint,) = audit(path).checkpoints
    assert (checkpoint.verdict, checkpoint.healthy, checkpoint.to_dict()["verdict"]) == ("ask", True, "ask")


def test_a_class_that_is_not_here_fails_only_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(b"\x80\x04\x8c\x08__main__\x8c\x06Config\x93)\x81}\x8c\x01aK\x01sb.")
    assert main(["audit", str(path)]) == 0
    assert "needs the code of __main__.Config, which is not on this machine" in capsys.readouterr().out
    assert main(["audit", "--strict", str(path)]) == 1
    path.write_bytes(pickle.dumps({"model": {"w": [1.0]}}))
    assert main(["audit", "--strict", str(path)]) == 0


@pytest.mark.parametrize("name", ["Popen", "FileIO", "CDLL", "Process"])
def test_a_class_of_the_system_that_the_script_imports(tmp_path: Path, name: str) -> None:
    """`from subprocess import Popen` in the script that loads makes `__main__.Popen` out of any pickle."""
    raw = b"\x80\x04\x8c\x08__main__\x8c" + bytes([len(name)]) + name.encode() + b"\x93\x8c\x02id\x85R."
    (tmp_path / "a.pkl").write_bytes(raw)
    assert not audit(tmp_path / "a.pkl").healthy
