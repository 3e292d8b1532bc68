"""Checkpoints: readers for every format, the audit, quarantine, the finite-gated store, the resume check.

Only what is used is imported: a guard needs the gate in every run, the readers in hardly any.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nantrap.checkpoints.auditing import Progress as Progress
    from nantrap.checkpoints.auditing import audit as audit
    from nantrap.checkpoints.catalogue import SavedCheckpoint as SavedCheckpoint
    from nantrap.checkpoints.config_rate import compare_with_config as compare_with_config
    from nantrap.checkpoints.gate import finite_gate as finite_gate
    from nantrap.checkpoints.quarantining import Move as Move
    from nantrap.checkpoints.quarantining import quarantine as quarantine
    from nantrap.checkpoints.resume import ResumeFinding as ResumeFinding
    from nantrap.checkpoints.resume import check_resume as check_resume
    from nantrap.checkpoints.store import CheckpointStore as CheckpointStore
    from nantrap.checkpoints.store import LoadedCheckpoint as LoadedCheckpoint
    from nantrap.checkpoints.verdict import AuditReport as AuditReport
    from nantrap.checkpoints.verdict import CheckpointAudit as CheckpointAudit
    from nantrap.checkpoints.verdict import Problem as Problem

_PLACES = {
    "AuditReport": "nantrap.checkpoints.verdict",
    "CheckpointAudit": "nantrap.checkpoints.verdict",
    "CheckpointStore": "nantrap.checkpoints.store",
    "LoadedCheckpoint": "nantrap.checkpoints.store",
    "Move": "nantrap.checkpoints.quarantining",
    "Problem": "nantrap.checkpoints.verdict",
    "Progress": "nantrap.checkpoints.auditing",
    "ResumeFinding": "nantrap.checkpoints.resume",
    "SavedCheckpoint": "nantrap.checkpoints.catalogue",
    "audit": "nantrap.checkpoints.auditing",
    "check_resume": "nantrap.checkpoints.resume",
    "compare_with_config": "nantrap.checkpoints.config_rate",
    "finite_gate": "nantrap.checkpoints.gate",
    "quarantine": "nantrap.checkpoints.quarantining",
}

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


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'nantrap.checkpoints' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = value
    return value
