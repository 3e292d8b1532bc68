"""Every check of configurations and of source code. Importing this package registers them."""

from __future__ import annotations

import importlib
import pkgutil

from nantrap.doctor.checks.registry import CONFIGURATION, SOURCE, Sighting

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["CONFIGURATION", "SOURCE", "Sighting"]
