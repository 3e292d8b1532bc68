"""`make docs`: writes zensical.toml, the settings of the site: a page for everything, nothing from the network.

    python docs/site.py            # the settings, and the pages in build/docs: those of docs/ and of systems/docs
    python docs/site.py --search   # after the build: the index of the search as a script

Pages that are opened as files may not fetch the index of the search, nor start the worker that reads it. The index is
therefore also written as a script, which the theme loads there, and `file_worker.js` takes the place of the worker.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from nantrap.cli import COMMANDS

DOCS = Path(__file__).parent
SYSTEMS = DOCS.parent / "systems" / "docs"
GATHERED = DOCS.parent / "build" / "docs"
CONFIGURATION = DOCS.parent / "zensical.toml"
_GUIDES = (
    "announcement",
    "guard",
    "frameworks",
    "checkpoints",
    "ops",
    "exporters",
    "inject",
    "before-training",
    "pytest",
    "json",
    "security",
    "compatibility",
    "benchmarks",
    "zoo",
    "doctor-precision",
    "limits",
    "scale",
)
_INSIDE = ("architecture", "adding-a-reader")
_HEAD = """# Written by docs/site.py; run `make docs`.
[project]
site_name = "nantrap"
site_description = "Stops NaN and Inf before they reach the weights, names the guilty operation, proves the cause."
docs_dir = "build/docs"
site_dir = "build/site"
use_directory_urls = false
extra_javascript = ["file_worker.js"]
"""
_TAIL = """
[project.theme]
font = false
features = ["navigation.indexes", "navigation.top", "search.highlight", "content.code.copy"]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
"""


def configuration() -> str:
    """The settings, with every page in the navigation."""
    return f"{_HEAD}nav = {_toml(_navigation())}\n{_TAIL}"


def _navigation() -> list[dict[str, object]]:
    """The groups of pages."""
    return [
        {"Start here": "index.md"},
        {"Commands": list(_present("commands", COMMANDS))},
        {"Guides": list(_present("", _GUIDES))},
        {"Causes": ["causes/index.md", *_codes("causes")]},
        {"Checks": ["checks/index.md", *_codes("checks")]},
        {"Systems": [f"systems/{path.name}" for path in sorted(SYSTEMS.glob("*.md"))]},
        {"API": "api.md"},
        {"Inside": [*_present("", _INSIDE), *_others()]},
    ]


def pages_in(navigation: object) -> Iterator[str]:
    """Every page that a navigation names."""
    if isinstance(navigation, str):
        yield navigation
    elif isinstance(navigation, dict):
        for entry in navigation.values():
            yield from pages_in(entry)
    elif isinstance(navigation, list):
        for entry in navigation:
            yield from pages_in(entry)


def _present(folder: str, names: tuple[str, ...]) -> Iterator[str]:
    first = [name for name in names if (DOCS / folder / f"{name}.md").exists()]
    rest = sorted(path.stem for path in (DOCS / folder).glob("*.md")) if folder else []
    for name in dict.fromkeys([*first, *rest]):
        yield f"{folder}/{name}.md" if folder else f"{name}.md"


def _codes(folder: str) -> list[str]:
    return [f"{folder}/{path.name}" for path in sorted((DOCS / folder).glob("NT*.md"))]


def _others() -> list[str]:
    """Pages that are in no list above: they are in the navigation, too."""
    known = {"index", "api", *_GUIDES, *_INSIDE}
    return [path.name for path in sorted(DOCS.glob("*.md")) if path.stem not in known]


def _toml(value: object) -> str:
    """Inline TOML for strings, lists and tables of one key."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(entry)}" for key, entry in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(entry) for entry in value) + "]"
    return json.dumps(value)


def gather_pages(folder: Path) -> None:
    """Copy the pages into one folder, those of the systems into `systems/`, with the links between the two."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for page in folder.rglob("*.md"):
        text = page.read_text(encoding="utf-8").replace("../systems/docs/", "systems/")
        page.write_text(text, encoding="utf-8")
    shutil.copytree(SYSTEMS, folder / "systems", ignore=shutil.ignore_patterns("*.py", "__pycache__"))


def page_list() -> str:
    """`llms.txt`: every page with its title, for programs that read the site."""
    lines = [
        "# nantrap",
        "",
        "> Stops NaN and Inf in PyTorch training before they reach the weights, names the guilty operation,",
    ]
    lines += ["> proves the cause by running the failed step again, and keeps the run alive.", ""]
    for group in _navigation():
        ((title, pages),) = group.items()
        lines += [f"## {title}", ""]
        for page in pages_in(pages):
            source = SYSTEMS / page.removeprefix("systems/") if page.startswith("systems/") else DOCS / page
            first = source.read_text(encoding="utf-8").partition("\n")[0] if source.exists() else f"# {page}"
            lines.append(f"- [{first.lstrip('# ').strip('`')}]({page.removesuffix('.md')}.html)")
        lines.append("")
    return "\n".join(lines)


def write_search(site: Path) -> Path:
    """The index of the search of a built site as a script next to it."""
    script = site / "search.js"
    script.write_text(f"var __index = {(site / 'search.json').read_text(encoding='utf-8')};\n", encoding="utf-8")
    return script


if __name__ == "__main__":
    if "--search" in sys.argv[1:]:
        sys.stdout.write(f"{write_search(DOCS.parent / 'build' / 'site')}\n")
    else:
        gather_pages(GATHERED)
        (GATHERED / "llms.txt").write_text(page_list(), encoding="utf-8")
        CONFIGURATION.write_text(configuration(), encoding="utf-8")
        sys.stdout.write(f"{CONFIGURATION}\n")
