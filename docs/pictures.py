"""The pictures of the documentation, made anew: `make pictures`.

Each system's most telling fault is run as `nantrap demo` runs it, and the losses of its runs are drawn. The diagnostic
of one of them becomes the picture at the top of the README.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from nantrap.report import render_incident
from nantrap.systems import SYSTEMS, load_system
from nantrap.systems.paper import picture_of
from nantrap.systems.showcase import Showcase, show

DOCS = Path(__file__).parent
ON_THE_FIRST_PAGE = "pixeldlm"
_TERMINAL = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: {char_height}px;
  line-height: {line_height}px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def main() -> None:
    """Run the five faults and write the pictures."""
    torch.set_num_threads(1)
    folder = DOCS / "pictures"
    folder.mkdir(exist_ok=True)
    for name in SYSTEMS:
        system = load_system(name)
        with tempfile.TemporaryDirectory() as run_dir:
            shown = show(system, system.faults[0], run_dir=Path(run_dir), quiet=True)
        (folder / f"{name}.svg").write_text(picture_of(shown), encoding="utf-8")
        if name == ON_THE_FIRST_PAGE:
            (folder / "diagnostic.svg").write_text(_terminal(shown), encoding="utf-8")


def _terminal(shown: Showcase) -> str:
    """The diagnostic as it stands in a terminal, without the places of this machine."""
    assert shown.incident is not None
    text = render_incident(shown.incident, color=True, width=110)
    text = text.replace(f"{DOCS.parent}/", "").partition(" · bundle: ")[0]
    console = Console(record=True, width=110, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(Text.from_ansi(text))
    return console.export_svg(title="nantrap", theme=MONOKAI, code_format=_TERMINAL, unique_id="nantrap")


if __name__ == "__main__":
    main()
