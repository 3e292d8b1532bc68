"""What a diagnosis asks for that a guard does not know itself: the dataset's indices, and what other guards found."""

from __future__ import annotations

import weakref
from dataclasses import replace

from torch import Tensor

from nantrap.guard.sample_list import SampleList
from nantrap.guard.window import Micro
from nantrap.incident import Incident
from nantrap.launch.loaders import Batches, inputs_of

_SHOWN = 16


class Diagnosed:
    """The last loss that each guard diagnosed, with its incident. Two optimizers may share one loss.

    A loss is held weakly, so that its graph can be freed.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[weakref.ref[Tensor], Incident]] = {}

    def remember(self, by: object, loss: Tensor, incident: Incident) -> None:
        """This guard has diagnosed a loss."""
        self._last[id(by)] = weakref.ref(loss), incident

    def by_another(self, guard: object, loss: Tensor) -> Incident | None:
        """The incident of another guard that diagnosed the same loss."""
        for each, (known, incident) in self._last.items():
            if each != id(guard) and known() is loss:
                return incident
        return None


class ScriptNeighbours:
    """What a diagnosis asks for that the guard itself does not know: dataset indices, and what other guards found.

    Args:
        batches: what the data loaders gave.
        diagnosed: the losses that were diagnosed, shared by all guards.
        samples: the list of bad samples of the run, which is given each sample that was found.
    """

    def __init__(self, batches: Batches, diagnosed: Diagnosed, samples: SampleList | None) -> None:
        self._batches = batches
        self._diagnosed = diagnosed
        self._samples = samples

    def name_samples(self, incident: Incident, micro: Micro) -> Incident:
        """The incident with the dataset's own indices, where the data loader gives them."""
        call = micro.root_call
        if incident.dataset_indices or call is None:
            return incident
        inputs = inputs_of(call)
        recognised = self._batches.recognise(inputs)
        batch = recognised or self._batches.position(inputs)[0]
        if batch is None or not batch.indices:
            return incident
        indices = batch.indices
        if recognised is not None and incident.samples and max(incident.samples) < len(indices):
            notes = incident.notes
            if batch.original:
                below = ", ".join(str(batch.original[i]) for i in incident.samples[:_SHOWN])
                kind = type(batch.dataset()).__name__
                notes = (*notes, f"the dataset is a {kind}: in the dataset below it the index is {below}")
            found = tuple(indices[i] for i in incident.samples)
            if self._samples is not None:
                self._samples.see(batch.dataset(), found)
            return replace(incident, dataset_indices=found, notes=notes)
        shown = ", ".join(map(str, indices[:_SHOWN])) + (", ..." if len(indices) > _SHOWN else "")
        return replace(incident, notes=(*incident.notes, f"the batch was made of the dataset's samples {shown}"))

    def known_incident(self, micro: Micro) -> Incident | None:
        """The incident of another optimizer's guard that saw the same loss."""
        return self._diagnosed.by_another(self, micro.loss.total)

    def remember_incident(self, micro: Micro, incident: Incident) -> None:
        """For another optimizer's guard that sees the same loss."""
        self._diagnosed.remember(self, micro.loss.total, incident)
