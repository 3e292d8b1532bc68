"""The audit: readers for every format, one scan over the bytes, a verdict, quarantine. Pickles are read, never run."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nantrap.checkpoints.audit.auditing import Progress as Progress
    from nantrap.checkpoints.audit.auditing import audit as audit
    from nantrap.checkpoints.audit.quarantining import Move as Move
    from nantrap.checkpoints.audit.quarantining import quarantine as quarantine
    from nantrap.checkpoints.audit.verdict import AuditReport as AuditReport
    from nantrap.checkpoints.audit.verdict import CheckpointAudit as CheckpointAudit
    from nantrap.checkpoints.audit.verdict import Problem as Problem

_FILES = {
    "AuditReport": "verdict",
    "CheckpointAudit": "verdict",
    "Move": "quarantining",
    "Problem": "verdict",
    "Progress": "auditing",
    "audit": "auditing",
    "quarantine": "quarantining",
}

__all__ = ["AuditReport", "CheckpointAudit", "Move", "Problem", "Progress", "audit", "quarantine"]


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"module 'nantrap.checkpoints.audit' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"nantrap.checkpoints.audit.{_FILES[name]}"), name)
    globals()[name] = value
    return value
