"""nantrap: stops NaN and Inf before they reach the weights, names the guilty operation, proves the cause.

Importing this package imports no torch: the names below are resolved when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from nantrap._lazy import lazy_names
from nantrap._version import __version__
from nantrap.errors import FormatError, MissingExtraError, NantrapError, NonFiniteError, UsageError

if TYPE_CHECKING:
    from nantrap import checkpoints as checkpoints
    from nantrap import ops as ops
    from nantrap.checkpoints import CheckpointStore as CheckpointStore
    from nantrap.checkpoints.audit import audit as audit
    from nantrap.doctor.data import without_samples as without_samples
    from nantrap.doctor.preflight import preflight as preflight
    from nantrap.faults import inject as inject
    from nantrap.guard import Accumulation as Accumulation
    from nantrap.guard import BatchChecks as BatchChecks
    from nantrap.guard import Bundle as Bundle
    from nantrap.guard import Diagnosis as Diagnosis
    from nantrap.guard import Guard as Guard
    from nantrap.guard import Limit as Limit
    from nantrap.guard import Outcome as Outcome
    from nantrap.guard import Policy as Policy
    from nantrap.guard import Rollback as Rollback
    from nantrap.guard import Sampling as Sampling
    from nantrap.guard import Skips as Skips
    from nantrap.guard import Spikes as Spikes
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
    from nantrap.pages import explain as explain
    from nantrap.record.alerts import Alerts as Alerts

__all__ = [
    "Accumulation",
    "Action",
    "Alerts",
    "BatchChecks",
    "Bundle",
    "Cause",
    "CheckpointStore",
    "Diagnosis",
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
    "Rollback",
    "Sampling",
    "Site",
    "Skips",
    "Spikes",
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

# the folders work as `nantrap.checkpoints.finite_gate` does, without a separate import
__getattr__ = lazy_names(
    __name__,
    {
        "incident": ["Action", "Cause", "Evidence", "Finding", "Incident", "Site", "TensorStats", "Trial"],
        "record.alerts": ["Alerts"],
        "checkpoints": ["CheckpointStore"],
        "checkpoints.audit": ["audit"],
        "pages": ["explain"],
        "doctor.preflight": ["preflight"],
        "doctor.data": ["without_samples"],
        "faults": ["inject"],
        "guard": [
            "Guard",
            "Limit",
            "Outcome",
            "Policy",
            "replay",
            "Accumulation",
            "BatchChecks",
            "Bundle",
            "Diagnosis",
            "Rollback",
            "Sampling",
            "Skips",
            "Spikes",
        ],
        "locate": ["probe"],
    },
    submodules=("causes", "checkpoints", "errors", "finite", "guard", "incident", "locate", "ops", "record", "report"),
)


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext nantrap` in a notebook: every optimizer is guarded from here on."""
    importlib.import_module("nantrap.launch.runner").load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext nantrap`: the notebook as it was, and a summary."""
    importlib.import_module("nantrap.launch.runner").unload(shell)


def __dir__() -> list[str]:
    return __all__
