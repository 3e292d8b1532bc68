"""`nantrap selftest`: what differs from device to device, tried on the device that is here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap._lazy import lazy_names

if TYPE_CHECKING:
    from nantrap.doctor.selftest.checks import selftest as selftest

__all__ = ["selftest"]

__getattr__ = lazy_names(__name__, {"checks": ["selftest"]})
