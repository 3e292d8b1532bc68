"""Faults on purpose: `nantrap.inject` puts NaN, Inf or flipped bits into a training run, at known steps.

To test a loop (does it survive a NaN?), for preflight and for benchmarks. `plan` decides which fault happens when and
opens without torch; `injector` attaches them to a model or to a whole process through torch's public hooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap._lazy import lazy_names
from nantrap.faults.plan import KINDS, Fault, parse_faults

if TYPE_CHECKING:
    from nantrap.faults.injector import Injected as Injected
    from nantrap.faults.injector import Injector as Injector
    from nantrap.faults.injector import inject as inject

__all__ = ["KINDS", "Fault", "Injected", "Injector", "inject", "parse_faults"]

__getattr__ = lazy_names(__name__, {"injector": ["Injected", "Injector", "inject"]})
