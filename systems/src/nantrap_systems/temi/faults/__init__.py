"""The faults of temi, each a few lines that take the place of a repaired part, and what was tried against them.

A part is written as one finds it in projects: the same arguments, the same weights, another line in the middle.
"""

from nantrap_systems.temi.faults.data import CONSTANT_EMBEDDINGS, NAN_ROW, ZERO_SUM_WEIGHTS
from nantrap_systems.temi.faults.heads import DEAD_HEADS
from nantrap_systems.temi.faults.product import HALF_CLAMP, UNDERFLOW
from nantrap_systems.temi.faults.weights import LARGE_WEIGHTS, ZERO_PROTOTYPES

__all__ = ["FAULTS"]

FAULTS = (
    UNDERFLOW,
    NAN_ROW,
    DEAD_HEADS,
    HALF_CLAMP,
    CONSTANT_EMBEDDINGS,
    ZERO_SUM_WEIGHTS,
    LARGE_WEIGHTS,
    ZERO_PROTOTYPES,
)
