"""`make docs`: writes docs/causes/, one page a cause and an index, from the docstrings of the rules. Needs no torch.

The pages are committed, so that they can be read where the code is; a test says when they are out of date.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from nantrap.causes import pages

CAUSES = Path(__file__).parent / "causes"

_NOTE = "<!-- Written by docs/build.py from the docstring of the rule. Edit it there, then run `make docs`. -->\n\n"
_INTRODUCTION = """# Causes

Every diagnosis of nantrap has a stable code. `nantrap explain NT203` prints its page and `nantrap.explain("NT203")`
returns it. Each example is run by a test, which makes sure that nantrap calls it what its page says.
"""


def rendered() -> dict[str, str]:
    """Every file of docs/causes/ by name, as it should be."""
    files = {f"{page.code}.md": _NOTE + page.markdown() for page in pages()}
    index = [_INTRODUCTION]
    for family, members in itertools.groupby(pages(), key=lambda page: page.family):
        rows = [f"| [{page.code}]({page.code}.md) | `{page.slug}` | {page.title} |" for page in members]
        index.append(
            "\n".join([f"## {family.capitalize()}\n", "| code | slug | what it is |", "| --- | --- | --- |", *rows, ""])
        )
    files["index.md"] = _NOTE + "\n".join(index)
    return files


def main() -> int:
    """Write what changed, remove pages of causes that no longer exist."""
    CAUSES.mkdir(exist_ok=True)
    files = rendered()
    for stale in {path.name for path in CAUSES.glob("*.md")} - files.keys():
        (CAUSES / stale).unlink()
    for name, text in files.items():
        path = CAUSES / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{len(files)} pages in {CAUSES}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
