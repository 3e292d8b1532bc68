"""The audit: readers for every format, one scan over the bytes, a verdict, quarantine. Pickles are read, never run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap._lazy import lazy_names

if TYPE_CHECKING:
    from nantrap.checkpoints.audit.auditing import audit as audit
    from nantrap.checkpoints.audit.quarantining import Move as Move
    from nantrap.checkpoints.audit.quarantining import quarantine as quarantine
    from nantrap.checkpoints.audit.verdict import AuditReport as AuditReport
    from nantrap.checkpoints.audit.verdict import CheckpointAudit as CheckpointAudit
    from nantrap.problems import Problem as Problem
    from nantrap.problems.progress import ReadingProgress as Progress

__all__ = ["AuditReport", "CheckpointAudit", "Move", "Problem", "Progress", "audit", "quarantine"]

__getattr__ = lazy_names(
    __name__,
    {
        "auditing": ["Progress", "audit"],
        "quarantining": ["Move", "quarantine"],
        "verdict": ["AuditReport", "CheckpointAudit", "Problem"],
    },
)
