"""Run a script or a module as Python itself would: `__main__`, `__file__`, `sys.argv`, `sys.path[0]`, `__spec__`."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

from nantrap.errors import UsageError


class Program:
    """Something to run: its code, and the `__main__` it expects. Nothing is run before `run`."""

    def __init__(self, target: str, arguments: Sequence[str], *, is_module: bool) -> None:
        self.arguments = list(arguments)
        self.is_module = is_module
        self.target = target
        if not is_module:
            self._path = _script(target)

    @property
    def name(self) -> str:
        """A short name, for a folder."""
        return self.target.rpartition(".")[2] if self.is_module else self._path.stem

    def run(self) -> None:
        """Run it to the end; whatever it raises passes through."""
        main = ModuleType("__main__")
        sys.modules["__main__"] = main
        if self.is_module:
            sys.path[0] = os.getcwd()
            sys.argv = ["-m", *self.arguments]
            code = self._prepare_module(main)
        else:
            sys.path[0] = str(self._path.parent.resolve())
            sys.argv = [self.target, *self.arguments]
            code = self._prepare_script(main)
        exec(code, vars(main))  # the user's own program, which is what was asked for

    def _prepare_script(self, main: ModuleType) -> CodeType:
        path = self._path
        main.__file__ = self.target
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", str(path))
        main.__builtins__ = __builtins__  # type: ignore[attr-defined]
        return compile(path.read_bytes(), self.target, "exec", dont_inherit=True)

    def _prepare_module(self, main: ModuleType) -> CodeType:
        try:
            _, spec, code = runpy._get_module_details(self.target)  # type: ignore[attr-defined]
        except ImportError as error:
            raise UsageError(f"-m {self.target}: {error}") from None
        sys.argv[0] = spec.origin
        main.__spec__ = spec
        main.__file__ = spec.origin
        main.__package__ = spec.parent
        main.__loader__ = spec.loader
        main.__builtins__ = __builtins__  # type: ignore[attr-defined]
        found: CodeType = code
        return found


def _script(target: str) -> Path:
    path = Path(target)
    if path.is_dir():
        path = path / "__main__.py"
    if not path.is_file():
        hint = (
            f"; a module is run by `nantrap run -m {target}`"
            if importlib.util.find_spec(target.partition(".")[0]) and not target.endswith(".py")
            else ""
        )
        raise UsageError(f"{target}: no such script{hint}")
    return path
