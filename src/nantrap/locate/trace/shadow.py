"""Does the loss depend on values that are not finite? A trace that also computes with a number in their place.

The program runs as it is: its masks (`isnan`, `isfinite`) and its branches see what they saw. Beside it each tensor
that non-finite values have reached has a *shadow*: the same computed with a number in their place. What a mask leaves
out may be any number, and the shadow of the loss is the same with each. What arithmetic makes of them (tanh of Inf, a
clamp) is a use, and the shadow of the loss changes.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from nantrap.locate.torch_private import schema_of
from nantrap.locate.trace.operations import op_name
from nantrap.locate.trace.records import Registered
from nantrap.locate.trace.storage import Where, map_leaves, tensors_in
from nantrap.locate.trace.trace import Trace

_SKIPS_NAN = ("aten.nansum", "aten.nanmedian")
"""They ask and choose in one."""


class Shadowed(Trace):
    """A trace that also computes with `value` in the place of the non-finite values of some origins.

    Args:
        root: the model, whose modules have names.
        registered: the tensors known by name when the step begins.
        origins: whether an origin is one of those, by its index.
        value: what is computed with in their place.
    """

    def __init__(self, root: nn.Module, registered: Registered, origins: Callable[[int], bool], value: float) -> None:
        super().__init__(root, registered)
        self._is_wanted = origins
        self._value = value
        self._shadows: dict[Where, Tensor] = {}

    def shadow_of(self, tensor: Tensor) -> Tensor:
        """The tensor as it is with the number in the place of the non-finite values."""
        shadow: Tensor = self._shadow(tensor)
        return shadow

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        shadow_of = self._with_nan if op_name(func) in _SKIPS_NAN else self._shadow
        given = map_leaves(args, shadow_of), map_leaves(kwargs or {}, shadow_of)
        pairs = zip(tensors_in((args, kwargs or {})), tensors_in(given), strict=True)
        if all(one is other for one, other in pairs):
            return super().__torch_dispatch__(func, types, args, kwargs)
        mutable = schema_of(func).is_mutable
        if mutable and given[0] and given[0][0] is args[0] and isinstance(args[0], Tensor):
            given = ((args[0].detach().clone(), *given[0][1:]), given[1])  # bad values are written into a good tensor
        random = torch.get_rng_state() if torch.Tag.nondeterministic_seeded in func.tags else None
        result = super().__torch_dispatch__(func, types, args, kwargs)
        with contextlib.suppress(Exception), _rewound(random):
            shadow = func(*given[0], **given[1])
            for made, other in zip(tensors_in(result), tensors_in(shadow), strict=False):
                if made.is_floating_point() or made.is_complex():
                    self._shadows[self.flow.where(made)] = other
        return result

    def _shadow(self, leaf: Any) -> Any:
        """The shadow of an argument; the argument itself where it has none."""
        if not isinstance(leaf, Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
            return leaf
        known = self._shadows.get(self.flow.where(leaf))
        if known is None and any(map(self._is_wanted, self.origins_of(leaf))):
            return leaf.detach().masked_fill(~leaf.detach().isfinite(), self._value)
        return leaf if known is None else known

    def _with_nan(self, leaf: Any) -> Any:
        """The shadow of an argument, with NaN where the argument has it."""
        shadow = self._shadow(leaf)
        return leaf if shadow is leaf else shadow.masked_fill(leaf.detach().isnan(), math.nan)


@contextlib.contextmanager
def _rewound(state: Tensor | None) -> Iterator[None]:
    """Numbers are drawn again as they were drawn."""
    after = None if state is None else torch.get_rng_state()
    if state is not None:
        torch.set_rng_state(state)
    try:
        yield
    finally:
        if after is not None:
            torch.set_rng_state(after)
