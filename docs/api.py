"""`make docs`: writes docs/api.md, the public names with their signatures and docstrings. Imports torch.

The page is made for the site and not committed: it says what the code says.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nantrap

PAGE = Path(__file__).parent / "api.md"
_FIRST = ("Guard", "Policy", "Outcome", "Incident", "Cause", "Trial", "Finding", "TensorStats", "CheckpointStore")
_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields|Example|Examples|Note):$")
_ITEM = re.compile(r"^ {4}(\**\w[\w., ]*):\s+(.*)$")


def api_text() -> str:
    """The whole page as Markdown."""
    names = [*_FIRST, *(name for name in nantrap.__all__ if name not in _FIRST and not name.startswith("_"))]
    parts = [
        "# API reference",
        "Every public name of `nantrap`, from its docstring. [Safe operations](ops.md) are `nantrap.ops`.",
    ]
    for name in names:
        found = getattr(nantrap, name)
        if not inspect.ismodule(found):
            parts += _documented(f"nantrap.{name}", found, "##")
    return "\n\n".join(parts) + "\n"


def _documented(name: str, found: Any, heading: str) -> Iterator[str]:
    yield f"{heading} `{name}`"
    if signature := _signature(name, found):
        yield f"```python\n{signature}\n```"
    yield from _docstring(inspect.getdoc(found) or "")
    if not inspect.isclass(found):
        return
    if dataclasses.is_dataclass(found):
        rows = [f"| `{f.name}` | {_default(f)} |" for f in dataclasses.fields(found) if f.name != "extra"]
        yield "\n".join(["| field | default |", "| --- | --- |", *rows])
    for attribute, member in vars(found).items():
        function = getattr(member, "__func__", member)
        if isinstance(member, property):
            yield f"{heading}# `{name}.{attribute}`"
            yield from _docstring(inspect.getdoc(member) or "")
        elif not attribute.startswith("_") and inspect.isfunction(function):
            yield from _documented(f"{name}.{attribute}", function, f"{heading}#")


def _signature(name: str, found: Any) -> str:
    if inspect.isclass(found) and (dataclasses.is_dataclass(found) or issubclass(found, Exception)):
        return ""
    try:
        text = str(inspect.signature(found))
    except (TypeError, ValueError):
        return ""
    short = name.rpartition(".")[2]
    if len(text) < 90:
        return f"{short}{text}"
    inside = re.sub(r", (?=\*?\*?\w+[:=,]|\*,|\*\w)", ",\n    ", text[1 : text.rindex(")")])
    return f"{short}(\n    {inside},\n){text[text.rindex(')') + 1 :]}"


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return f"`{field.default!r}`"
    return "empty" if field.default_factory is not dataclasses.MISSING else "required"


def _docstring(text: str) -> Iterator[str]:
    """Google style as Markdown: sections become lists, examples become code."""
    section, lines = "", []
    for line in [*text.splitlines(), "End:"]:
        match = _SECTION.match(line)
        if match or line == "End:":
            if lines:
                yield _section(section, lines)
            section, lines = match[1] if match else "", []
        else:
            lines.append(line)


def _section(name: str, lines: list[str]) -> str:
    body = "\n".join(lines).strip("\n")
    if not name:
        return body
    if name.startswith("Example"):
        language = "pycon" if ">>>" in body else "python"
        return f"**{name}**\n\n```{language}\n{inspect.cleandoc(chr(10) + body)}\n```"
    items: list[str] = []
    for line in body.splitlines():
        if match := _ITEM.match(line):
            items.append(f"- `{match[1]}`: {match[2]}")
        elif items and line.strip():
            items[-1] += f" {line.strip()}"
        elif line.strip():
            items.append(line.strip())
    return f"**{name}**\n\n" + "\n".join(items)


if __name__ == "__main__":
    PAGE.write_text(api_text(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
