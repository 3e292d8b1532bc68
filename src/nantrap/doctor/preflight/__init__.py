"""`nantrap preflight`: a model is tested before its first real step. Runs the user's own factory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap._lazy import lazy_names

if TYPE_CHECKING:
    from nantrap.doctor.preflight.checklist import preflight as preflight
    from nantrap.doctor.preflight.report import PreflightCheck as PreflightCheck
    from nantrap.doctor.preflight.report import PreflightReport as PreflightReport

__all__ = ["PreflightCheck", "PreflightReport", "preflight"]

__getattr__ = lazy_names(__name__, {"checklist": ["preflight"], "report": ["PreflightCheck", "PreflightReport"]})
