"""Workflow commands: GitHub shows each problem as an annotation, at its line in the pull request if it has one.

The text is escaped so that no name ends its field or begins a command of its own.
"""

from __future__ import annotations

from nantrap.incident.wording import visible
from nantrap.problems.problem import Problem

_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


def annotation(problem: Problem, *, title: str = "") -> str:
    """The workflow command of a problem. Its title is `title`, or the code and what that means."""
    properties = []
    if problem.place.file:
        properties.append(f"file={_property(problem.place.file)}")
        if problem.place.line:
            properties.append(f"line={problem.place.line}")
    properties.append(f"title={_property(title or f'{problem.code} {problem.title}')}")
    message = f"{problem.message}. Fix: {problem.fix}" if problem.fix else problem.message
    return f"::{_COMMANDS[problem.severity]} {','.join(properties)}::{_text(message)}"


def _text(text: str) -> str:
    """The message of a workflow command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """The value of a property of a workflow command: `title=...`."""
    return _text(visible(text)).replace(":", "%3A").replace(",", "%2C")
