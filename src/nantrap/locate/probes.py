"""`nantrap.probe(name, tensor)`: a named point inside a model's forward.

In a healthy step a probe stores one reference in a list that the guard empties at each step. After a failure the
tensors are checked, in order, and the first bad one is marked. In a compiled model a probe has no effect; the replay
after a failure runs the model eagerly, and there it works.

A reference keeps a tensor alive, so nothing is stored where nothing empties the list: without a guard a probe has no
effect. Between two steps of a guard an evaluation may make many passes; of those, the last few are kept.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from nantrap.errors import UsageError
from nantrap.finite import tensor_stats
from nantrap.incident import Probe

_LIMIT = 4096
_LIMIT_WITHOUT_GRADIENT = 64
_readers: weakref.WeakSet[object] = weakref.WeakSet()
"""Who reads the list, and empties it."""
_current: list[tuple[str, Tensor, Mapping[str, Tensor | float] | None]] = []


pending_probes = _current
"""The probes of the step that is being made: a guard need not clear an empty list."""


def probe(name: str, tensor: Tensor, *, watch: Mapping[str, Tensor | float] | None = None) -> Tensor:
    """Name a value inside a model's forward, so that an incident can show it. Returns the tensor unchanged.

    Args:
        name: how the incident calls it, e.g. `"block.read_out"`.
        tensor: the value; referenced until the guard's step ends, and not at all without a guard.
        watch: values to show next to it, e.g. `{"alpha": self.alpha}`.

    Example:
        >>> import torch, nantrap
        >>> nantrap.probe("hidden", torch.ones(2))
        tensor([1., 1.])
    """
    if not torch.compiler.is_compiling() and _readers:
        if not isinstance(tensor, Tensor):
            raise UsageError(f"probe({name!r:.100}, {tensor!r:.100}): expected a tensor as the second argument")
        if len(_current) >= _LIMIT:  # passes of a model that the guard's steps do not end
            _current.clear()
        if not tensor.requires_grad:
            _make_room()
        _current.append((name, tensor, watch))
    return tensor


def keep_probes_for(reader: object) -> None:
    """From here on probes are kept, until the reader is forgotten or gone."""
    _readers.add(reader)


def forget_probes_of(reader: object) -> None:
    """This reader is done; without another one nothing is kept."""
    _readers.discard(reader)
    if not _readers:
        _current.clear()


@contextlib.contextmanager
def probes_kept() -> Iterator[None]:
    """Keep probes inside, whether or not there is a guard."""
    reader = _Reader()
    keep_probes_for(reader)
    try:
        yield
    finally:
        forget_probes_of(reader)


class _Reader:
    """In place of a reader that has no object."""


def _make_room() -> None:
    """An evaluation has no graph and may have many batches: only its last probes stay."""
    without = [index for index, (_, tensor, _) in enumerate(_current) if not tensor.requires_grad]
    if len(without) >= _LIMIT_WITHOUT_GRADIENT:
        del _current[without[0]]


def clear_probes() -> None:
    """Forget the probes: a step has ended."""
    if _current:
        _current.clear()


def read_probes() -> tuple[Probe, ...]:
    """The probes of the step as they are now, the first bad one marked."""
    probes: list[Probe] = []
    found = False
    for name, tensor, watch in _current:
        stats = tensor_stats(tensor)
        first_bad = bool(stats.nonfinite) and not found
        found = found or first_bad
        values = {key: _number(value) for key, value in (watch or {}).items()}
        probes.append(Probe(name, stats, watch=values, first_bad=first_bad))
    return tuple(probes)


def _number(value: Tensor | float) -> float:
    if not isinstance(value, Tensor):
        return float(value)
    dense = value.detach().float()
    return float(dense if dense.numel() == 1 else dense.abs().max())
