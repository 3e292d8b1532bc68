"""Steps from anywhere in a journal: a stretch in the middle, and the steps before an incident."""

from __future__ import annotations

import math
from pathlib import Path

from nantrap.report.journals import appended, rows_before, window
from report.runs import line, write_run


def test_the_middle_of_a_journal(tmp_path: Path) -> None:
    journal = write_run(tmp_path, [line(step, float(step)) for step in range(30_000)]) / "journal-r0.jsonl"
    assert [row.step for row in window(journal, 17_000, 17_005)] == list(range(17_000, 17_006))
    assert [row.step for row in window(journal, 0, 2)] == [0, 1, 2]
    assert window(journal, 40_000, 50_000) == []
    found = appended(journal, journal.stat().st_size - 5)
    assert found.rows == []
    assert found.tally.attempted == 0
    assert found.after <= journal.stat().st_size


def test_lines_that_are_no_steps_are_skipped(tmp_path: Path) -> None:
    journal = tmp_path / "journal-r0.jsonl"
    journal.write_text('{"kind": "eval", "step": 3}\n[1]\n{"step": "x"}\nnonsense\n{"step": 1, "loss": "inf"}\n{"st')
    (row,) = appended(journal, 0).rows
    assert (row.step, row.numbers) == (1, {"loss": math.inf})


def test_the_steps_before_are_found_in_a_long_journal(tmp_path: Path) -> None:
    run = write_run(tmp_path / "long", [line(step, float(step)) for step in range(20_000)])
    found = rows_before(run / "journal-r0.jsonl", 12_345, most=48)
    assert [moment.step for moment in found] == list(range(12_345 - 47, 12_346))
    assert found[-1].numbers["loss"] == 12_345.0
    assert [m.step for m in rows_before(run / "journal-r0.jsonl", 3, most=48)] == [0, 1, 2, 3]
    assert rows_before(run / "journal-r7.jsonl", 3, most=48) == []
