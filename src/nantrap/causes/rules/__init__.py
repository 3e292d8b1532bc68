"""The rules by family. Importing this package imports its modules, which registers them. Needs no torch."""

from __future__ import annotations

import importlib
import pkgutil
from types import MappingProxyType
from typing import Final

from nantrap.causes.claim import REGISTERED
from nantrap.incident.codes import CAUSES

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

RULES: Final = MappingProxyType({entry.slug: REGISTERED[entry.slug] for entry in CAUSES if entry.slug in REGISTERED})
"""The rules by slug, in the order of the table of causes: the order in which they are asked."""

__all__ = ["RULES"]
