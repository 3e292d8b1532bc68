"""Wrap something of a library as soon as the script imports it, and import nothing for it."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from nantrap.launch.patches import Patches


def when_imported(patches: Patches, name: str, call: Callable[[ModuleType], None]) -> None:
    """Call a function with a module, now or when it has been imported."""
    if name in sys.modules:
        call(sys.modules[name])
    else:
        patches.put_first(sys.meta_path, _AfterImport(name, call))


class _AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Calls a function with a module when it has been imported. Finds nothing itself."""

    def __init__(self, name: str, call: Any) -> None:
        self._name, self._call = name, call
        self._loader: Any = None

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Finds the module as usual, and puts this object in the place of its loader: it then sees the import."""
        if fullname != self._name or self._loader is not None:
            return None
        self._loader = self  # the search below calls this method again
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._call(module)
