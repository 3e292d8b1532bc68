"""`nantrap data`: data files are checked before training, without executing anything in them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nantrap.doctor.data.check import Progress as Progress
    from nantrap.doctor.data.check import check_data as check_data
    from nantrap.doctor.data.findings import DataFinding as DataFinding
    from nantrap.doctor.data.findings import DataReport as DataReport
    from nantrap.doctor.data.quarantine import without_samples as without_samples
    from nantrap.doctor.data.quarantine import write_bad_samples as write_bad_samples
    from nantrap.doctor.data.roles import DataOptions as DataOptions

_PLACES = {
    "DataFinding": "findings",
    "DataOptions": "roles",
    "DataReport": "findings",
    "Progress": "check",
    "check_data": "check",
    "without_samples": "quarantine",
    "write_bad_samples": "quarantine",
}

__all__ = [
    "DataFinding", "DataOptions", "DataReport", "Progress", "check_data", "without_samples", "write_bad_samples",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'nantrap.doctor.data' has no attribute {name!r}")
    return getattr(importlib.import_module(f"nantrap.doctor.data.{_PLACES[name]}"), name)
