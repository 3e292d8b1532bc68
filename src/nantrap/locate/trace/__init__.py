"""The trace of a step: every operation with its place, and the way of non-finite values from one to the next."""

from nantrap.locate.trace.records import Capture, External, Op, Registered
from nantrap.locate.trace.trace import Trace, earliest
from nantrap.locate.trace.whereabouts import OUTSIDE, recomputing

__all__ = ["OUTSIDE", "Capture", "External", "Op", "Registered", "Trace", "earliest", "recomputing"]
