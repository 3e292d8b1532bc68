"""`Outcome`: the result of one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nantrap.incident import Action, Incident


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one step.

    With `Policy(sync="late")` this step has not been read yet: `applied` and `action` say what was launched, while
    `loss`, `grad_norm` and `incident` are those of the step before (`incident.step` says which).

    Attributes:
        applied: whether the weights moved.
        action: `apply`, `skip`, `rollback` or `stop`.
        step: 0-based count of attempted steps.
        loss: the mean loss of the step's micro-batches, as given to the guard; a float.
        grad_norm: the total gradient norm before clipping; a float.
        incident: what went wrong (`incident.cause` says why), or `None`. A `GradScaler` probing its scale skips without
            an incident.
        terms: the named loss terms, if the loss was given as a dict.
    """

    applied: bool
    action: Action
    step: int
    loss: float
    grad_norm: float
    incident: Incident | None = None
    terms: Mapping[str, float] = field(default_factory=dict)
