"""Which modules to watch in the two-line form: the root, and, where its parts are called directly, those parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from nantrap.locate.hooks import Hook


def callable_parts(root: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules below the root that can be called: containers without a forward are looked into."""
    for child in root.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)) or type(child) is nn.Module:
            yield from callable_parts(child)
        else:
            yield child


def watch_parts(root: nn.Module, before: Callable[..., Any], after: Callable[..., Any]) -> list[Any]:
    """Hook the parts of a root that is never called itself (`m.head(m.attn(x))`). Returns the hooks' handles."""
    handles: list[Any] = []
    for part in callable_parts(root):
        handles.append(part.register_forward_pre_hook(Hook(before), with_kwargs=True))
        handles.append(part.register_forward_hook(Hook(after)))
    return handles
