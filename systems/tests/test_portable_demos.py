"""`portable_demos.py` fails when a fault has another answer on another CPU."""

from __future__ import annotations

from typing import Any

import pytest

import portable_demos


def showcase(**changes: Any) -> dict[str, Any]:
    known = {"system": "temi", "fault": "nan_row", "cause": "nan_in_data", "proven": True, "named": True}
    return {**known, "incident": {"module": "head", "op": "mm"}, **changes}


@pytest.mark.parametrize(
    ("other", "code", "words"),
    [
        (showcase(), 0, "1 faults, 2 settings, 0 with more than one answer"),
        (showcase(proven=False), 1, "1 with more than one answer"),
        (showcase(cause="overflow", named=False), 1, "1 not as expected"),
        ({}, 1, "its process died"),
    ],
)
def test_a_cause_that_changes_between_settings_is_said(
    other: dict[str, Any], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"as it is": portable_demos.answers([showcase()]), "oldest": portable_demos.answers([other])}
    assert portable_demos.tell(found) == code
    assert words in capsys.readouterr().out
