"""The private names of Python that `nantrap run` relies on, and nothing else. Seen in Python 3.10 to 3.13."""

from __future__ import annotations

import builtins
import os
import pathlib
import runpy
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import CodeType
from typing import Any


def find_module(name: str, error: type[Exception]) -> tuple[ModuleSpec, CodeType]:
    """The module that `python -m NAME` runs. `runpy.run_module` would run it in another module than `__main__`.

    Raises:
        error: There is no such module, or it cannot be run.
    """
    _, spec, code = runpy._get_module_details(name, error)  # type: ignore[attr-defined]
    return spec, code


def path_methods() -> list[tuple[Any, str, Callable[[], Any]]]:
    """Functions that `pathlib` keeps references to, each with what gives the present one. Python 3.10 alone."""
    owner = getattr(pathlib, "_NormalAccessor", None)
    if owner is None:
        return []
    return [
        (owner, "open", lambda: builtins.open),
        (owner, "replace", lambda: os.replace),
        (owner, "rename", lambda: os.rename),
    ]
