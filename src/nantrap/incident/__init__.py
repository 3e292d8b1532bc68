"""The vocabulary: what an incident is made of, and its versioned JSON. Opens without torch.

Names are resolved when they are first used: commands that need only `wording` start faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap._lazy import lazy_names

if TYPE_CHECKING:
    from nantrap.incident.codes import BY_CODE as BY_CODE
    from nantrap.incident.codes import BY_SLUG as BY_SLUG
    from nantrap.incident.codes import Code as Code
    from nantrap.incident.codes import lookup as lookup
    from nantrap.incident.vocabulary import PHASES as PHASES
    from nantrap.incident.vocabulary import Action as Action
    from nantrap.incident.vocabulary import Alternative as Alternative
    from nantrap.incident.vocabulary import Cause as Cause
    from nantrap.incident.vocabulary import Decider as Decider
    from nantrap.incident.vocabulary import During as During
    from nantrap.incident.vocabulary import Evidence as Evidence
    from nantrap.incident.vocabulary import Finding as Finding
    from nantrap.incident.vocabulary import FindingKind as FindingKind
    from nantrap.incident.vocabulary import Fix as Fix
    from nantrap.incident.vocabulary import Frame as Frame
    from nantrap.incident.vocabulary import Incident as Incident
    from nantrap.incident.vocabulary import Magnitudes as Magnitudes
    from nantrap.incident.vocabulary import Phase as Phase
    from nantrap.incident.vocabulary import Probe as Probe
    from nantrap.incident.vocabulary import Site as Site
    from nantrap.incident.vocabulary import Source as Source
    from nantrap.incident.vocabulary import TensorStats as TensorStats
    from nantrap.incident.vocabulary import Trial as Trial

__all__ = [
    "BY_CODE",
    "BY_SLUG",
    "PHASES",
    "Action",
    "Alternative",
    "Cause",
    "Code",
    "Decider",
    "During",
    "Evidence",
    "Finding",
    "FindingKind",
    "Fix",
    "Frame",
    "Incident",
    "Magnitudes",
    "Phase",
    "Probe",
    "Site",
    "Source",
    "TensorStats",
    "Trial",
    "lookup",
]

_CODES = ["BY_CODE", "BY_SLUG", "Code", "lookup"]
__getattr__ = lazy_names(__name__, {"codes": _CODES, "vocabulary": [name for name in __all__ if name not in _CODES]})
