"""A list of bad samples beside a run: what is on it is named in incidents, and what incidents find is added.

The list is that of `nantrap data --quarantine`, so `nantrap.without_samples` leaves the added samples out next time. A
sample is added only where it is to blame: its values are bad, or the step was run again without it and was finite.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import Any

from nantrap.errors import NantrapError, UsageError
from nantrap.incident import Incident
from nantrap.incident.wording import counted, escaped, some_of
from nantrap.record.bad_samples import DATASET, BadSamples, add_to_list, below, paths_of

_SHOWN = 8
_BLAMED = ("NT1", "NT2", "NT3")
"""Families of causes in which a sample can be to blame: data, forward and backward maths. In the others (precision,
learning rate, optimizer state) a sample is only the first that the run breaks on."""


class SampleList:
    """The list of one run. Holds its path, what is known to be on it, and how many samples were added.

    Args:
        path: `bad-samples.json`; made when the first sample is added.
        file: which file of the list the dataset reads, if there are several.
    """

    def __init__(self, path: str | os.PathLike[str], *, file: str | None = None) -> None:
        self.path = os.path.abspath(os.fspath(path))  # a script may change its folder
        self.name = os.fspath(path)
        self.added = 0
        self._file = file
        self._listed = BadSamples.load(path) if os.path.exists(path) else BadSamples()
        self._numbers: dict[int, int] = {}
        self._paths: list[str] = []
        self._failed = False
        if file is not None and self._listed.lengths and file not in self._listed.lengths:
            raise UsageError(f"{file} is not in {self.name}; it has {some_of(list(self._listed.lengths), 5)}")

    def see(self, dataset: Any, indices: tuple[int, ...]) -> None:
        """The samples of a batch, as the loader's dataset counts them. A `Subset` counts otherwise than the list."""
        whole, numbers = below(dataset)
        self._numbers = {} if numbers is None else {index: numbers[index] for index in indices if index < len(numbers)}
        self._paths = paths_of(whole)

    def note(self, incident: Incident, *, avoidable: bool) -> Incident:
        """The incident with what the list says of its samples, which are added if they are to blame.

        Args:
            incident: with the dataset's indices of its guilty samples, or without any.
            avoidable: the step was run again without these samples and was finite.
        """
        if not incident.dataset_indices:
            return incident
        known: list[int] = []
        fresh: dict[tuple[str, str], list[int]] = {}
        rule = incident.cause.slug if incident.cause is not None else "non_finite"
        for index in incident.dataset_indices:
            place = self._place(index)
            if place is None:
                words = f"{self.name} is about other data: it has no sample {index:,}"
                return replace(incident, notes=(*incident.notes, words))
            if self._listed.rules_of(*place):
                known.append(index)
            else:
                fresh.setdefault((place[0], rule), []).append(place[1])
        notes = []
        if known:
            notes.append(f"{_samples(known)} on the list {self.name}; nantrap.without_samples leaves it out")
        here = incident.origin_rank in (None, incident.rank)  # every rank knows of it, and one of them adds it
        if fresh and here and _is_to_blame(incident, avoidable=avoidable):
            notes.append(self._add(fresh))
        return replace(incident, notes=(*incident.notes, *notes)) if notes else incident

    def _place(self, index: int) -> tuple[str, int] | None:
        """File and index in the list of a sample of the dataset."""
        number = self._numbers.get(index, index)
        if self._file is not None:
            return self._file, number
        if self._paths and DATASET not in self._listed.lengths:
            if number >= len(self._paths):
                return None
            wanted = os.path.realpath(self._paths[number])
            file = next((name for name in self._listed.lengths if os.path.realpath(name) == wanted), None)
            return (file or self._paths[number], 0)
        return self._listed.place_of(number)

    def _add(self, found: dict[tuple[str, str], list[int]]) -> str:
        """Write the samples down. A list that cannot be written costs a warning, never the run."""
        count = sum(len(indices) for indices in found.values())
        noun = counted(count, "sample")
        try:
            self._listed = add_to_list(self.path, found)
        except (OSError, NantrapError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            if not self._failed:
                self._failed = True
                text = escaped(f"nantrap: {self.name} cannot be written: {reason}", most=4000)
                warnings.warn(f"{text}. Training continues", RuntimeWarning, stacklevel=2)
            return f"{noun} could not be added to {self.name}: {reason}"
        self.added += count
        return f"{noun} added to the list {self.name}; nantrap.without_samples leaves it out next time"

    def summary(self) -> str:
        """What the end of the run says; empty if nothing was added."""
        if not self.added:
            return ""
        noun = counted(self.added, "sample")
        text = f"{noun} added to {self.name}: leave out with nantrap.without_samples(dataset, {self.name!r})"
        return escaped(text, most=4000)


def as_sample_list(given: str | os.PathLike[str] | SampleList | None) -> SampleList | None:
    """What `bad_samples=` may be: a path, a list that says which file the dataset reads, or nothing."""
    if given is None or isinstance(given, SampleList):
        return given
    if not isinstance(given, (str, os.PathLike)):
        raise UsageError(f"bad_samples={given!r}: expected the path of a list, such as 'bad-samples.json'")
    return SampleList(given)


def _is_to_blame(incident: Incident, *, avoidable: bool) -> bool:
    """Whether the samples are at fault, and not the state of the model."""
    if incident.phase == "data":
        return True
    if incident.cause is not None and not incident.cause.code.startswith(_BLAMED):
        return False
    tried = any(trial.name == "without_samples" and trial.finite for trial in incident.trials)
    return avoidable or tried


def _samples(indices: list[int]) -> str:
    shown = ", ".join(f"{index:,}" for index in indices[:_SHOWN]) + (" ..." if len(indices) > _SHOWN else "")
    return f"sample {shown} is" if len(indices) == 1 else f"samples {shown} are"
