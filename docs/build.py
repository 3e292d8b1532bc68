"""`make docs`: writes docs/causes/ and docs/checks/, from docstrings. Needs no torch.

The pages are committed, so that they can be read where the code is; a test says when they are out of date.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

from nantrap.causes import Page, pages
from nantrap.doctor.pages import CheckPage, check_pages

CAUSES = Path(__file__).parent / "causes"
CHECKS = Path(__file__).parent / "checks"

_NOTE = "<!-- Written by docs/build.py from the docstring of the rule. Edit it there, then run `make docs`. -->\n\n"
_CHECKS = """# Checks

What `nantrap doctor` looks for in settings and in source code. `nantrap explain NT851` prints a page, and
`nantrap.explain("NT851")` returns it. How often each check was right on public repositories:
[doctor-precision](../doctor-precision.md).
"""
_INTRODUCTION = """# Causes

Every diagnosis of nantrap has a stable code. `nantrap explain NT203` prints its page and `nantrap.explain("NT203")`
returns it. Each example is run by a test, which makes sure that nantrap calls it what its page says.
"""


def rendered() -> dict[str, str]:
    """Every file of docs/causes/ by name, as it should be."""
    return _folder(pages(), _INTRODUCTION)


def rendered_checks() -> dict[str, str]:
    """Every file of docs/checks/ by name, as it should be."""
    return _folder(check_pages(), _CHECKS)


def _folder(found: Sequence[Page | CheckPage], introduction: str) -> dict[str, str]:
    files = {f"{page.code}.md": _NOTE + page.markdown() for page in found}
    index = [introduction]
    for family, members in itertools.groupby(found, key=lambda page: page.family):
        rows = [f"| [{page.code}]({page.code}.md) | `{page.slug}` | {page.title} |" for page in members]
        index.append(
            "\n".join([f"## {family.capitalize()}\n", "| code | slug | what it is |", "| --- | --- | --- |", *rows, ""])
        )
    files["index.md"] = _NOTE + "\n".join(index)
    return files


def main() -> int:
    """Write what changed, remove pages that no longer exist."""
    for folder, files in ((CAUSES, rendered()), (CHECKS, rendered_checks())):
        folder.mkdir(exist_ok=True)
        for stale in {path.name for path in folder.glob("*.md")} - files.keys():
            (folder / stale).unlink()
        for name, text in files.items():
            path = folder / name
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{len(files)} pages in {folder}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
