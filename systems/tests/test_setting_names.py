"""`nantrap doctor --suggest` knows the settings of the systems by the names that the distribution declares."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nantrap_systems
from nantrap.doctor.configuration.names import MEANINGS, declared_names
from nantrap.doctor.examine import examine, examine_repository
from nantrap.doctor.suggest import edits_for

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli", reason="reading TOML on Python 3.10 needs tomli")

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
CONFIG = Path(nantrap_systems.__file__).parent / "restran_mhc" / "config.py"


@pytest.fixture
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The names of the project file, as an installed distribution has them."""
    names: dict[str, str] = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"]["nantrap.setting_names"]
    info = tmp_path / "declaring-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: declaring\nVersion: 1.0\n")
    lines = "".join(f"{name} = {meaning}\n" for name, meaning in names.items())
    (info / "entry_points.txt").write_text(f"[nantrap.setting_names]\n{lines}")
    monkeypatch.syspath_prepend(str(tmp_path))
    declared_names.cache_clear()
    yield names
    declared_names.cache_clear()


def test_every_declared_name_has_a_meaning(declared: dict[str, str]) -> None:
    assert set(declared.values()) <= MEANINGS
    assert declared.items() <= declared_names().items()


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize(
    ("level", "why", "new"), [("scale-up", "streams × 2", "4"), ("very-conservative", "streams × 0.5", "1")]
)
def test_streams_follow_the_ladder(level: str, why: str, new: str) -> None:
    report, repository = examine_repository([str(CONFIG)])
    assert (why, new) in {(each.why, each.new) for each in edits_for(report, repository, level=level)}


@pytest.mark.parametrize("name", ["radiodiff", "latentdlm", "restran_mhc", "temi", "pixeldlm"])
def test_the_configuration_of_a_system_passes_the_doctor(name: str) -> None:
    folder = CONFIG.parents[1] / name
    settings = [path for path in folder.iterdir() if path.stem in ("accelerate", "config", "settings")]
    assert settings
    assert [examine([str(path)]).findings for path in settings] == [()] * len(settings)
