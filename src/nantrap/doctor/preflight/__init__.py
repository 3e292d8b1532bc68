"""`nantrap preflight`: a model is tested before its first real step. Runs the user's own factory."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nantrap.doctor.preflight.checklist import preflight as preflight
    from nantrap.doctor.preflight.report import Check as Check
    from nantrap.doctor.preflight.report import PreflightReport as PreflightReport

_PLACES = {"Check": "report", "PreflightReport": "report", "preflight": "checklist"}

__all__ = ["Check", "PreflightReport", "preflight"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'nantrap.doctor.preflight' has no attribute {name!r}")
    return getattr(importlib.import_module(f"nantrap.doctor.preflight.{_PLACES[name]}"), name)
