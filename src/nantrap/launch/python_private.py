"""The private name of Python that `nantrap run` relies on, and nothing else. Seen in Python 3.10 to 3.13."""

from __future__ import annotations

import runpy
from importlib.machinery import ModuleSpec
from types import CodeType


def find_module(name: str, error: type[Exception]) -> tuple[ModuleSpec, CodeType]:
    """The module that `python -m NAME` runs. `runpy.run_module` would run it in another module than `__main__`.

    Raises:
        error: There is no such module, or it cannot be run.
    """
    _, spec, code = runpy._get_module_details(name, error)  # type: ignore[attr-defined]
    return spec, code
