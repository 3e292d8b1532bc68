"""Every check fires where it should, with the right risk, and is silent where it should be."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from nantrap.doctor.examine import examine
from nantrap.doctor.report import RISK_OF
from nantrap.incident.checks import CHECKS

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("doctor_cases", HERE / "cases.py")
assert _spec is not None
assert _spec.loader is not None
cases = importlib.util.module_from_spec(_spec)
sys.modules["doctor_cases"] = cases
_spec.loader.exec_module(cases)
CASES = cases.read_cases(HERE / "cases")
SLUGS = {check.code: check.slug for check in CHECKS}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    report = examine(["."])
    found = [finding for finding in report.findings if finding.code == case.code]
    assert not report.notes
    if case.risk is None:
        assert found == []
    else:
        assert {RISK_OF[finding.severity] for finding in found} == {case.risk}, report.findings
        assert all(finding.title == SLUGS[case.code] for finding in found)
        assert all(finding.place.file in case.files for finding in found)
        assert all(each.message.count("(") == each.message.count(")") or "…" in each.message for each in found)


def test_every_check_has_cases_of_both_kinds() -> None:
    assert {case.code for case in CASES if case.risk is not None} == set(SLUGS)
    assert {case.code for case in CASES if case.risk is None} == set(SLUGS)
