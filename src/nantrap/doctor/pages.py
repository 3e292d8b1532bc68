"""The pages of the checks: what `nantrap explain NT851` prints and `docs/checks/` holds. Needs no torch.

A page is the docstring of its check in the format of `causes/page_format.py`: a title, what it is, and the sections
Example, Why, Fix and Silent (when the check reports nothing).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from nantrap.causes.page_format import fenced, markdown_text, parse_page, plain_text

SECTIONS: Final = ("example", "why", "fix", "silent")


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
        return plain_text(f"{self.code} {self.slug}: {self.title}", self.what, self._bodies(example=self.example))

    def markdown(self) -> str:
        """The page as Markdown, code in fences."""
        headings = (f"# {self.code}: {self.title}", f"`{self.slug}` · {self.family}")
        return markdown_text(headings, self.what, self._bodies(example=fenced(self.example)))

    def _bodies(self, *, example: str) -> dict[str, str]:
        return {"Example": example, "Why": self.why, "Fix": self.fix, "When it is silent": self.silent}


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
    parsed = parse_page(docstring, slug=slug, sections=SECTIONS)
    return CheckPage(code, slug, parsed.title, parsed.what, **parsed.sections)
