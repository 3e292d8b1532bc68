"""Forty faults, planted one at a time into five programs of a healthy project, are seen with the risk of their check.

The project has several files that run each other, so that what speaks against a finding (nothing calls it, its file
trains nothing) is asked here, too, and must not silence a real fault.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nantrap.doctor.examine import examine
from nantrap.doctor.report import RISK_OF

PROGRAMS = Path(__file__).parent / "planted"
_FAULT = re.compile(r"### (NT\d+) (high|medium) (\S+)\n(.*?)\n--- becomes\n(.*?)\n(?=###|\Z)", re.DOTALL)
FAULTS = _FAULT.findall((PROGRAMS / "faults.txt").read_text(encoding="utf-8"))
"""The code, its risk, the file, the text that is replaced, and what it is replaced by."""


def findings(folder: Path) -> set[tuple[str, str]]:
    return {(each.code, RISK_OF[each.severity]) for each in examine([str(folder)]).findings}


def written(folder: Path) -> dict[str, str]:
    """Write the programs into a folder and give the text of each."""
    parts = re.split(r"^--- (\S+)\n", (PROGRAMS / "programs.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
    texts = dict(zip(parts[1::2], parts[2::2], strict=True))
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return texts


def test_there_are_forty() -> None:
    assert len(FAULTS) == 40


def test_the_programs_are_healthy(tmp_path: Path) -> None:
    written(tmp_path)
    assert {each for each in findings(tmp_path) if each[1] != "low"} == set()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault[0]}-{fault[2]}")
def test_a_planted_fault_is_seen(fault: tuple[str, str, str, str, str], tmp_path: Path) -> None:
    code, risk, file, old, new = fault
    text = written(tmp_path)[file]
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new, 1), encoding="utf-8")
    assert (code, risk) in findings(tmp_path)
