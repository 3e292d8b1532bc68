"""Attributes that are replaced temporarily, and restored in the reverse order.

Those of a library that the script has not imported yet are replaced as soon as it does; nothing is imported for it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from torch.compiler import is_compiling

from nantrap.launch.torch_private import compiler_listens, not_traced

_MISSING = object()


class Patches:
    """Replaces attributes of modules and classes. Holds the old values; `undo` restores them."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []
        self._added: list[tuple[list[Any], Any]] = []
        self._wrappers: set[Any] = set()
        self._is_undone = False

    def put(self, owner: Any, name: str, value: Any) -> None:
        """`owner.name = value`, until `undo`."""
        self._before.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def put_first(self, owner: list[Any], value: Any) -> None:
        """`value` at the head of a list, until `undo`."""
        owner.insert(0, value)
        self._added.append((owner, value))

    def wrap(self, owner: Any, name: str, wrapper: Callable[..., Any], *, compiled: str = "eager") -> None:
        """Replace a function by `wrapper(original, *args, **kwargs)`, which keeps its name, signature and docstring.

        Args:
            owner: a module or a class.
            name: of its function.
            wrapper: what is called instead.
            compiled: what code that `torch.compile` traces does: call the wrapper without tracing it (`eager`), or
                call the original alone (`plain`), where the wrapper would break a graph that is whole without it.
        """
        untraced = not_traced(wrapper)
        plain = compiled == "plain"

        def make(original: Any) -> Any:
            """The wrapped function, which steps aside while the compiler traces and once everything was undone."""

            @functools.wraps(original)
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                if (plain and is_compiling()) or self._is_undone:  # a module imported meanwhile kept the wrapper
                    return original(*args, **kwargs)
                if is_compiling() or compiler_listens():  # between two graphs, what is called now would be traced
                    return untraced(original, *args, **kwargs)
                return wrapper(original, *args, **kwargs)

            return _Unbound(wrapped, owner) if inspect.isbuiltin(original) else wrapped

        self.replace(owner, name, make)

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace a function by `make(original)`: for what is called so often that a second call would be felt."""
        replacement = make(getattr(owner, name))
        self._wrappers.add(replacement)
        self.put(owner, name, replacement)

    def replace_all(
        self, base: type, name: str, make: Callable[[Any], Any], *, only: Callable[[Any], bool] = lambda function: True
    ) -> None:
        """Replace a method of a class and of every subclass that overrides it and is not replaced yet."""
        for cls in (base, *subclasses(base)):
            own = vars(cls).get(name)
            if callable(own) and own not in self._wrappers and only(own):
                self.replace(cls, name, make)

    def wrap_all(self, base: type, name: str, wrapper: Callable[..., Any]) -> None:
        """Wrap a method of a class and of every subclass that has one of its own and is not wrapped yet."""
        for cls in (base, *subclasses(base)):
            own = vars(cls).get(name)
            if callable(own) and own not in self._wrappers:
                self.wrap(cls, name, wrapper)

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """PyTorch as it is without us, for a compiler that reads the functions themselves (TorchScript)."""
        now = [(owner, name, vars(owner)[name]) for owner, name, _ in self._before]
        for owner, name, value in reversed(self._before):
            _put_back(owner, name, value)
        try:
            yield
        finally:
            for owner, name, value in now:
                setattr(owner, name, value)

    def undo(self) -> None:
        """Restore everything. A wrapper that another module still holds only calls the original function."""
        self._is_undone = True
        for owner, value in self._added:
            if value in owner:
                owner.remove(value)
        self._added.clear()
        while self._before:
            owner, name, value = self._before.pop()
            _put_back(owner, name, value)


def _put_back(owner: Any, name: str, value: Any) -> None:
    """Give a name the value it had before it was replaced; `_MISSING` for one that its owner had from elsewhere."""
    if value is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


class _Unbound:
    """A function in the place of one that is written in C: as an attribute of a class it does not become a method."""

    def __init__(self, function: Any, owner: Any) -> None:
        functools.update_wrapper(self, function)
        self.__module__ = owner.__name__  # it is pickled by this name: here it is this object, elsewhere the original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)  # type: ignore[attr-defined]

    def __reduce__(self) -> str:
        return str(vars(self)["__name__"])


def subclasses(base: type) -> list[type]:
    """Every subclass that is known now."""
    found: dict[type, None] = {}
    waiting: list[type] = list(base.__subclasses__())
    while waiting:
        cls = waiting.pop()
        if cls not in found:
            found[cls] = None
            waiting += cls.__subclasses__()
    return list(found)


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
