"""`nantrap data`: data files are checked before training, without executing anything in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap._lazy import lazy_names

if TYPE_CHECKING:
    from nantrap.doctor.data.check import check_data as check_data
    from nantrap.doctor.data.findings import DataFinding as DataFinding
    from nantrap.doctor.data.findings import DataReport as DataReport
    from nantrap.doctor.data.quarantine import without_samples as without_samples
    from nantrap.doctor.data.quarantine import write_bad_samples as write_bad_samples
    from nantrap.doctor.data.roles import DataOptions as DataOptions

__all__ = [
    "DataFinding", "DataOptions", "DataReport", "check_data", "without_samples", "write_bad_samples",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        "check": ["check_data"],
        "findings": ["DataFinding", "DataReport"],
        "quarantine": ["without_samples", "write_bad_samples"],
        "roles": ["DataOptions"],
    },
)
