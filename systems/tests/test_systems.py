"""What every system must offer, whichever it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import nantrap
from nantrap.errors import UsageError
from nantrap.incident import BY_SLUG
from nantrap_systems import SYSTEMS, _version, load_system


def test_the_version_is_that_of_the_product_and_so_is_the_one_it_needs() -> None:
    assert _version.__version__ == nantrap.__version__
    project = Path(__file__).parents[1] / "pyproject.toml"
    assert f'dependencies = ["nantrap[torch]=={nantrap.__version__}"]' in project.read_text(encoding="utf-8")


def test_the_registry_imports_no_torch() -> None:
    code = "import sys, nantrap_systems; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="pixeldlm"):
        load_system("gpt5")
    with pytest.raises(UsageError, match="it has short_text"):
        load_system("pixeldlm").fault("long_text")


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_fault_is_described_and_its_cause_exists(name: str) -> None:
    system = load_system(name)
    assert system.name == name
    assert system.config.exists()
    assert len({fault.name for fault in system.faults}) == len(system.faults)
    for fault in system.faults:
        assert all([fault.title, fault.story, fault.damage, fault.answer, fault.remedies])
        assert fault.parts or fault.faulty_settings, "the faulty run differs from the clean one"
        assert fault.cause is None or fault.cause in BY_SLUG
        assert all(remedy.story and remedy.result for remedy in fault.remedies)
        assert len({remedy.name for remedy in fault.remedies} | {"clean", "plain", "nantrap"}) == 3 + len(
            fault.remedies
        )


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_has_the_same_files(name: str) -> None:
    there = {path.name for path in load_system(name).config.parent.glob("*.py")}
    assert {"settings.py", "data.py", "model.py", "loss.py", "train.py", "faults.py"} <= there


@pytest.mark.parametrize("name", SYSTEMS)
def test_under_two_million_parameters(name: str) -> None:
    assert sum(parameter.numel() for parameter in load_system(name).run().model.parameters()) < 2_000_000


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_config_file_is_the_default(name: str) -> None:
    from nantrap_systems.settings import read_settings

    system = load_system(name)
    assert read_settings(system.settings, system.config) == system.settings()
