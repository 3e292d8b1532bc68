"""The pages of the systems: the tables of faults are what the code says, and every figure is written by a command."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from nantrap_systems import SYSTEMS, load_system

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    """`docs/pages.py` as a module."""
    spec = importlib.util.spec_from_file_location("pages_of_the_systems", DOCS / "pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_table_of_faults_is_what_the_code_says(name: str, pages: ModuleType) -> None:
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert pages.put(text, "faults", pages.faults_of(load_system(name))) == text, "run `make tables`"
    assert (DOCS / "pictures" / f"{name}.svg").is_file()


def test_a_fault_without_any_report_is_listed_as_such(pages: ModuleType) -> None:
    system = load_system("restran_mhc")
    assert pages.cause_of(load_system("latentdlm").fault("cosine_end")) == "not diagnosed"
    assert pages.cause_of(system.fault("no_mixing")) == "none: found by `nantrap doctor` (NT866)"
    assert pages.cause_of(load_system("radiodiff").fault("png_scale")) == "none: found by `nantrap data` (NT163)"
    assert pages.cause_of(system.fault("stale_rate")) == "none: found by `check_resume`"
    assert pages.cause_of(system.fault("sinkhorn_overflow")) == "`exp_overflow`"
