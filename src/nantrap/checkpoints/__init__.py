"""Checkpoints: readers for every format, the audit, quarantine, the finite-gated store, the resume check."""

from nantrap.checkpoints.auditing import Progress, audit
from nantrap.checkpoints.catalogue import SavedCheckpoint
from nantrap.checkpoints.config_rate import compare_with_config
from nantrap.checkpoints.gate import finite_gate
from nantrap.checkpoints.quarantine import Move, quarantine
from nantrap.checkpoints.resume import ResumeFinding, check_resume
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
    "ResumeFinding",
    "SavedCheckpoint",
    "audit",
    "check_resume",
    "compare_with_config",
    "finite_gate",
    "quarantine",
]
