"""The pages of the systems: the tables of faults are what the code says, and every figure is written by a command."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from docs_scripts import docs_script
from nantrap_systems import SYSTEMS, load_system

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    return docs_script("pictures")


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_table_of_faults_is_what_the_code_says(name: str, pictures: ModuleType) -> None:
    text = (DOCS / "systems" / f"{name}.md").read_text(encoding="utf-8")
    assert pictures.put(text, "faults", pictures.faults_of(load_system(name))) == text, "run `make tables`"
    assert (DOCS / "pictures" / f"{name}.svg").is_file()


def test_a_fault_without_any_report_is_listed_as_such(pictures: ModuleType) -> None:
    system = load_system("restran_mhc")
    assert pictures.cause_of(load_system("latentdlm").fault("cosine_end")) == "not diagnosed"
    assert pictures.cause_of(system.fault("no_mixing")) == "none: found by `nantrap doctor` (NT866)"
    assert pictures.cause_of(load_system("radiodiff").fault("png_scale")) == "none: found by `nantrap data` (NT163)"
    assert pictures.cause_of(system.fault("stale_rate")) == "none: found by `check_resume`"
    assert pictures.cause_of(system.fault("sinkhorn_overflow")) == "`exp_overflow`"
