"""The documentation: every page is in the navigation, every link leads somewhere, the API page is complete."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import pytest

import nantrap
from docs_scripts import docs_script

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli", reason="reading TOML on Python 3.10 needs tomli")

DOCS = Path(__file__).parents[2] / "docs"
SYSTEMS = DOCS.parent / "systems" / "docs"
SOURCE = DOCS.parent / "src" / "nantrap"
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def test_every_page_is_in_the_navigation_once() -> None:
    site = docs_script("site")
    named = list(site.pages_in(tomllib.loads(site.configuration())["project"]["nav"]))
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} | {"api.md"}
    there |= {f"systems/{path.name}" for path in SYSTEMS.glob("*.md")}
    assert len(named) == len(set(named))
    assert set(named) == there


def test_the_list_of_pages_has_every_page() -> None:
    site = docs_script("site")
    listed = set(re.findall(r"\(([^)]+)\.html\)", site.page_list()))
    assert {f"{page}.md" for page in listed} == set(
        site.pages_in(tomllib.loads(site.configuration())["project"]["nav"])
    )


@pytest.mark.parametrize("page", ["architecture.md", "adding-a-reader.md", "scale.md"])
def test_every_file_that_a_page_names_exists(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    folders = [DOCS.parent, SOURCE, SOURCE / "doctor" / "data"]
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.py)`", text))
    assert named
    assert [name for name in sorted(named) if not any((folder / name).is_file() for folder in folders)] == []


def test_the_site_can_be_searched_without_a_server(tmp_path: Path) -> None:
    """A page that is opened as a file may neither fetch the index of the search nor start a worker."""
    site = docs_script("site")
    settings = tomllib.loads(site.configuration())["project"]
    assert not settings["use_directory_urls"]
    assert all((DOCS / script).is_file() for script in settings["extra_javascript"])
    (tmp_path / "search.json").write_text('{"items":[]}', encoding="utf-8")
    assert site.write_search(tmp_path).read_text(encoding="utf-8") == 'var __index = {"items":[]};\n'


def test_the_links_of_the_front_door_lead_somewhere() -> None:
    links = LINK.findall((DOCS / "index.md").read_text(encoding="utf-8"))
    assert len(links) > 30
    assert [link for link in links if "://" in link or not (DOCS / link).is_file()] == []


def test_the_links_between_pages_lead_to_pages() -> None:
    broken = []
    for page in [*DOCS.rglob("*.md"), *SYSTEMS.glob("*.md"), *SYSTEMS.parent.glob("*.md"), *DOCS.parent.glob("*.md")]:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for link in LINK.findall(text):
            target, _, _ = link.partition("#")
            if target and "://" not in target and not target.startswith("mailto:"):
                found = (page.parent / target).resolve()
                on_site = {DOCS, SYSTEMS}
                inside = on_site.isdisjoint(page.parents) or not on_site.isdisjoint(found.parents)
                if not (found.exists() and (inside or not target.endswith(".md"))):
                    broken.append(f"{page.relative_to(DOCS.parent)}: {link}")
    assert broken == []


def test_the_pages_of_both_distributions_are_gathered_with_their_links(tmp_path: Path) -> None:
    docs_script("site").gather_pages(tmp_path / "docs")
    assert "](../systems/temi.md)" in (tmp_path / "docs" / "commands" / "demo.md").read_text(encoding="utf-8")
    assert "](systems/temi.md)" in (tmp_path / "docs" / "before-training.md").read_text(encoding="utf-8")
    assert (tmp_path / "docs" / "systems" / "pictures" / "temi.svg").is_file()


def test_nearly_every_cause_is_in_the_index_of_symptoms() -> None:
    linked = set(re.findall(r"causes/(NT\d+)\.md", (DOCS / "index.md").read_text(encoding="utf-8")))
    causes = {path.stem for path in (DOCS / "causes").glob("NT*.md")} - {"NT000"}
    assert len(causes - linked) <= 5, f"give these a symptom in docs/index.md: {sorted(causes - linked)}"


def test_the_api_page_has_every_name_and_every_field_of_the_policy() -> None:
    text = docs_script("api").api_text()
    for name in nantrap.__all__:
        if not name.startswith("_") and name != "ops":
            assert f"## `nantrap.{name}`" in text, name
    section = text.partition("## `nantrap.Policy`")[2].partition("\n## ")[0]
    for field in dataclasses.fields(nantrap.Policy):
        assert f"\n- `{field.name}`: " in section, f"{field.name} has no line in the docstring of Policy"
        assert f"| `{field.name}` | " in section
