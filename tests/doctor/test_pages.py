"""Every check has a page, and the pages in docs/checks are those of the code."""

from __future__ import annotations

from pathlib import Path

from docs_scripts import docs_script
from nantrap.cli import main
from nantrap.doctor.checks import CONFIGURATION, PAGES, SOURCE
from nantrap.doctor.pages import check_page, check_pages

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_code_has_one_page_and_one_slug() -> None:
    assert sorted(PAGES) == [f"NT{number}" for number in (*range(801, 825), *range(851, 878))]
    for check in (*CONFIGURATION, *SOURCE):
        assert PAGES[check.code][0] == check.slug
    assert len({page.slug for page in check_pages()}) == len(PAGES)


def test_the_pages_in_docs_are_up_to_date() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "checks").glob("*.md")}
    assert written == docs_script("build").rendered_checks(), "run `make docs`"


def test_explain_shows_the_page(capsys) -> None:
    assert main(["explain", "NT851"]) == 0
    shown = capsys.readouterr().out
    page = check_page("isnan-misses-inf")
    assert page is not None
    assert shown == page.text() + "\n"
    assert shown.startswith("NT851 isnan_misses_inf: A loop skips bad steps by isnan, which lets Inf through")
