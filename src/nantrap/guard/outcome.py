"""`Outcome`: the result of one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nantrap.incident import Action, Incident


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one step.

    Where steps are read late (`Policy(sync=...)`), this step has not been read yet: `applied` and `action` say what was
    launched, and `loss`, `grad_norm`, `terms` and `incident` are those of the step before: `loss_step` says which.

    Attributes:
        applied: whether the weights moved.
        action: `apply`, `skip`, `rollback` or `stop`.
        step: 0-based count of attempted steps.
        loss: the mean loss of the step's micro-batches, as given to the guard; a float.
        grad_norm: the total gradient norm before clipping; a float.
        incident: what went wrong (`incident.cause` says why), or `None`. A `GradScaler` probing its scale skips without
            an incident.
        terms: the named loss terms, if the loss was given as a dict.
        loss_step: the step that `loss`, `grad_norm` and `terms` belong to.
    """

    applied: bool
    action: Action
    step: int
    loss: float
    grad_norm: float
    incident: Incident | None = None
    terms: Mapping[str, float] = field(default_factory=dict)
    loss_step: int = 0
