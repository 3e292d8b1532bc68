"""Where the run is, and what it did so far."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from nantrap.record import StepTally


@dataclass(slots=True)
class Progress:
    """The number of the step that is being made, and the loop's own position where it is given.

    `samples` are the dataset's indices of the samples in the batch; `loaded` names what was not finite in the model
    when its weights were loaded since the last step (`None` if they were not); `cleaned` counts the samples of this
    step in which the script replaced non-finite values. `framework_epoch` and `framework_batch` are what a framework
    says: it knows where a resumed run is, and a data loader does not.
    """

    step: int = 0
    epoch: int | None = None
    batch: int | None = None
    samples: tuple[int, ...] = ()
    loaded: frozenset[str] | None = None
    cleaned: int = 0
    framework_epoch: int | None = None
    framework_batch: int | None = None


@dataclass(slots=True)
class Tally(StepTally):
    """What a run did so far, in numbers: its steps, and what is not in the journal."""

    dropped_terms: Counter[str] = field(default_factory=Counter)
    """Loss terms that were left out of a step that was applied, by name."""
    spikes: int = 0
    outside: int = 0
    """Batches outside their usual range."""
    steps_without_gradient: int = 0
    """Steps in a row, up to now, in which no gradient reached a parameter."""
    no_gradient_since: int | None = None
    """The first step of the last such series that was long enough to be reported."""
    no_gradient_because: str = ""
    """Why no gradient reaches a parameter, where it is certain."""
    left_out: int = 0
    """Bad losses that the script left out of a step that it made."""
