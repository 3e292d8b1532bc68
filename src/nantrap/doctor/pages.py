"""The pages of the checks: what `nantrap explain NT851` prints and `docs/checks/` holds. Needs no torch.

A page is the docstring of its check: a title, what it is, and the sections Example, Why, Fix and Silent (when the check
says nothing). What is indented further is code.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from dataclasses import dataclass
from typing import Final

from nantrap.errors import UsageError

SECTIONS: Final = ("example", "why", "fix", "silent")
_HEADING: Final = re.compile(rf"^({'|'.join(SECTIONS)}):$", flags=re.IGNORECASE | re.MULTILINE)
_TITLES: Final = {"example": "Example", "why": "Why", "fix": "Fix", "silent": "When it is silent"}


@dataclass(frozen=True, slots=True)
class CheckPage:
    """One check, explained."""

    code: str
    slug: str
    title: str
    what: str
    example: str
    why: str
    fix: str
    silent: str

    @property
    def family(self) -> str:
        """`configuration` or `source code`."""
        return "configuration" if self.code < "NT850" else "source code"

    def text(self) -> str:
        """The page as plain text, as it reads in a terminal."""
        parts = [f"{self.code} {self.slug}: {self.title}", self.what]
        parts += [f"{_TITLES[name]}:\n{textwrap.indent(getattr(self, name), '    ')}" for name in SECTIONS]
        return "\n\n".join(parts)

    def markdown(self) -> str:
        """The page as Markdown, code in fences."""
        parts = [f"# {self.code}: {self.title}", f"`{self.slug}` · {self.family}", self.what]
        parts += ["## Example", _fenced(self.example)]
        for name in SECTIONS[1:]:
            blocks = [block for block in re.split(r"\n\s*\n", getattr(self, name)) if block.strip()]
            parts += [f"## {_TITLES[name]}"]
            parts += [_fenced(textwrap.dedent(block)) if block.startswith("    ") else block for block in blocks]
        return "\n\n".join(parts) + "\n"


def check_page(code_or_slug: str) -> CheckPage | None:
    """The page of a check, or None if there is no such check."""
    wanted = code_or_slug.strip().upper()
    slug = code_or_slug.strip().lower().replace("-", "_")
    return next((page for page in check_pages() if wanted == page.code or slug == page.slug), None)


def check_pages() -> tuple[CheckPage, ...]:
    """Every page, by code."""
    from nantrap.doctor.checks import PAGES

    return tuple(_parsed(code, *PAGES[code]) for code in sorted(PAGES))


def _parsed(code: str, slug: str, docstring: str) -> CheckPage:
    if not docstring:
        raise UsageError("the pages are docstrings, which `python -OO` removes; run it without -OO")
    head, *rest = _HEADING.split(inspect.cleandoc(docstring))
    title, _, what = head.partition("\n")
    found = {
        name.lower(): textwrap.dedent(body.strip("\n")).rstrip()
        for name, body in zip(rest[::2], rest[1::2], strict=True)
    }
    assert tuple(found) == SECTIONS, f"the page of {slug} has the sections {', '.join(found) or 'none'}"
    return CheckPage(code, slug, title.strip().removesuffix("."), what.strip(), **found)


def _fenced(code: str) -> str:
    lines = code.splitlines()
    if any(line[:2] in ("- ", "+ ") for line in lines):
        return f"```diff\n{code}\n```"
    if re.match(r"\s*[\w.]+: ", code) or (code.startswith("#") and ": " in code and "=" not in code):
        return f"```yaml\n{code}\n```"
    return f"```{'json' if code.startswith(('{', chr(34))) else 'python'}\n{code}\n```"
