"""Checkpoints: `audit/` reads and judges them, `store/` writes them, finds the last good one and checks a resume.

Names are resolved when they are first used: a guard needs the gate in every run, the readers in hardly any.
`nantrap.checkpoints.audit` is the folder; the function is `nantrap.audit`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap._lazy import lazy_names

if TYPE_CHECKING:
    from nantrap.checkpoints.audit import AuditReport as AuditReport
    from nantrap.checkpoints.audit import CheckpointAudit as CheckpointAudit
    from nantrap.checkpoints.audit import Move as Move
    from nantrap.checkpoints.audit import Problem as Problem
    from nantrap.checkpoints.audit import Progress as Progress
    from nantrap.checkpoints.audit import quarantine as quarantine
    from nantrap.checkpoints.store.catalogue import SavedCheckpoint as SavedCheckpoint
    from nantrap.checkpoints.store.config_rate import compare_with_config as compare_with_config
    from nantrap.checkpoints.store.gate import finite_gate as finite_gate
    from nantrap.checkpoints.store.resume import ResumeFinding as ResumeFinding
    from nantrap.checkpoints.store.resume import check_resume as check_resume
    from nantrap.checkpoints.store.store import CheckpointStore as CheckpointStore
    from nantrap.checkpoints.store.store import LoadedCheckpoint as LoadedCheckpoint

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
    "check_resume",
    "compare_with_config",
    "finite_gate",
    "quarantine",
]

__getattr__ = lazy_names(
    __name__,
    {
        "audit": ["AuditReport", "CheckpointAudit", "Move", "Problem", "Progress", "quarantine"],
        "store.catalogue": ["SavedCheckpoint"],
        "store.config_rate": ["compare_with_config"],
        "store.gate": ["finite_gate"],
        "store.resume": ["ResumeFinding", "check_resume"],
        "store.store": ["CheckpointStore", "LoadedCheckpoint"],
    },
)
