"""The store: `CheckpointStore`, the finite gate, the last good checkpoint, the check after a resume."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nantrap.checkpoints.store.catalogue import SavedCheckpoint as SavedCheckpoint
    from nantrap.checkpoints.store.config_rate import compare_with_config as compare_with_config
    from nantrap.checkpoints.store.gate import finite_gate as finite_gate
    from nantrap.checkpoints.store.resume import ResumeFinding as ResumeFinding
    from nantrap.checkpoints.store.resume import check_resume as check_resume
    from nantrap.checkpoints.store.store import CheckpointStore as CheckpointStore
    from nantrap.checkpoints.store.store import LoadedCheckpoint as LoadedCheckpoint

_FILES = {
    "CheckpointStore": "store",
    "LoadedCheckpoint": "store",
    "ResumeFinding": "resume",
    "SavedCheckpoint": "catalogue",
    "check_resume": "resume",
    "compare_with_config": "config_rate",
    "finite_gate": "gate",
}

__all__ = [
    "CheckpointStore",
    "LoadedCheckpoint",
    "ResumeFinding",
    "SavedCheckpoint",
    "check_resume",
    "compare_with_config",
    "finite_gate",
]


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"module 'nantrap.checkpoints.store' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"nantrap.checkpoints.store.{_FILES[name]}"), name)
    globals()[name] = value
    return value
