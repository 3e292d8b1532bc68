"""The diagnostic in the terminal: rustc's anatomy, one incident at a time, at any width.

`render_incident` lays the words of `report.diagnostics` out in lines. Its plain text is the same with and without
colours, so that it can be tested, logged and searched.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO
from urllib.parse import quote

from nantrap.incident import Incident
from nantrap.incident.wording import counted, is_cell, typed_path, visible
from nantrap.problems.terminal import columns, is_screen, styled, wrapped
from nantrap.report.diagnostics import Diagnostic, Excerpt, diagnostic
from nantrap.report.page_queue import page_is_coming

VERBOSE = "NANTRAP_VERBOSE"
_WIDEST = 120
_ROOMY = 100
"""A narrower terminal has no empty line above the code: the proof then stands in the first ten lines."""
_COMMENT: Final = re.compile(r"(?<=\S)  # [^\"']*$")  # no quotation mark: it is not inside a string
_LONGEST_SOURCE = 400
_STYLES: Mapping[str, str] = {
    "error": "bold red", "headline": "bold", "frame": "blue", "mark": "red", "label": "bold",
    "help": "bold cyan", "added": "green", "removed": "red",
}  # fmt: skip


class LinePart(NamedTuple):
    """A piece of a line: its text, what it is, and the file it leads to."""

    text: str
    role: str = ""
    path: str = ""


Line = list[LinePart]


def render_incident(
    incident: Incident,
    *,
    color: bool | None = False,
    width: int | None = None,
    brief: bool = False,
    here: bool = False,
) -> str:
    """The diagnostic as text.

    Args:
        incident: what to show.
        color: `None` decides by the environment (`NO_COLOR`, a terminal on stderr, a notebook). On a terminal the
            lines then also have its width, and files can be clicked where the terminal can do that.
        width: characters of a line; `None` does not wrap, which suits a pipe or a log file.
        brief: leave out the details: what else was found in the step, the batch, how values grew. The last line says
            where they are.
        here: name files as one would type them in the working folder; always so where `color` is `None`.
    """
    asked = color is None
    on_terminal = asked and is_terminal()
    if color is None:
        color = (on_terminal or is_notebook()) and not os.environ.get("NO_COLOR")
    if width is None and (on_terminal or (asked and is_screen(sys.stderr))):
        width = terminal_width()
    reported = incident.bundle is not None and (
        incident.origin_rank not in (None, incident.rank)  # another rank may still be writing its folder
        or page_is_coming(incident.bundle)
        or os.path.exists(_report_in(incident.bundle))
    )
    said, bundle = diagnostic(incident), incident.bundle
    if asked or here:
        bundle = bundle and typed_path(bundle)
        if said.excerpt is not None:
            said = replace(said, excerpt=replace(said.excerpt, file=typed_path(said.excerpt.file)))
    lines = lay_out(said, width=width, bundle=bundle, reported=reported, brief=brief)
    if not color:
        return "\n".join("".join(segment.text for segment in line).rstrip() for line in lines)
    return _coloured(lines, links=on_terminal and can_link(os.environ))


def wants_details() -> bool:
    """Whether a diagnostic is printed with all its lines: `nantrap run --verbose` sets `NANTRAP_VERBOSE`."""
    return os.environ.get(VERBOSE, "").lower() not in ("", "0", "false", "no", "off")


def lay_out(
    said: Diagnostic, *, width: int | None, bundle: str | None = None, reported: bool = False, brief: bool = False
) -> list[Line]:
    """The lines of a diagnostic: the place, below it the fix, then what is known. `reported`: the bundle has a page."""
    start = f"error[{said.code}]"
    lines = _labelled(LinePart(start, "error"), said.headline, width, role="headline")
    if said.excerpt is not None:
        lines += _excerpt_lines(said.excerpt, width)
    help_ = (brief and said.advice) or said.help
    if help_:
        lines += _labelled(LinePart("help", "help"), help_, width)
        for change in _dedented(said.change, None if width is None else width - 6):
            role = "added" if change.startswith("+") else "removed" if change.startswith("-") else ""
            lines.append([LinePart(f"      {change}", role)])
    notes = [note for note in said.notes if not (brief and note.detail)]
    longest = max((len(note.label) for note in notes), default=0)
    for note in notes:
        indent = 3 + 2 + longest + 2
        texts = wrapped(note.text, None if width is None else width - indent)
        label = LinePart(f"{note.label}:".ljust(longest + 2), "label")
        lines.append([LinePart("   = ", "frame"), label, LinePart(texts[0])])
        lines += [[LinePart(" " * indent + text)] for text in texts[1:]]
    if said.also:
        lines += _labelled(LinePart("also possible", "label"), said.also, width)
    lines += _more(
        said.explain, bundle, width, reported=reported, hidden=len(said.notes) - len(notes) + (help_ != said.help)
    )
    return lines + _fix_test(bundle)


def is_terminal() -> bool:
    """Whether standard error is a terminal, or the user says that it is to be treated as one."""
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_screen(sys.stderr) and os.environ.get("TERM") != "dumb"


def is_notebook() -> bool:
    """Whether this runs in the kernel of a notebook, whose pages show the colours of a terminal."""
    ipython = sys.modules.get("IPython")
    shell = getattr(ipython, "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def terminal_width() -> int:
    """Characters of a line on the terminal of standard error, within limits; `COLUMNS` overrides it."""
    return max(40, min(_WIDEST, columns(sys.stderr)))


def can_link(environment: Mapping[str, str]) -> bool:
    """Whether the terminal is known to show OSC 8 links. Others might print the address as garbage."""
    if "FORCE_HYPERLINK" in environment:
        return environment["FORCE_HYPERLINK"] != "0"
    if environment.get("TERM_PROGRAM") in ("iTerm.app", "WezTerm", "vscode", "ghostty", "Hyper", "mintty", "rio"):
        return True
    if any(name in environment for name in ("WT_SESSION", "KITTY_WINDOW_ID", "KONSOLE_VERSION", "DOMTERM")):
        return True
    if environment.get("TERM", "").startswith(("xterm-kitty", "foot", "alacritty", "xterm-ghostty", "contour")):
        return True
    version = environment.get("VTE_VERSION", "")
    return version.isdigit() and int(version) >= 5000


def _labelled(label: LinePart, text: str, width: int | None, *, role: str = "") -> list[Line]:
    indent = len(label.text) + 2
    texts = wrapped(text, None if width is None else width - indent)
    lines = [[label, LinePart(f": {texts[0]}", role)]]
    return lines + [[LinePart(" " * indent + line, role)] for line in texts[1:]]


def _dedented(change: Sequence[str], width: int | None) -> Sequence[str]:
    """The lines of a diff without shared indentation and comments, where they would be wider than the terminal."""
    if width is None or all(_cells(line) <= width for line in change):
        return change
    change = [_COMMENT.sub("", line) for line in change]
    code = [line for line in change if not line.startswith(("+++", "---", "@@"))]
    if not all(line[:1] in ("+", "-", " ", "") for line in code):
        return change  # code without signs
    rests = [line[1:] for line in code if line[1:].strip()]
    shared = min((len(rest) - len(rest.lstrip()) for rest in rests), default=1) - 1
    return [f"{line[:1]}{line[1 + max(0, shared) :]}" if line in code else line for line in change]


def _report_in(bundle: str) -> str:
    return os.path.join(bundle, "report.html")


def _more(explain: str, bundle: str | None, width: int | None, *, reported: bool, hidden: int) -> list[Line]:
    """Where to read more: the page of the cause and the report, in two lines if one does not fit."""
    parts = [LinePart(explain)]
    if hidden and not (bundle and reported):
        parts[0] = LinePart(f"{explain} · {counted(hidden, 'more line')} with {VERBOSE}=1")
    if bundle:
        place = ("report", _report_in(bundle)) if reported else ("bundle", bundle)
        parts.append(LinePart(f"{place[0]}: {visible(place[1])}", path=place[1]))
    line = [LinePart("more", "label"), LinePart(": ")]
    if len(parts) == 2 and width is not None and sum(len(p.text) for p in (*parts, *line)) + 3 > width:
        return [[*line, parts[0]], [LinePart(" " * 6), parts[1]]]
    for number, part in enumerate(parts):
        line += [LinePart(" · "), part] if number else [part]
    return [line]


def _fix_test(bundle: str | None) -> list[Line]:
    """The command that tests a fix, if the bundle holds what it needs."""
    needed = ("state.safetensors", "batch.safetensors")
    if not bundle or not all(os.path.exists(os.path.join(bundle, name)) for name in needed):
        return []
    command = f"nantrap replay {shlex.quote(visible(bundle))} --entry module:function"
    return [[LinePart("test a fix", "label"), LinePart(f": {command}")]]


def _excerpt_lines(excerpt: Excerpt, width: int | None) -> list[Line]:
    """The source line with its place above it and carets below it; a label that does not fit gets lines of its own."""
    number = str(excerpt.line)
    pad = " " * len(number)
    path = "" if is_cell(excerpt.file) else excerpt.file
    lines = _place_lines(excerpt, path, width)
    if not excerpt.text:
        return lines
    gutter = len(number) + 3
    text, start, end = _cropped(excerpt, (_LONGEST_SOURCE if width is None else width) - gutter)
    if width is None or width >= _ROOMY:
        lines.append([LinePart(f"{pad} |", "frame")])
    lines.append([LinePart(f"{number} | ", "frame"), LinePart(text)])
    blank, carets = " " * _cells(text[:start]), "^" * max(1, _cells(text[start:end]))
    bar = LinePart(f"{pad} | ", "frame")
    if not excerpt.label or width is None or gutter + len(blank) + len(carets) + 1 + len(excerpt.label) <= width:
        lines.append([bar, LinePart(blank + carets + (f" {excerpt.label}" if excerpt.label else ""), "mark")])
        return lines
    lines.append([bar, LinePart(blank + carets, "mark")])
    indent = min(len(blank), max(0, width - gutter - len(excerpt.label)))
    labels = wrapped(excerpt.label, width - gutter - indent)
    return lines + [[bar, LinePart(" " * indent + label, "mark")] for label in labels]


def _place_lines(excerpt: Excerpt, path: str, width: int | None) -> list[Line]:
    """Where it began. In a narrow terminal the function goes to the next line; a path is never broken."""
    start, indent = LinePart("  --> ", "frame"), 6
    if width is None or indent + _cells(excerpt.place) <= width or not excerpt.function:
        return [[start, LinePart(excerpt.place, "frame", path=path)]]
    alone = replace(excerpt, function="", inferred=False).place
    inside = excerpt.place.removeprefix(alone).strip()
    return [[start, LinePart(alone, "frame", path=path)], [LinePart(" " * indent + inside, "frame")]]


def _cropped(excerpt: Excerpt, room: int) -> tuple[str, int, int]:
    """The line and its mark, cut to fit: first the indentation goes, then what is right or left of the mark."""
    text, start, end = excerpt.text, excerpt.start, excerpt.end
    indentation = len(text) - len(text.lstrip())
    if _cells(text) > room and indentation > 4:
        text, start, end = text[indentation - 4 :], start - indentation + 4, end - indentation + 4
    room = max(room, 16)
    if _cells(text) > room and end > room - 3:
        cut = max(0, min(start - 8, end - room + 6))
        text, start, end = "..." + text[cut + 3 :], start - cut, end - cut
    if _cells(text) > room:
        text = text[: room - 3] + "..."
        start, end = min(start, len(text) - 1), min(end, len(text))
    return text, start, end


def _cells(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _coloured(lines: list[Line], *, links: bool) -> str:
    """The lines with colours, and with paths as links where the terminal can open them."""

    def shown(part: LinePart) -> str:
        text = styled(part.text, _STYLES.get(part.role, ""))
        return f"\x1b]8;;{_address(part.path)}\x1b\\{text}\x1b]8;;\x1b\\" if links and part.path else text

    return "\n".join("".join(map(shown, line)).rstrip() for line in lines)


def _address(path: str) -> str:
    """The address of a file for a terminal: with the host, since the terminal may run on another machine."""
    return f"file://{socket.gethostname()}{quote(Path(path).absolute().as_posix())}"


# ---- lines that do not break a progress bar: `tqdm` clears its bar while something is written


def write_line(text: str, stream: TextIO | None = None) -> None:
    """Write a line (or several) to a stream, standard error by default, around any progress bar that is shown there.

    On a terminal, lines that are too long are wrapped at spaces, with a hanging indent.
    """
    out = stream or sys.stderr
    if is_screen(out):
        text = "\n".join(_folded(line, terminal_width()) for line in text.split("\n"))
    with contextlib.ExitStack() as aside:
        for bars in _bars():
            aside.enter_context(bars.external_write_mode(file=out))
        print(text, file=out, flush=True)


def _folded(line: str, width: int) -> str:
    """A long line of words in several; what has colours or an indentation was laid out before."""
    if len(line) <= width or "\x1b" in line or line[:1].isspace():
        return line
    return "\n  ".join(wrapped(line, width - 2, first=width))


def _bars() -> list[Any]:
    """The classes of progress bars that are in use now."""
    std = sys.modules.get("tqdm.std")
    if std is None:
        return []
    classes, waiting = [], [std.tqdm]
    while waiting:
        bar = waiting.pop()
        waiting += bar.__subclasses__()
        if len(vars(bar).get("_instances", ())):
            classes.append(bar)
    return classes
