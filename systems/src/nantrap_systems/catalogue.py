"""All systems and faults in one table, which opens without torch: what `nantrap demo` lists.

The table is a file, `catalogue.json`. `python -m nantrap_systems.catalogue` writes it from the systems themselves,
and a test sees that the two are the same.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nantrap_systems import SYSTEMS, load_system

if TYPE_CHECKING:
    from nantrap_systems.system import System

FILE: Final = Path(__file__).with_name("catalogue.json")


def read_catalogue() -> list[dict[str, Any]]:
    """The table: a system an entry, with its faults; `cause` is `None` where the guard names none."""
    entries: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return entries


def make_catalogue() -> list[dict[str, Any]]:
    """The same, made from the systems."""
    return [_entry(load_system(name)) for name in SYSTEMS]


REPORTERS: Final = {
    "guard": "the guard, prevented or as a clear error",
    "summary": "the summary of `nantrap run`",
    "resume check": "the resume check",
    "doctor": "`nantrap doctor`",
    "data check": "`nantrap data`",
    None: "nobody",
}
"""What reports a fault without a cause, by `Fault.reported_by`."""


def summary(entries: list[dict[str, Any]]) -> str:
    """How many faults there are, how many have a cause that the guard names, and what reports the others."""
    faults = [fault for entry in entries for fault in entry["faults"]]
    others = Counter(fault["reported_by"] for fault in faults if fault["cause"] is None)
    told = "; ".join(f"{words}: {others[name]}" for name, words in REPORTERS.items() if others[name])
    named = len(faults) - others.total()
    return (
        f"{len(faults)} faults. The guard names the cause of {named}. What reports the other {others.total()}: {told}."
    )


def _entry(system: System) -> dict[str, Any]:
    """A system and its faults as plain data."""
    faults = [
        {
            "name": fault.name,
            "title": fault.title,
            "story": fault.story,
            "remedies": [remedy.name for remedy in fault.remedies],
            "cause": fault.cause,
            "reported_by": fault.reported_by,
        }
        for fault in system.faults
    ]
    return {"name": system.name, "title": system.title, "quality": system.quality, "faults": faults}


if __name__ == "__main__":
    FILE.write_text(json.dumps(make_catalogue(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
