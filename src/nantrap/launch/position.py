"""Where the script is in its data: the epoch and the batch of each step, and the dataset's indices of bad samples."""

from __future__ import annotations

from dataclasses import replace

from nantrap.guard.checks import check_state
from nantrap.guard.session import Session
from nantrap.guard.watching.sample_list import SampleList
from nantrap.guard.window import Micro
from nantrap.incident import Incident
from nantrap.launch.loaders import Batches, LoadedBatch, inputs_of
from nantrap.launch.shared import DiagnosedLosses, Shared
from nantrap.locate import RootCall


class Position:
    """Writes epoch and batch of each forward pass into the progress of a guard, where a data loader gives them.

    Args:
        session: of the run.
        shared: what all guards of the script share.
        checks_epochs: check the whole state before each epoch of the data loader, and print the result.
    """

    def __init__(self, session: Session, shared: Shared, *, checks_epochs: bool) -> None:
        self._session = session
        self._shared = shared
        self._checks_epochs = checks_epochs
        self._checked_epoch = -1
        self._is_known = False

    def note(self, call: RootCall, *, bad: bool = False) -> None:
        """Where a forward pass is. Of a bad one also whether the data that it was made of are finite."""
        if not isinstance(call.origin, LoadedBatch):  # where the script was then: it may have the next batch by now
            call.origin, call.loaded = self._shared.batches.position(inputs_of(call))
        batch = call.origin
        if bad and batch is not None:
            with self._shared.activity.of_guard():
                call.made_from_finite = batch.is_finite()
                call.loaded = call.loaded or batch.is_bad_where(inputs_of(call))
        if batch is not None:
            self.move_to(batch)
            if self._checks_epochs and batch.epoch > self._checked_epoch:
                self._checked_epoch = batch.epoch
                check_state(self._session, in_forward=True)
        elif self._is_known:  # the position of the step before would be wrong
            progress = self._session.progress
            progress.epoch, progress.batch = progress.framework_epoch, progress.framework_batch

    def move_to(self, batch: LoadedBatch) -> None:
        """The next step is made of this batch, or leaves it out."""
        self._is_known = True
        self._shared.batches.trained.add(batch.round)
        progress = self._session.progress
        progress.epoch = batch.epoch if progress.framework_epoch is None else progress.framework_epoch
        progress.batch = batch.number if progress.framework_batch is None else progress.framework_batch


_SHOWN = 16


class ScriptNeighbours:
    """What a diagnosis asks for that the guard itself does not know: dataset indices, and what other guards found.

    Args:
        batches: what the data loaders gave.
        diagnosed: the losses that were diagnosed, shared by all guards.
        samples: the list of bad samples of the run, which is given each sample that was found.
    """

    def __init__(self, batches: Batches, diagnosed: DiagnosedLosses, samples: SampleList | None) -> None:
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
        recognised = self._batches.recognise(inputs_of(call))
        batch = recognised or call.origin
        if not isinstance(batch, LoadedBatch) or not batch.indices:
            return incident
        samples, are_its_rows = incident.samples, recognised is not None
        if incident.phase == "data" and (recognised is None or batch.entries):
            bad = batch.bad_samples()
            samples = bad if batch.entries and bad else samples
            # what the loader gave is bad in the same rows, whatever was made of it
            are_its_rows = are_its_rows or set(samples) == set(bad)
        if are_its_rows and samples and max(samples) < len(batch.indices):
            return self._indexed(incident, batch, samples)
        shown = ", ".join(map(str, batch.indices[:_SHOWN])) + (", ..." if len(batch.indices) > _SHOWN else "")
        return replace(incident, notes=(*incident.notes, f"the batch was made of the dataset's samples {shown}"))

    def _indexed(self, incident: Incident, batch: LoadedBatch, samples: tuple[int, ...]) -> Incident:
        """The incident with the dataset's indices of these samples of a batch, which go to the list of bad samples."""
        notes, found = incident.notes, tuple(batch.indices[i] for i in samples)
        if batch.original:
            below = ", ".join(str(batch.original[i]) for i in samples[:_SHOWN])
            kind = type(batch.dataset()).__name__
            notes = (f"the dataset is a {kind}: in the dataset below it the index is {below}", *notes)
        if self._samples is not None:
            self._samples.see(batch.dataset(), found)
        return replace(incident, samples=samples, dataset_indices=found, notes=notes)

    def _placed(self, incident: Incident, batch: LoadedBatch) -> Incident:
        """The incident with the epoch and number of its own batch: a step may have taken others after it."""
        counted = any((each.epoch, each.number) == (incident.epoch, incident.batch) for each in self._batches.last)
        return replace(incident, epoch=batch.epoch, batch=batch.number) if counted else incident

    def place(self, call: RootCall) -> int | None:
        """Note the batch of which a call was made; its number in its data loader, where it is known."""
        call.origin, call.loaded = batch, _ = self._batches.position(inputs_of(call))
        if batch is not None:
            call.made_from_finite = batch.is_finite()
            call.loaded = call.loaded or batch.is_bad_where(inputs_of(call))
        return None if batch is None else batch.number

    def known_incident(self, micro: Micro) -> Incident | None:
        """The incident of another optimizer's guard that saw the same loss."""
        return self._diagnosed.by_another(self, micro.loss.total)

    def remember_incident(self, micro: Micro, incident: Incident) -> None:
        """For another optimizer's guard that sees the same loss."""
        self._diagnosed.remember(self, micro.loss.total, incident)

    def note_call(self, model: str, incident: Incident) -> None:
        """For the step that comes next: the loop may use what the model gave."""
        cause = incident.cause
        why = f" ({cause.code}, {cause.slug})" if cause is not None and cause.slug != "unknown" else ""
        self._diagnosed.note_call(
            f"the output of {model}", f"{model} gave it without gradients since the last step: its own incident{why}"
        )

    def bad_call(self) -> tuple[str, str]:
        """What a model without gradients gave since the last step."""
        return self._diagnosed.bad_call()
