"""Names of a package that are imported when they are first used: `import nantrap` stays fast and imports no torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nantrap.errors import needs_torch


def lazy_names(
    package: str, names: Mapping[str, Sequence[str]], *, submodules: Sequence[str] = ()
) -> Callable[[str], Any]:
    """The `__getattr__` of a package. A name is looked up once, and is a plain attribute of the package from then on.

    Args:
        package: its `__name__`.
        names: the names in each of its modules, by the module's name below the package.
        submodules: modules and folders that can be used without a separate import.
    """
    places = {name: f"{package}.{module}" for module, its_names in names.items() for name in its_names}

    def resolve(name: str) -> Any:
        """Import the name and keep it in the package."""
        if name not in places and name not in submodules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            if name in places:
                value = getattr(importlib.import_module(places[name]), name)
            else:
                value = importlib.import_module(f"{package}.{name}")
        except ModuleNotFoundError as error:
            raise needs_torch(error) or error from None
        setattr(sys.modules[package], name, value)
        return value

    return resolve
