"""nantrap: stops NaN and Inf before they reach the weights, names the guilty operation, proves the cause.

Importing this package imports no torch: the names below are resolved when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from nantrap._version import __version__
from nantrap.errors import FormatError, MissingExtraError, NantrapError, NonFiniteError, UsageError

if TYPE_CHECKING:
    from nantrap import checkpoints as checkpoints
    from nantrap import ops as ops
    from nantrap.checkpoints import CheckpointStore as CheckpointStore
    from nantrap.checkpoints.audit import audit as audit
    from nantrap.doctor.data import without_samples as without_samples
    from nantrap.doctor.explaining import explain as explain
    from nantrap.doctor.preflight import preflight as preflight
    from nantrap.faults import inject as inject
    from nantrap.guard import Guard as Guard
    from nantrap.guard import Limit as Limit
    from nantrap.guard import Outcome as Outcome
    from nantrap.guard import Policy as Policy
    from nantrap.guard import replay as replay
    from nantrap.incident import Action as Action
    from nantrap.incident import Cause as Cause
    from nantrap.incident import Evidence as Evidence
    from nantrap.incident import Finding as Finding
    from nantrap.incident import Incident as Incident
    from nantrap.incident import Site as Site
    from nantrap.incident import TensorStats as TensorStats
    from nantrap.incident import Trial as Trial
    from nantrap.locate import probe as probe
    from nantrap.record.alerts import Alerts as Alerts

_INCIDENT = ("Action", "Cause", "Evidence", "Finding", "Incident", "Site", "TensorStats", "Trial")
_LAZY = {
    **dict.fromkeys(_INCIDENT, "nantrap.incident"),
    "Alerts": "nantrap.record.alerts",
    "CheckpointStore": "nantrap.checkpoints",
    "audit": "nantrap.checkpoints.audit",
    "explain": "nantrap.doctor.explaining",
    "inject": "nantrap.faults",
    "Guard": "nantrap.guard",
    "Limit": "nantrap.guard",
    "Outcome": "nantrap.guard",
    "Policy": "nantrap.guard",
    "replay": "nantrap.guard",
    "preflight": "nantrap.doctor.preflight",
    "probe": "nantrap.locate",
    "without_samples": "nantrap.doctor.data",
}
_LAZY_MODULES = frozenset(
    {"causes", "checkpoints", "errors", "finite", "guard", "incident", "locate", "ops", "record", "report"}
)
"""The folders that work as `nantrap.checkpoints.finite_gate` does, without a separate import."""

__all__ = [
    "Action",
    "Alerts",
    "Cause",
    "CheckpointStore",
    "Evidence",
    "Finding",
    "FormatError",
    "Guard",
    "Incident",
    "Limit",
    "MissingExtraError",
    "NantrapError",
    "NonFiniteError",
    "Outcome",
    "Policy",
    "Site",
    "TensorStats",
    "Trial",
    "UsageError",
    "__version__",
    "audit",
    "explain",
    "inject",
    "ops",
    "preflight",
    "probe",
    "replay",
    "without_samples",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
    elif name in _LAZY_MODULES:
        value = importlib.import_module(f"nantrap.{name}")
    else:
        raise AttributeError(f"module 'nantrap' has no attribute {name!r}")
    globals()[name] = value
    return value


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext nantrap` in a notebook: every optimizer is guarded from here on."""
    importlib.import_module("nantrap.launch.notebook").load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext nantrap`: the notebook as it was, and a summary."""
    importlib.import_module("nantrap.launch.notebook").unload(shell)


def __dir__() -> list[str]:
    return __all__
