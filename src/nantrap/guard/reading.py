"""`Reading`: the values of the one host read of a step, as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from nantrap.guard.window import Micro

NOTHING: Mapping[str, float] = {}


class Reading(NamedTuple):
    """What was read of a step.

    Attributes:
        norm: the total gradient norm, unscaled, before clipping.
        loss: the loss of the step; of a bad step, that of the micro-batch at fault.
        terms: its named terms.
        rates: the learning rates in force.
        watch: watched values by name.
        scale: the loss scale, or `None`.
        buffers_bad: whether the forward pass made buffers non-finite.
        guilty: the first micro-batch whose loss is bad.
    """

    norm: float = math.nan
    loss: float = math.nan
    terms: Mapping[str, float] = NOTHING
    rates: tuple[float, ...] = ()
    watch: Mapping[str, float] = NOTHING
    scale: float | None = None
    buffers_bad: bool = False
    guilty: Micro | None = None
