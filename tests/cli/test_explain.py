"""`nantrap explain`: the list, a page, JSON, and what a terminal gets."""

from __future__ import annotations

import json
import re
import sys

import pytest

from nantrap.cli import main
from nantrap.incident import BY_CODE, lookup
from nantrap.pages import cause_pages, check_pages
from nantrap.pages.page import read_page

NT302 = read_page(lookup("NT302"))


def test_the_list_is_by_family(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line and line[0] not in " `"] == [
        "unknown",
        "data",
        "forward maths",
        "backward maths",
        "precision",
        "optimisation",
        "state",
        "distributed and platform",
        "configuration",
        "source code",
    ]
    assert "  NT203  softmax_fully_masked_row        softmax over a row in which every position is masked" in lines
    assert [line[2:7] for line in lines if line.startswith("  NT")] == [
        *sorted(BY_CODE),
        *(each.code for each in check_pages()),
    ]
    assert lines[-1] == "`nantrap explain CODE` shows the page of a cause or a check"


@pytest.mark.parametrize("name", ["NT302", "nt302", "arccos_boundary"])
def test_a_page_is_plain_text_in_a_pipe(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", name]) == 0
    assert capsys.readouterr().out == NT302.text() + "\n"


def test_a_terminal_gets_headings_and_lines_of_its_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "72")
    assert main(["explain", "NT302"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b[" in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    lines = [line.rstrip() for line in plain.splitlines()]
    assert max(map(len, lines)) <= 72
    assert any("NT302: The derivative of acos or asin is infinite at ±1" in line for line in lines)
    assert {"Example", "Why", "Fix", "Proof"} <= {line.strip() for line in lines}
    assert " ".join(NT302.sections["why"].split()[:8]) in " ".join(plain.split())


def test_no_color_is_honoured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["explain", "NT302"]) == 0
    assert "\x1b[3" not in capsys.readouterr().out


def test_json_of_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "NT302", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data) == {"schema", "code", "slug", "title", "what", "example", "why", "fix", "proof", "family"}
    assert (data["code"], data["family"], data["example"]) == ("NT302", "backward maths", NT302.program)


def test_json_of_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    expected = [each.code for each in cause_pages()] + [each.code for each in check_pages()]
    assert [each["code"] for each in data["found"]] == expected
    assert data["found"][1] == {
        "code": "NT101",
        "slug": "bad_input_data",
        "title": "The batch holds values that no model can train on",
        "family": "data",
    }


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["sqrt"], "NT301"),
        (["aten._softmax"], "NT203"),
        (["softmax", "mask"], "NT203"),
        (["loss", "is", "nan", "after", "resume"], "NT604"),
        (["batchnorm"], "NT605"),
        (["acos"], "NT302"),
        (["fp16", "overflow"], "NT401"),
        (["log", "of", "zero"], "NT201"),
        (["divide", "by", "zero"], "NT202"),
    ],
)
def test_words_find_causes(words: list[str], code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    codes = [found["code"]] if "code" in found else [each["code"] for each in found["found"][:4]]
    assert code in codes


def test_the_list_of_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "sqrt"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "causes and checks that mention 'sqrt', the closest first"
    assert any("NT301  singular_gradient_at_zero" in line for line in lines)
    assert lines[-1] == "`nantrap explain CODE` shows the page of a cause or a check"


@pytest.mark.parametrize("columns", [100, 80, 40])
def test_the_list_fits_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["explain", "sqrt"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:-2]
    assert max(map(len, lines)) <= columns
    words = " ".join(" ".join(lines).split())
    assert "NT301 singular_gradient_at_zero the derivative is infinite at exactly zero NT208" in words


def test_a_cause_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "NT2033"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "error: there is no cause 'NT2033'; did you mean NT203 or NT703 or NT603? "
        "`nantrap explain` lists every code and slug\n"
    )
