"""One meaning for each word: a class name exists once, and what the pages for readers name is there."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRODUCT = ROOT / "src" / "nantrap"
ADAPTERS = {"Guard": {"guard/guard.py", "lightning.py", "transformers.py"}}
"""Names that exist more than once on purpose: each framework has its own `Guard`, called by the framework's name."""
READERS = [ROOT / "docs" / "architecture.md", *sorted(PRODUCT.rglob("README.md"))]


def public_classes(folder: Path) -> dict[str, set[str]]:
    """The files of each public class at the top of a module, by its name."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in folder.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(path.relative_to(folder).as_posix())
    return found


def test_a_public_class_name_exists_once() -> None:
    twice = {name: files for name, files in public_classes(PRODUCT).items() if len(files) > 1}
    assert twice == ADAPTERS


def test_a_name_that_exists_twice_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class Row: ...\nclass _Own: ...\n", encoding="utf-8")
    (tmp_path / "b.py").write_text("class Row: ...\nclass _Own: ...\n", encoding="utf-8")
    assert public_classes(tmp_path) == {"Row": {"a.py", "b.py"}}


@pytest.mark.parametrize("page", READERS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    base = PRODUCT if page.parent.name == "docs" else page.parent
    named = re.findall(r"`([\w/]+(?:\.py|/))`", page.read_text(encoding="utf-8"))
    assert named
    places = (base, PRODUCT, ROOT, ROOT / "src")
    missing = [n for n in named if not any((place / n).exists() for place in places) and not [*base.rglob(n)]]
    assert not missing


@pytest.mark.parametrize("folder", sorted({path.parent for path in PRODUCT.rglob("*.py")}), ids=lambda path: path.name)
def test_a_large_folder_says_in_which_order_to_read_it(folder: Path) -> None:
    modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert len(modules) <= 10 or (folder / "README.md").exists()
