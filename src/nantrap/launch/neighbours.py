"""What a diagnosis asks for that a guard does not know itself: the dataset's indices, and what other guards found."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from nantrap.guard.watching.sample_list import SampleList
from nantrap.guard.window import Micro
from nantrap.incident import Incident
from nantrap.launch.loaders import Batches, LoadedBatch, inputs_of

_SHOWN = 16
_JUDGED = 16


class Diagnosed:
    """The last loss that each guard diagnosed, with its incident. Two optimizers may share one loss.

    A loss is held weakly, so that its graph can be freed.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[weakref.ref[Tensor], Incident]] = {}
        self._judged: deque[tuple[int, weakref.ref[Tensor]]] = deque(maxlen=_JUDGED)

    def remember(self, by: object, loss: Tensor, incident: Incident) -> None:
        """This guard has diagnosed a loss."""
        self._last[id(by)] = weakref.ref(loss), incident

    def judge(self, by: object, losses: Sequence[Tensor]) -> None:
        """This guard has refused a step that was made of these losses."""
        self._judged.extend((id(by), weakref.ref(loss)) for loss in losses)

    def is_judged_by_another(self, guard: object, loss: Tensor) -> bool:
        """Whether another guard has refused a step that was made of this loss."""
        return any(each != id(guard) and known() is loss for each, known in self._judged)

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
        if call is not None and isinstance(call.origin, LoadedBatch):
            incident = self._placed(incident, call.origin)
        if incident.dataset_indices or call is None:
            return incident
        inputs = inputs_of(call)
        recognised = self._batches.recognise(inputs)
        batch = recognised or call.origin
        if not isinstance(batch, LoadedBatch) or not batch.indices:
            return incident
        indices, samples = batch.indices, incident.samples
        if incident.phase == "data" and (recognised is None or batch.entries):
            bad = batch.bad_samples()
            if batch.entries and bad:
                samples = bad
            if set(samples) == set(bad):  # what the loader gave is bad in the same rows, whatever was made of it
                recognised = batch
        if recognised is not None and samples and max(samples) < len(indices):
            notes = incident.notes
            if batch.original:
                below = ", ".join(str(batch.original[i]) for i in samples[:_SHOWN])
                kind = type(batch.dataset()).__name__
                notes = (f"the dataset is a {kind}: in the dataset below it the index is {below}", *notes)
            found = tuple(indices[i] for i in samples)
            if self._samples is not None:
                self._samples.see(batch.dataset(), found)
            return replace(incident, samples=samples, dataset_indices=found, notes=notes)
        shown = ", ".join(map(str, indices[:_SHOWN])) + (", ..." if len(indices) > _SHOWN else "")
        return replace(incident, notes=(*incident.notes, f"the batch was made of the dataset's samples {shown}"))

    def _placed(self, incident: Incident, batch: LoadedBatch) -> Incident:
        """The incident with the epoch and number of its own batch: a step may have taken others after it."""
        counted = any((each.epoch, each.number) == (incident.epoch, incident.batch) for each in self._batches.last)
        return replace(incident, epoch=batch.epoch, batch=batch.number) if counted else incident

    def known_incident(self, micro: Micro) -> Incident | None:
        """The incident of another optimizer's guard that saw the same loss."""
        return self._diagnosed.by_another(self, micro.loss.total)

    def remember_incident(self, micro: Micro, incident: Incident) -> None:
        """For another optimizer's guard that sees the same loss."""
        self._diagnosed.remember(self, micro.loss.total, incident)
