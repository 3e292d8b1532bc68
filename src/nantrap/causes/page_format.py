"""The light format in which a docstring is a page, and how such a page is printed. Needs no torch.

    Title, one line.

    What it is, in a few sentences.

    Example:
        code

    Why:
        prose
    Fix:
        prose; what is indented further is code, as a diff where its lines begin with - and +

            - before
            + after

The causes (`causes/pages.py`) and the checks of `nantrap doctor` (`doctor/pages.py`) are written in it; they differ
only in the names of their sections.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nantrap.errors import UsageError


class Parsed(NamedTuple):
    """A docstring, cut into its parts. `sections` are in the order of the docstring, by lower-case name."""

    title: str
    what: str
    sections: dict[str, str]


def parse_page(docstring: str, *, slug: str, sections: Sequence[str]) -> Parsed:
    """Cut a docstring into title, introduction and sections.

    Args:
        docstring: the page.
        slug: whose page it is, for the message of a failure.
        sections: the lower-case names of the sections that it must have, in this order.

    Raises:
        UsageError: There is no docstring: Python runs with -OO.
    """
    if not docstring:
        raise UsageError("the pages are docstrings, which `python -OO` removes; run it without -OO")
    heading = rf"^({'|'.join(sections)}):$"
    head, *rest = re.split(heading, inspect.cleandoc(docstring), flags=re.IGNORECASE | re.MULTILINE)
    title, _, what = head.partition("\n")
    found = {
        name.lower(): textwrap.dedent(body.strip("\n")).rstrip()
        for name, body in zip(rest[::2], rest[1::2], strict=True)
    }
    assert tuple(found) == tuple(sections), f"the page of {slug} has the sections {', '.join(found) or 'none'}"
    return Parsed(title.strip().removesuffix("."), what.strip(), found)


def plain_text(heading: str, what: str, sections: Mapping[str, str]) -> str:
    """A page as it reads in a terminal; `sections` are the bodies by title."""
    parts = [heading, what, *(f"{title}:\n{textwrap.indent(body, '    ')}" for title, body in sections.items())]
    return "\n\n".join(parts)


def markdown_text(headings: Sequence[str], what: str, sections: Mapping[str, str]) -> str:
    """A page as Markdown, code in fences.

    Args:
        headings: the first paragraphs.
        what: the introduction.
        sections: the bodies by title. A body that is code as a whole (an example) is given in a fence already.
    """
    parts = [*headings, what]
    for title, body in sections.items():
        parts += [f"## {title}", *([body] if body.startswith("```") else map(_block, _blocks(body)))]
    return "\n\n".join(parts) + "\n"


def fenced(code: str, language: str = "") -> str:
    """Code in a Markdown fence, with its language guessed unless given."""
    return f"```{language or _language(code)}\n{code}\n```"


def _blocks(body: str) -> list[str]:
    """Paragraphs and code; code blocks that follow each other stay separate."""
    return [block for block in re.split(r"\n\s*\n", body) if block.strip()]


def _block(block: str) -> str:
    return fenced(textwrap.dedent(block)) if block.startswith("    ") else block


def _language(code: str) -> str:
    if any(line[:2] in ("- ", "+ ") for line in code.splitlines()):
        return "diff"
    if code.startswith(("nvidia-smi", "nantrap ")):
        return "sh"
    if re.match(r"\s*[\w.]+: ", code) or (code.startswith("#") and ": " in code and "=" not in code):
        return "yaml"
    return "json" if code.startswith(("{", '"')) else "python"
