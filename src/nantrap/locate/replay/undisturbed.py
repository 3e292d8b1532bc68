"""What the program must not notice of a replay: what its hooks collect, and what its code prints.

A hook may append what it sees to a list of its module (the activations of which per-sample gradients are made), or put
something on a parameter. A replay calls it as well. Afterwards each list holds what it held before, and what is new is
gone. What the user's code prints was printed when the step ran, and is not printed again.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

_OWN = frozenset(vars(nn.Module()))
_COLLECTS = (list, dict, set, deque)


@contextlib.contextmanager
def as_found(modules: Iterable[nn.Module], tensors: Iterable[Tensor]) -> Iterator[None]:
    """Afterwards the attributes of these modules and tensors are as they were, and so is what their containers hold."""
    owners = [module for module in modules if not type(module).__module__.startswith("torch.distributed.")]
    plain = [tensor for tensor in tensors if type(tensor) in (nn.Parameter, Tensor)]  # shards have a life of their own
    kept = [(vars(owner), _attributes(owner)) for owner in (*owners, *plain)]
    try:
        yield
    finally:
        for attributes, before in kept:
            for name in [name for name in attributes if name not in before and name not in _OWN]:
                del attributes[name]
            for name, (value, content) in before.items():
                attributes[name] = value
                if content is not None:
                    _refill(value, content)


def _attributes(owner: Any) -> dict[str, tuple[Any, Any]]:
    """The attributes of the program by name, each with a copy of its content if it is a container."""
    return {
        name: (value, value.copy() if type(value) in _COLLECTS else None)
        for name, value in vars(owner).items()
        if name not in _OWN
    }


def _refill(container: Any, content: Any) -> None:
    container.clear()
    if isinstance(container, (dict, set)):
        container.update(content)
    else:
        container.extend(content)


class _Muted:
    """A stream without what one thread writes; everything else is that of the stream below."""

    def __init__(self, below: Any) -> None:
        self._below = below
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        """Write the text, unless it comes from the thread of the replay."""
        if threading.get_ident() == self._thread:
            return len(text)
        written: int = self._below.write(text)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)


@contextlib.contextmanager
def silently() -> Iterator[None]:
    """No warning, and nothing on stdout from this thread. A sample that is run alone makes torch warn of its size."""
    below = sys.stdout
    if isinstance(below, _Muted) or below is None:
        yield
        return
    muted: Any = _Muted(below)
    sys.stdout = muted
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if sys.stdout is muted:
            sys.stdout = below
