"""Five small training systems, faithful to real projects that went NaN, each with its historic faults as switches.

A system is a folder that reads as a separate model project, and each has the same files: `settings.py`, `data.py`,
`model.py`, `loss.py`, `train.py`, `faults.py` and its config. What they share is here: `system` says what a system and
a fault are, `settings` reads configs, `training` is the loop, `script` the command line of every `train.py`, and
`showcase` runs a fault several ways from one seed: repaired, plain, with the historic remedies, and under the guard.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from nantrap.errors import UsageError

if TYPE_CHECKING:
    from nantrap_systems.system import System

__all__ = ["SYSTEMS", "load_system"]

SYSTEMS: Final = ("radiodiff", "latentdlm", "restran_mhc", "temi", "pixeldlm")
"""The names. Each is a package here whose module `train` holds a `System` called `SYSTEM`."""


def load_system(name: str) -> System:
    """The system of this name; only its own modules are imported."""
    if name not in SYSTEMS:
        raise UsageError(f"no system is called {name!r}; there are {', '.join(SYSTEMS)}")
    system: System = importlib.import_module(f"nantrap_systems.{name}.train").SYSTEM
    return system
