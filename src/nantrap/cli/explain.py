"""`nantrap explain`: the page of a cause or of a check, or the list of all."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from nantrap.errors import UsageError
from nantrap.incident.checks import DataRule
from nantrap.pages import Page, cause_pages, check_pages, find_page, search
from nantrap.problems.terminal import wrapped

_WIDEST = 100
_NARROWEST = 30
_MORE = "`nantrap explain CODE` shows the page of a cause or a check"


class ExplainCommand:
    """Show what a cause is, code that shows it, why it happens, the fix, and how nantrap proves it.

    CAUSE is a code (NT203) or a slug (softmax_fully_masked_row), as a diagnostic names it, a check of `nantrap doctor`
    (NT851), a rule of `nantrap data` (NT151), or any words: an operation (sqrt) or a symptom (resume, float16 overflow)
    lists the causes that name it. Without one, all are listed by family. Exit code 0; 2 if nothing is found.
    """

    name = "explain"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("cause", nargs="*", metavar="CAUSE", help="a code, a slug or words; without it, all")
        parser.add_argument("--json", action="store_true", help="print it as JSON on stdout")

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the page of a cause or check, the list of all, or those that match the words."""
        pages: Sequence[Page] = (*cause_pages(), *check_pages())
        chosen, heading, wanted = None, "", " ".join(arguments.cause)
        try:
            chosen = find_page(wanted) if wanted else None
        except UsageError:
            pages = search(pages, wanted)
            if not pages:
                raise
            heading = f"causes and checks that mention {wanted!r}, the closest first"
        if chosen is None:
            print(_as_json({"found": [_entry(each) for each in pages]}) if arguments.json else _listed(pages, heading))
        elif isinstance(chosen, DataRule):
            print(_as_json(chosen._asdict()) if arguments.json else chosen.text())
        elif arguments.json:
            print(_as_json(chosen.to_dict()))
        else:
            _show(chosen)
        return 0


def _show(chosen: Page) -> None:
    """On a terminal with headings, colours and lines of its width; as plain text otherwise."""
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    if not console.is_terminal:
        print(chosen.text())
        return
    console.print(Markdown(chosen.markdown(), code_theme="ansi_dark"), width=min(console.width, _WIDEST))


def _listed(found: Sequence[Page], heading: str) -> str:
    """Causes and checks, one line each: all of them by family, or below a heading."""
    widest = max(len(each.slug) for each in found)
    lines, family = [heading] if heading else [], ""
    for each in found:
        if not heading and each.family != family:
            family = each.family
            lines += ["", family] if lines else [family]
        lines += _rows(each, widest)
    return "\n".join([*lines, "", _MORE])


def _rows(each: Page, widest: int) -> list[str]:
    """Code, slug and title; on a terminal that is too narrow, the title continues below itself or below the slug."""
    row = f"  {each.code}  {each.slug:<{widest}}  "
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if width is None or len(row) + len(_title(each)) <= width:
        return [row + _title(each)]
    if width - len(row) < _NARROWEST:
        return [row.rstrip(), *(f"         {line}" for line in wrapped(_title(each), width - 9))]
    first, *rest = wrapped(_title(each), width - len(row))
    return [row + first, *(" " * len(row) + line for line in rest)]


def _title(each: Page) -> str:
    return each.row.title if each.is_cause else each.title[:1].lower() + each.title[1:]


def _entry(each: Page) -> dict[str, str]:
    return {"code": each.code, "slug": each.slug, "title": each.title, "family": each.family}


def _as_json(document: dict[str, Any]) -> str:
    return json.dumps({"schema": "nantrap.explain/1", **document}, indent=2, ensure_ascii=False)
