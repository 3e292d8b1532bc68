"""One page: a Markdown file of this folder with the row of its code, as text, as Markdown and as JSON.

    # NT203

    What it is, in a few sentences.

    ## Example
    ## Why
    ## Fix
    ## Proof                  of a cause; a check of `nantrap doctor` says `## When it is silent`

The title, the slug and the family stand in the tables of `incident/codes.py` and `incident/checks.py`. Code stands in
fences; as text it is indented.

The example of a cause defines `model`, `optimizer`, `batches`, `loss_fn(batch)` and, where the cause needs more than a
plain guard, `guard`. The page shows it as a program that runs as it is: see `Page.program`. A test runs it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Final

from nantrap.incident.checks import CHECKS, CheckCode
from nantrap.incident.codes import BY_CODE, Code

SECTIONS: Final = MappingProxyType(
    {"Example": "example", "Why": "why", "Fix": "fix", "Proof": "proof", "When it is silent": "silent"}
)
"""The headings of a page, and what each section is called in JSON."""
_FENCE: Final = "```"
_LOOP: Final = ("for batch in batches:", "    if guard.attempt(loss_fn, batch).incident:", "        break")


@dataclass(frozen=True, slots=True)
class Page:
    """A cause or a check, explained.

    Attributes:
        row: its row in the table of causes or of checks.
        what: what it is.
        sections: the rest of the page by the names of `SECTIONS`. Code is indented; the example is code alone.
        markdown_sections: the same by heading, as they are written in the file.
    """

    row: Code | CheckCode
    what: str
    sections: dict[str, str]
    markdown_sections: dict[str, str]

    @property
    def code(self) -> str:
        """`NT203`."""
        return self.row.code

    @property
    def slug(self) -> str:
        """`softmax_fully_masked_row`."""
        return self.row.slug

    @property
    def title(self) -> str:
        """The title, as a heading."""
        title = self.row.title
        return title[:1].upper() + title[1:] if self.is_cause else title

    @property
    def family(self) -> str:
        """`forward maths` for `NT203`."""
        return self.row.family

    @property
    def is_cause(self) -> bool:
        """Whether the page explains a cause of a failed step, not a check."""
        return isinstance(self.row, Code)

    @property
    def example(self) -> str:
        """The code that shows it."""
        return self.sections["example"]

    @property
    def program(self) -> str:
        """The example as it is shown: of a check as it is; of a cause a program that runs.

        The program makes the same random numbers each time, and has a guarded loop over its batches.
        """
        if not self.is_cause:
            return self.example
        lines = self.example.splitlines()
        last = max(index for index, line in enumerate(lines) if line.startswith(("import ", "from ")))
        imports, body = lines[: last + 1], lines[last + 1 :]
        if "import nantrap" not in imports:
            imports.append("import nantrap")
        if "torch.manual_seed(0)" not in body:
            body[1:1] = ["torch.manual_seed(0)", *([""] if body[1].startswith(("def", "class", "@")) else [])]
        if not any(line.startswith("guard = ") for line in body):
            body += ["", "guard = nantrap.Guard(model, optimizer)"]
        elif body[-1].startswith(" "):
            body.append("")
        return "\n".join([*imports, *body, *_LOOP])

    def text(self) -> str:
        """The page as plain text, as it reads in a terminal."""
        parts = [f"{self.code} {self.slug}: {self.title}", self.what]
        for heading in self.markdown_sections:
            body = self.program if heading == "Example" else self.sections[SECTIONS[heading]]
            parts.append(f"{heading}:\n{textwrap.indent(body, '    ')}")
        return "\n\n".join(parts)

    def markdown(self, *, output: str = "") -> str:
        """The page as Markdown, code in fences.

        Args:
            output: what the program prints; shown below it.
        """
        parts = [f"# {self.code}: {self.title}", f"`{self.slug}` · {self.family}", self.what]
        for heading, body in self.markdown_sections.items():
            shown = body.replace(self.example, self.program) if heading == "Example" else body
            parts += [f"## {heading}", shown]
            if heading == "Example" and output:
                parts.append(f"It prints:\n\n{_FENCE}text\n{output}\n{_FENCE}")
        return "\n\n".join(parts) + "\n"

    def to_dict(self) -> dict[str, str]:
        """The page as `nantrap explain --json` prints it."""
        head = {"code": self.code, "slug": self.slug, "title": self.title, "what": self.what}
        return {**head, **self.sections, "example": self.program, "family": self.family}


def cause_pages() -> tuple[Page, ...]:
    """The pages of all causes, by code."""
    return tuple(read_page(row) for row in BY_CODE.values())


def check_pages() -> tuple[Page, ...]:
    """The pages of all checks of `nantrap doctor`, by code."""
    return tuple(read_page(row) for row in CHECKS)


def read_page(row: Code | CheckCode) -> Page:
    """The page of one row of the tables."""
    text = (files("nantrap.pages") / f"{row.code}.md").read_text(encoding="utf-8")
    parts = dict(_parts(text))
    what = parts.pop(row.code)
    last = "Proof" if isinstance(row, Code) else "When it is silent"
    assert tuple(parts) == ("Example", "Why", "Fix", last), (
        f"the page of {row.code} has the sections {', '.join(parts)}"
    )
    sections = {SECTIONS[heading]: _indented(body) for heading, body in parts.items()}
    sections["example"] = textwrap.dedent(sections["example"])
    return Page(row, what, sections, parts)


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """The headings of a page and what stands below each. A `#` inside a fence is a comment."""
    heading, body, fenced = "", list[str](), False
    for line in text.splitlines():
        fenced ^= line.startswith(_FENCE)
        if line.startswith(("# ", "## ")) and not fenced:
            if heading:
                yield heading, "\n".join(body).strip("\n")
            heading, body = line.lstrip("# "), []
        else:
            body.append(line)
    yield heading, "\n".join(body).strip("\n")


def _indented(markdown: str) -> str:
    """Markdown as plain text: code is indented and loses its fences."""
    lines, fenced = list[str](), False
    for line in markdown.splitlines():
        if line.startswith(_FENCE):
            fenced = not fenced
        else:
            lines.append(f"    {line}" if fenced and line else line)
    return "\n".join(lines)
