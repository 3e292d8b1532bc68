"""The trace of a step: every operation with its place, and the way of non-finite values from one to the next."""

from nantrap.locate.trace.records import OUTSIDE, Capture, External, Op, Registered, recomputing
from nantrap.locate.trace.trace import Trace, earliest

__all__ = ["OUTSIDE", "Capture", "External", "Op", "Registered", "Trace", "earliest", "recomputing"]
