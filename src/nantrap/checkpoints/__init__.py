"""Checkpoints: readers for every format, the audit, quarantine."""

from nantrap.checkpoints.auditing import Progress, audit
from nantrap.checkpoints.quarantine import Move, quarantine
from nantrap.checkpoints.verdict import AuditReport, CheckpointAudit, Problem

__all__ = ["AuditReport", "CheckpointAudit", "Move", "Problem", "Progress", "audit", "quarantine"]
