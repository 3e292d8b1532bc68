"""The faults of restran_mhc, each a few lines that take the place of a repaired part, and what was tried against them.

A part is written as one finds it in projects: the same arguments, the same weights, another line in the middle.
"""

from nantrap_systems.restran_mhc.faults.numbers import BLACK_FRAMES, SHORT_INPUT, SINKHORN, TINY_EPSILON
from nantrap_systems.restran_mhc.faults.state import POISONED_CHECKPOINT, SCALER_ALARM, STALE_RATE
from nantrap_systems.restran_mhc.faults.streams import NO_MIXING, STREAM_GAIN

__all__ = ["FAULTS"]

FAULTS = (
    SINKHORN,
    POISONED_CHECKPOINT,
    STALE_RATE,
    BLACK_FRAMES,
    TINY_EPSILON,
    SHORT_INPUT,
    STREAM_GAIN,
    SCALER_ALARM,
    NO_MIXING,
)
