"""Checkpoints: readers for every format, the audit, quarantine, the finite-gated store, the resume check."""

from nantrap.checkpoints.auditing import Progress, audit
from nantrap.checkpoints.catalogue import SavedCheckpoint
from nantrap.checkpoints.gate import finite_gate
from nantrap.checkpoints.quarantine import Move, quarantine
from nantrap.checkpoints.store import CheckpointStore, LoadedCheckpoint
from nantrap.checkpoints.verdict import AuditReport, CheckpointAudit, Problem

__all__ = [
    "AuditReport",
    "CheckpointAudit",
    "CheckpointStore",
    "LoadedCheckpoint",
    "Move",
    "Problem",
    "Progress",
    "SavedCheckpoint",
    "audit",
    "finite_gate",
    "quarantine",
]
