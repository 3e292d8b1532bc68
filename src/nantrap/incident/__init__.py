"""The vocabulary: what an incident is made of, and its versioned JSON. Opens without torch."""

from nantrap.incident.codes import BY_CODE, BY_SLUG, Code, lookup
from nantrap.incident.vocabulary import (
    PHASES,
    Action,
    Cause,
    Evidence,
    Finding,
    FindingKind,
    Fix,
    Frame,
    Incident,
    Phase,
    Probe,
    Site,
    Source,
    TensorStats,
    Trial,
)

__all__ = [
    "BY_CODE",
    "BY_SLUG",
    "PHASES",
    "Action",
    "Cause",
    "Code",
    "Evidence",
    "Finding",
    "FindingKind",
    "Fix",
    "Frame",
    "Incident",
    "Phase",
    "Probe",
    "Site",
    "Source",
    "TensorStats",
    "Trial",
    "lookup",
]
