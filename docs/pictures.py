"""The pictures of the documentation, made anew: `make pictures`.

Each system's most telling fault is run as `nantrap demo` runs it, and the losses of its runs are drawn.
"""

from __future__ import annotations

from pathlib import Path

import torch

from nantrap.systems import SYSTEMS, load_system
from nantrap.systems.paper import picture_of
from nantrap.systems.showcase import show

PICTURES = Path(__file__).parent / "pictures"


def main() -> None:
    """Run the five faults and write the pictures."""
    torch.set_num_threads(1)
    PICTURES.mkdir(exist_ok=True)
    for name in SYSTEMS:
        system = load_system(name)
        shown = show(system, system.faults[0], quiet=True)
        (PICTURES / f"{name}.svg").write_text(picture_of(shown), encoding="utf-8")


if __name__ == "__main__":
    main()
