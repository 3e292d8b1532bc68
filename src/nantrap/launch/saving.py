"""The finite gate before `torch.save` and safetensors: a non-finite state never replaces a good file.

Only a guarded model's state is checked, recognised by the names of its parameters; data and predictions may hold NaN.
By policy a bad state is refused (`strict`), saved as asked with a warning (`observe`), or saved next to it under
another name, `model.nonfinite.pt`, while the last good `model.pt` stays.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from nantrap.checkpoints.store.gate import bad_values, refuse_nonfinite
from nantrap.errors import NonFiniteError
from nantrap.incident.wording import some_of
from nantrap.launch.loops import Loops
from nantrap.launch.patches import Patches
from nantrap.launch.torch_private import hook_tables
from nantrap.locate.hooks import Hook

T = TypeVar("T")
_DEPTH = 4


def install(patches: Patches, loops: Loops) -> None:
    """Check every file of a model before it is written."""

    def save(original: Any, obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        place = _checked_place(loops, obj, f)
        with contextlib.ExitStack() as without:
            for loop in loops:  # a pickled module must open where nantrap is not installed
                without.enter_context(_unhooked(loop.parts.protected.root))
            return original(obj, place, *args, **kwargs)

    def save_file(original: Any, tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        return original(tensors, _checked_place(loops, tensors, filename), *args, **kwargs)

    patches.wrap(torch, "save", save)
    patches.put(torch.serialization, "save", torch.save)
    import safetensors.torch

    patches.wrap(safetensors.torch, "save_file", save_file)


@contextlib.contextmanager
def _unhooked(root: nn.Module) -> Iterator[None]:
    """Our hooks are removed from a model while the whole of it is being saved."""
    taken: list[tuple[dict[int, Any], dict[int, Any]]] = []
    for module in root.modules():
        for hooks in hook_tables(module):
            if any(isinstance(hook, Hook) for hook in hooks.values()):
                taken.append((hooks, dict(hooks)))
                for key in [key for key, hook in hooks.items() if isinstance(hook, Hook)]:
                    del hooks[key]
    try:
        yield
    finally:
        for hooks, before in taken:
            hooks.clear()
            hooks.update(before)


def _checked_place(loops: Loops, obj: Any, where: Any) -> Any:
    return checked(loops, where, lambda: _place(loops, obj, where), saved=where)


def checked(loops: Loops, given: T, check: Callable[[], T], *, saved: object) -> T:
    """What a check of values to be saved gives; `given` if it fails: the script decides what it saves.

    Args:
        loops: say that nothing was checked.
        given: the script's own path or options.
        check: gives those to save with, or raises `NonFiniteError`.
        saved: what is saved, in words.
    """
    try:
        return check()
    except NonFiniteError:
        raise
    except Exception as error:
        loops.say(f"{saved} is saved unchecked: {type(error).__name__}: {error}")
        return given


def _place(loops: Loops, obj: Any, where: Any) -> Any:
    """Where this may be written: at the given path, or next to it."""
    if loops.is_own_call() or not _is_guarded_state(loops, obj):
        return where
    loops.record_abandoned()
    is_path = isinstance(where, (str, os.PathLike))
    path = Path(where) if is_path else Path("a checkpoint")
    allowed = tuple(f"*{name}" for loop in loops for name in loop.parts.protected.buffers.exempt_names())
    bad = bad_values(obj, allow=allowed)
    if not bad:
        return where
    step = max((loop.tally.attempted for loop in loops), default=0)
    if loops.settings.strict:
        refuse_nonfinite(obj, what=str(path), step=step, allow=allowed)
    names = some_of([name for name, _ in bad])
    if loops.settings.observes or not is_path:  # a stream has no path
        loops.say(f"{path} is being saved with non-finite values: {names}")
        return where
    beside = path.with_name(f"{path.stem}.nonfinite{path.suffix}")
    kept = "the last good file of that name stays" if path.exists() else "no file of that name was written"
    loops.say(f"{path} would hold non-finite values ({names}): saved as {beside.name} instead, {kept}")
    return beside


def _is_guarded_state(loops: Loops, obj: Any) -> bool:
    names = {name for loop in loops for name, _ in loop.parts.protected.members.named()}
    return bool(names) and any(_is_state(value, names) for value in _values(obj, _DEPTH))


def _is_state(value: Any, names: set[str]) -> bool:
    if isinstance(value, nn.Module):
        return True
    if not isinstance(value, Mapping):
        return False
    if "param_groups" in value and "state" in value:
        return True
    return any(tail in names for key in value if isinstance(key, str) for tail in _tails(key))


def _tails(name: str) -> Iterator[str]:
    """The name, then without each of its leading parts: a wrapper may have put something before it."""
    while name:
        yield name
        name = name.partition(".")[2]


def _values(value: Any, depth: int) -> Iterator[Any]:
    yield value
    if depth and isinstance(value, Mapping):
        for item in value.values():
            yield from _values(item, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for item in value:
            yield from _values(item, depth - 1)
