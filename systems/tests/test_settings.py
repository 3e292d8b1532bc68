"""Settings: every value has its declared type, and nothing is ignored."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nantrap.errors import FormatError, UsageError
from nantrap_systems.settings import parse_changes, read_settings, settings_from, with_changes


@dataclass(frozen=True)
class Inner:
    rate: float = 1e-3
    size: int = 4
    name: str = "adamw"
    scaled: bool = True


@dataclass(frozen=True)
class Outer:
    inner: Inner = field(default_factory=Inner)


def test_yaml_reads_5e_5_as_text_and_we_as_a_number(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("inner: {rate: 5e-5, size: 8, scaled: false}\n")
    assert read_settings(Outer, path) == Outer(Inner(rate=5e-5, size=8, scaled=False))


def test_an_empty_file_is_all_defaults(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("# nothing\n")
    assert read_settings(Outer, path) == Outer()


def test_changes_by_dotted_name_convert() -> None:
    changed = with_changes(Outer(), parse_changes(["inner.rate=1e-4", "inner.scaled=false", "inner.size=2"]))
    assert changed == Outer(Inner(rate=1e-4, size=2, scaled=False))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"outer": 1}, "unknown setting 'outer'; there are inner"),
        ({"inner": {"sise": 1}}, "inner: unknown setting 'sise'"),
        ({"inner": {"size": 1.5}}, "size: expected int, got 1.5"),
        ({"inner": {"size": True}}, "size: expected int, got True"),
        ({"inner": {"rate": "fast"}}, "rate: expected float, got 'fast'"),
        ({"inner": {"scaled": "maybe"}}, "scaled: expected bool, got 'maybe'"),
        ({"inner": {"name": 3}}, "name: expected str, got 3"),
        ({"inner": 3}, "inner: expected a mapping, got 3"),
    ],
)
def test_what_is_wrong_is_named(data: object, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        settings_from(Outer, data)


@pytest.mark.parametrize("pair", ["inner.rat=1", "inner.rate.deeper=1", "nothing=1", "inner.rate"])
def test_a_change_of_nothing_is_refused(pair: str) -> None:
    with pytest.raises(UsageError):
        with_changes(Outer(), parse_changes([pair]))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_settings(Outer, tmp_path / "absent.yaml")
    (tmp_path / "bad.yaml").write_text("inner: [1\n")
    with pytest.raises(FormatError, match="not YAML"):
        read_settings(Outer, tmp_path / "bad.yaml")


def test_a_python_file_is_read_and_not_run(tmp_path: Path) -> None:
    path = tmp_path / "config.py"
    path.write_text('"""Constants."""\nRATE = 1e-4\nSIZE: int = 2  # small\nSCALED = False\n')
    assert read_settings(Inner, path) == Inner(rate=1e-4, size=2, scaled=False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import os\n", "config.py:1: expected NAME = value; the file is read, not run"),
        ("RATE = 1\nSIZE = len('abc')\n", "config.py:2: SIZE is not a plain value; the file is read, not run"),
        ("RATE = \n", "config.py:1: not Python: invalid syntax"),
        ("RATES = 1\n", "unknown setting 'rates'; there are name, rate, scaled, size"),
    ],
)
def test_a_python_file_holds_constants_and_nothing_else(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "config.py"
    path.write_text(text)
    with pytest.raises(FormatError, match=words):
        read_settings(Inner, path)
