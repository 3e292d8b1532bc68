"""In a notebook: incidents and runs show themselves, and `%nantrap report` shows a report."""

from __future__ import annotations

from html import unescape
from pathlib import Path

import pytest

from nantrap import record
from nantrap.report.notebook import magic
from report.runs import HOSTILE, MASKED, usual_run


def inside(frame: str) -> str:
    assert frame.startswith('<iframe title="nantrap report" sandbox="" srcdoc="')
    return unescape(frame.partition('srcdoc="')[2].partition('"')[0])


def test_an_incident_shows_itself() -> None:
    page = inside(MASKED._repr_html_())
    assert page.startswith("<!doctype html>")
    assert "proven by trial 1" in page


def test_a_hostile_incident_stays_in_its_frame() -> None:
    frame = HOSTILE._repr_html_()
    assert frame.count("<") == 2
    assert "<script>alert" not in inside(frame)


def test_a_run_shows_itself(tmp_path: Path) -> None:
    run = record.open_run(usual_run(tmp_path / "exp1"))
    assert "300 steps, 296 applied" in inside(run._repr_html_())


def test_the_magic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = magic(f"report '{usual_run(tmp_path / 'my run')}'")
    assert repr(shown) == "report on my run"
    assert shown is not None
    assert "300 steps, 296 applied" in inside(shown._repr_html_())
    assert magic("watch x") is None
    assert "%nantrap report PATH" in capsys.readouterr().out
    assert magic(f"report {tmp_path}/nothing") is None
    assert capsys.readouterr().out.startswith("error: ")
