"""Record the terminal of the announcement page: the same script plain and under `nantrap run`, as text and as SVG.

python docs/announcement.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

DOCS = Path(__file__).parent
PAGE = DOCS / "announcement.md"
PICTURE = DOCS / "pictures" / "announcement.svg"
SCRIPT = ["nantrap_systems.pixeldlm.train", "--fault", "short_text", "--steps", "30"]
COMMANDS = {
    "python -m " + " ".join(SCRIPT): [sys.executable, "-m", *SCRIPT],
    "nantrap run -m " + " ".join(SCRIPT): [
        sys.executable, "-m", "nantrap", "run", "--run-dir", "runs/announcement", "-m", *SCRIPT,
    ],
}  # fmt: skip
_WIDTH = 112


def recorded() -> Text:
    """What the terminal shows: each command, and what it prints."""
    environment = {key: value for key, value in os.environ.items() if key not in ("NANTRAP_VERBOSE", "NO_COLOR")}
    environment |= {"COLUMNS": str(_WIDTH), "OMP_NUM_THREADS": "1", "FORCE_COLOR": "1"}
    shown = []
    for typed, command in COMMANDS.items():
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                encoding="utf-8", timeout=300, check=False,
            )  # fmt: skip
        shown += [f"$ {typed}", *_kept(done.stdout.replace(f"{DOCS.parent}/", ""))]
    return Text.from_ansi("\n".join(shown))


def _kept(output: str) -> Iterator[str]:
    """The lines without the speed of this machine; of a progress line, which is written over and over, its end."""
    for line in output.splitlines():
        last = re.sub(r", [\d.]+ it/s", "", line.rsplit("\r", 1)[-1])
        progress = re.search(r"step (\d+)/(\d+)", last)
        if progress is None or progress[1] == progress[2]:
            yield last


def write(page: Path = PAGE, picture: Path = PICTURE) -> None:
    """Put the text into the page, and the picture next to it."""
    shown = recorded()
    before, _, rest = page.read_text(encoding="utf-8").partition("```text\n")
    page.write_text(f"{before}```text\n{shown.plain}\n```{rest.partition('```')[2]}", encoding="utf-8")
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=_WIDTH, file=nowhere, force_terminal=True)
        console.print(shown)
        drawn = console.export_svg(title="from loss=nan to the fix", unique_id="nantrap")
    drawn = re.sub(r"@font-face \{.*?\}|<!--.*?-->", "", drawn, flags=re.DOTALL)  # nothing comes from the network
    picture.write_text(re.sub(r"[ \t]+\n|\n\s*\n", "\n", drawn), encoding="utf-8")


if __name__ == "__main__":
    write()
