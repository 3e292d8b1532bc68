"""The cases in this folder: small files as people write them, and what the doctor should say about them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

_HEADER = re.compile(r"### (NT\d+) (fires (high|medium|low)|silent): (.+)")


@dataclass
class Case:
    """`risk` is None if the check must say nothing."""

    code: str
    risk: str | None
    name: str
    files: dict[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Put the files into a folder."""
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def __str__(self) -> str:
        return f"{self.code} {self.risk or 'silent'}: {self.name}"


def read_cases(folder: Path) -> list[Case]:
    """Every case of every file in a folder."""
    cases: list[Case] = []
    for path in sorted(folder.glob("*.txt")):
        file = ""
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            header = _HEADER.match(line)
            if header is not None:
                cases.append(Case(header.group(1), header.group(3), header.group(4)))
            elif line.startswith("--- "):
                file = line[4:].strip()
                cases[-1].files[file] = ""
            elif cases:
                cases[-1].files[file] += line
    return cases
