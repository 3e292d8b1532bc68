"""Whether a loss that was computed again is the loss of the failed step: the same graph, and the same value.

A model that computes its own loss, as those of transformers do, needs nothing but its call for it (`OwnLoss`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nantrap.locate.batch import tensors_of
from nantrap.locate.failure import Failure
from nantrap.locate.nodes import ACCUMULATE
from nantrap.locate.replay.replay import autocast_like, called_again, eagerly
from nantrap.locate.replay.root_call import RootCall
from nantrap.locate.twoline.outer import applied_after
from nantrap.locate.wrapping import arguments_by_name

_MOST_NODES = 20_000
_SHAPE_ONLY = frozenset({"ViewBackward0", "ReshapeAliasBackward0", "UnsafeViewBackward0"})
"""`reshape` records one or another of them, or none, depending on whether a dispatch mode is active. The live step has
no mode, and the step that is computed again has one."""


def same_value(failed: Failure, now: float) -> bool:
    """Whether a loss has the value of the failed one. NaN is equal to NaN here."""
    then = failed.loss_value
    return now == then or (math.isnan(now) and math.isnan(then))


def same_graph(then: Any, now: Any) -> bool:
    """Whether two nodes come from the same operations, from the same parameters, and not from each other."""
    pairs: list[tuple[Any, Any]] = [(then, now)]
    seen: set[Any] = set()
    for a, b in pairs:  # grows while it is walked
        a, b = _past_views(a), _past_views(b)
        if a is None or b is None:
            if a is not b:
                return False
            continue
        if a in seen:
            continue
        seen.add(a)
        if a.name() != b.name() or len(a.next_functions) != len(b.next_functions):
            return False
        if a.name() == ACCUMULATE:
            if a.variable is not b.variable:
                return False
            continue
        if a is b:
            return False
        if len(seen) > _MOST_NODES:
            break
        pairs += [(x, y) for (x, _), (y, _) in zip(a.next_functions, b.next_functions, strict=True)]
    return True


def _past_views(node: Any) -> Any:
    """The first node from here on that does more than change a shape."""
    while node is not None and node.name() in _SHAPE_ONLY and len(node.next_functions) == 1:
        node = node.next_functions[0][0]
    return node


class OwnLoss:
    """Computes the loss by the model's call alone. Holds which of the model's outputs it is, and what followed.

    Args:
        failed: the failed step.
        call: its only call of the model.
    """

    def __init__(self, failed: Failure, call: RootCall) -> None:
        self._failed = failed
        self._call = call
        self._path = ""
        self._outer: Callable[[Tensor], Tensor] | None = None

    @property
    def batch(self) -> Any:
        """The arguments of the call, by the names in the model's `forward`; a single tensor is the batch itself."""
        args, named = self._call.args, self._call.kwargs
        if self._is_by_name:
            return arguments_by_name(called_again(self._call, self._failed), args, named)
        if not named:
            return args[0] if len(args) == 1 else args
        return named if not args else (args, named)

    @property
    def _is_by_name(self) -> bool:
        """Whether the arguments have names: where a framework sends another method through the call, they have not."""
        args, named = self._call.args, self._call.kwargs
        return self._call.redirected is None and bool(named or len(args) != 1 or not isinstance(args[0], Tensor))

    def verified(self) -> bool:
        """Whether an output of the model is the failed loss, and is so when the model is called again."""
        failed, loss = self._failed, self._failed.loss
        assert loss is not None
        with contextlib.suppress(Exception), failed.rewound(), eagerly():
            self._call.rng.restore()
            for path, found in tensors_of(self._run(self.batch)):
                if found.numel() == 1 and found.grad_fn is not None and self._is_loss(loss, found):
                    self._path = path
                    now = found if self._outer is None else self._outer(found)
                    return same_value(failed, float(now.detach()))
        return False

    def forward(self, batch: Any) -> Tensor:
        """The loss of a batch."""
        found = dict(tensors_of(self._run(batch)))[self._path]
        return found if self._outer is None else self._outer(found)

    def _is_loss(self, loss: Tensor, found: Tensor) -> bool:
        if same_graph(loss.grad_fn, found.grad_fn):
            return True
        self._outer = applied_after(loss, found, self._call.factors, same_graph)
        return self._outer is not None

    def _run(self, batch: Any) -> Any:
        """Call the model again with this batch in the place of the arguments that were the batch."""
        args, named = self._call.args, self._call.kwargs
        if self._is_by_name:
            given = list(batch.items())
            args, named = tuple(value for _, value in given[: len(args)]), dict(given[len(args) :])
        elif not named:
            args = (batch,) if len(args) == 1 else tuple(batch)
        elif not args:
            named = batch
        else:
            args, named = batch
        with torch.enable_grad(), autocast_like(self._call.autocast), self._call.as_made(self._failed.root):
            return called_again(self._call, self._failed)(*args, **named)
