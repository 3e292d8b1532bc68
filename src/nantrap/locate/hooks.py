"""Hooks that are not part of the model: a copy of the model, or a pickle of it, does not contain them."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.compiler import is_compiling

from nantrap.locate.torch_private import hook_tables


class Hook:
    """Calls a method while its owner is alive. Copied or pickled it does nothing.

    A module's hooks are copied with it: `copy.deepcopy(model)` of a best model or of an average would otherwise copy
    the guard, its optimizer and its graphs, and `torch.save(model)` would try to pickle them.
    """

    __slots__ = ("__weakref__", "_method")

    def __init__(self, method: Callable[..., Any] | None = None) -> None:
        self._method = None if method is None else weakref.WeakMethod(method)

    def __call__(self, *args: Any) -> Any:
        if is_compiling():  # a weak reference would break the graph
            return None
        method = None if self._method is None else self._method()
        return None if method is None else method(*args)

    def __deepcopy__(self, memo: dict[int, Any]) -> Hook:
        return Hook()

    def __reduce__(self) -> tuple[Any, ...]:
        # a function of the standard library that takes anything and returns None: the file opens without nantrap
        return getattr, (contextlib.nullcontext(), "__exit__")


@contextlib.contextmanager
def without_hooks(*modules: Any) -> Iterator[None]:
    """Modules without the hooks of a guard, for what would save, compile or record them. Then as before, in order."""
    tables = [
        table
        for module in modules
        if isinstance(module, nn.Module)
        for each in module.modules()
        for table in hook_tables(each)
        if any(isinstance(hook, Hook) for hook in table.values())
    ]
    taken = [(table, dict(table)) for table in tables]
    for table, before in taken:
        for key in [key for key, hook in before.items() if isinstance(hook, Hook)]:
            table.pop(key, None)
    try:
        yield
    finally:
        for table, before in taken:
            table.clear()
            table.update(before)
