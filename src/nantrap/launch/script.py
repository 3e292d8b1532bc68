"""Run a script or a module as Python itself would: `__main__`, `__file__`, `sys.argv`, `sys.path[0]`, `__spec__`."""

from __future__ import annotations

import builtins
import importlib.util
import os
import sys
import zipfile
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from nantrap.errors import UsageError
from nantrap.launch.python_private import find_module


class NoProgramError(UsageError):
    """There is nothing to run under this name."""


class ScriptProgram:
    """Something to run: its code, and the `__main__` it expects. Nothing is run before `run`.

    Args:
        target: a script, a folder or archive with a `__main__.py`, or the name of a module.
        arguments: the program's own.
        is_module: whether the target is the name of a module.
    """

    def __init__(self, target: str, arguments: Sequence[str], *, is_module: bool) -> None:
        self.arguments = list(arguments)
        self.is_module = is_module
        self.target = target
        if not is_module and not os.path.exists(target):
            raise NoProgramError(f"{target}: no such script{_hint(target)}")

    @property
    def name(self) -> str:
        """A short name, for a folder."""
        return self.target.rpartition(".")[2] if self.is_module else Path(os.path.abspath(self.target)).stem

    def run(self) -> None:
        """Run it to the end; whatever it raises passes through.

        Raises:
            NoProgramError: there is no such module, or nothing in it that can be run.
        """
        main = ModuleType("__main__")
        main.__builtins__ = builtins  # type: ignore[attr-defined]
        sys.modules["__main__"] = main
        sys.argv = ["-m" if self.is_module else self.target, *self.arguments]
        if self.is_module:
            _put_first(os.getcwd())
            code = self._prepare_module(main)
        elif _is_container(self.target):
            code = self._prepare_container(main)
        else:
            code = self._prepare_script(main)
        exec(code, vars(main))  # the user's own program

    def _prepare_script(self, main: ModuleType) -> CodeType:
        """The compiled code of a script, with `__main__` and `sys.path` set as Python sets them."""
        path = _as_python_names_it(self.target)
        _put_first(os.path.dirname(os.path.realpath(path)))
        main.__file__ = path
        main.__cached__ = None  # type: ignore[attr-defined]
        main.__loader__ = SourceFileLoader("__main__", path)
        try:
            with open(path, "rb") as file:
                source = file.read()
        except OSError as error:
            raise NoProgramError(f"{self.target}: cannot be read: {error.strerror}") from None
        return compile(source, path, "exec", dont_inherit=True)

    def _prepare_container(self, main: ModuleType) -> CodeType:
        """The compiled `__main__.py` of a folder or zip file, with `sys.path` set as Python sets it."""
        folder = _as_python_names_it(self.target).rstrip(os.sep)
        if getattr(sys.flags, "safe_path", False):
            sys.path.insert(0, folder)
        else:
            sys.path[0] = folder
        spec = PathFinder.find_spec("__main__", [folder])
        if spec is None:
            raise NoProgramError(f"{self.target}: no __main__.py in it")
        _describe(main, spec)
        assert spec.loader is not None
        code: CodeType = spec.loader.get_code("__main__")  # type: ignore[attr-defined]
        return code

    def _prepare_module(self, main: ModuleType) -> CodeType:
        try:
            spec, code = find_module(self.target, NoProgramError)
        except NoProgramError as error:
            raise NoProgramError(f"-m {self.target}: {error}") from None
        sys.argv[0] = str(spec.origin)
        _describe(main, spec)
        return code


def _describe(main: ModuleType, spec: ModuleSpec) -> None:
    main.__spec__ = spec
    main.__file__ = spec.origin
    main.__cached__ = spec.cached  # type: ignore[attr-defined]
    main.__package__ = spec.parent
    main.__loader__ = spec.loader


def _put_first(folder: str) -> None:
    """Where modules are looked for first: in place of what was there for `nantrap` itself."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder


def _as_python_names_it(target: str) -> str:
    """Absolute, with its links and its dots."""
    return os.path.join(os.getcwd(), target)


def _is_container(target: str) -> bool:
    """A folder or an archive."""
    return os.path.isdir(target) or (os.path.isfile(target) and zipfile.is_zipfile(target))


def _hint(target: str) -> str:
    """What to add to an error about a missing script: how to run it as a module, if there is one of that name."""
    first = target.partition(".")[0]
    if target.endswith(".py") or not first.isidentifier():
        return ""
    try:
        known = importlib.util.find_spec(first) is not None
    except (ImportError, ValueError):
        known = False
    return f"; a module is run by `nantrap run -m {target}`" if known else ""
