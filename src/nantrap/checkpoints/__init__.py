"""Checkpoints: `audit/` reads and judges them, `store/` writes them, finds the last good one and checks a resume.

Names are resolved when they are first used: a guard needs the gate in every run, the readers in hardly any.
`nantrap.checkpoints.audit` is the folder; the function is `nantrap.audit`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nantrap.checkpoints.audit import AuditReport as AuditReport
    from nantrap.checkpoints.audit import CheckpointAudit as CheckpointAudit
    from nantrap.checkpoints.audit import Move as Move
    from nantrap.checkpoints.audit import Problem as Problem
    from nantrap.checkpoints.audit import Progress as Progress
    from nantrap.checkpoints.audit import quarantine as quarantine
    from nantrap.checkpoints.store import CheckpointStore as CheckpointStore
    from nantrap.checkpoints.store import LoadedCheckpoint as LoadedCheckpoint
    from nantrap.checkpoints.store import ResumeFinding as ResumeFinding
    from nantrap.checkpoints.store import SavedCheckpoint as SavedCheckpoint
    from nantrap.checkpoints.store import check_resume as check_resume
    from nantrap.checkpoints.store import compare_with_config as compare_with_config
    from nantrap.checkpoints.store import finite_gate as finite_gate

_AUDIT = ("AuditReport", "CheckpointAudit", "Move", "Problem", "Progress", "quarantine")
_STORE = (
    "CheckpointStore", "LoadedCheckpoint", "ResumeFinding", "SavedCheckpoint",
    "check_resume", "compare_with_config", "finite_gate",
)  # fmt: skip

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


def __getattr__(name: str) -> Any:
    folder = "audit" if name in _AUDIT else "store" if name in _STORE else None
    if folder is None:
        raise AttributeError(f"module 'nantrap.checkpoints' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"nantrap.checkpoints.{folder}"), name)
    globals()[name] = value
    return value
