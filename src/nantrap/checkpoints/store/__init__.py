"""The store: `CheckpointStore`, the finite gate, the last good checkpoint, the check after a resume."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap._lazy import lazy_names

if TYPE_CHECKING:
    from nantrap.checkpoints.store.catalogue import SavedCheckpoint as SavedCheckpoint
    from nantrap.checkpoints.store.config_rate import compare_with_config as compare_with_config
    from nantrap.checkpoints.store.gate import finite_gate as finite_gate
    from nantrap.checkpoints.store.resume import ResumeFinding as ResumeFinding
    from nantrap.checkpoints.store.resume import check_resume as check_resume
    from nantrap.checkpoints.store.store import CheckpointStore as CheckpointStore
    from nantrap.checkpoints.store.store import LoadedCheckpoint as LoadedCheckpoint

__all__ = [
    "CheckpointStore",
    "LoadedCheckpoint",
    "ResumeFinding",
    "SavedCheckpoint",
    "check_resume",
    "compare_with_config",
    "finite_gate",
]

__getattr__ = lazy_names(
    __name__,
    {
        "catalogue": ["SavedCheckpoint"],
        "config_rate": ["compare_with_config"],
        "gate": ["finite_gate"],
        "resume": ["ResumeFinding", "check_resume"],
        "store": ["CheckpointStore", "LoadedCheckpoint"],
    },
)
