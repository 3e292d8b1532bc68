"""The public names are a contract: adding one is a decision, losing one is a break."""

from __future__ import annotations

import pytest

import nantrap

NAMES = {
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
}


def test_names() -> None:
    assert set(nantrap.__all__) == NAMES
    assert set(dir(nantrap)) == NAMES
    assert nantrap.__all__ == sorted(nantrap.__all__)


def test_every_name_resolves() -> None:
    for name in NAMES:
        assert getattr(nantrap, name) is not None


def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(AttributeError) as caught:
        nantrap.Gaurd  # noqa: B018
    assert str(caught.value) == "module 'nantrap' has no attribute 'Gaurd'"


def test_what_an_outcome_and_an_incident_are_made_of() -> None:
    outcome = set(nantrap.Outcome.__dataclass_fields__)
    assert {"applied", "action", "step", "loss", "grad_norm", "incident"} <= outcome
    incident = set(nantrap.Incident.__dataclass_fields__)
    assert incident >= {
        "step", "rank", "phase", "module", "op", "node", "source", "findings", "causes", "samples", "trials", "action",
    }  # fmt: skip
