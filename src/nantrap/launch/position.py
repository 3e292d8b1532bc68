"""Where the script is in its data: the epoch and the batch of each step."""

from __future__ import annotations

from nantrap.guard.parts import Parts
from nantrap.guard.state_check import check_state
from nantrap.launch.loaders import LoadedBatch, inputs_of
from nantrap.launch.shared import Shared
from nantrap.locate import RootCall


class Position:
    """Writes epoch and batch of each forward pass into the progress of a guard, where a data loader gives them.

    Args:
        parts: the collaborators of a step.
        shared: what all guards of the script share.
        checks_epochs: check the whole state before each epoch of the data loader, and print the result.
    """

    def __init__(self, parts: Parts, shared: Shared, *, checks_epochs: bool) -> None:
        self._parts = parts
        self._shared = shared
        self._checks_epochs = checks_epochs
        self._checked_epoch = -1
        self._is_known = False

    def note(self, call: RootCall, *, bad: bool = False) -> None:
        """Where a forward pass is. Of a bad one also whether the data that it was made of are finite."""
        batch, call.loaded = self._shared.batches.position(inputs_of(call))
        call.origin = batch
        if bad and batch is not None:
            with self._shared.activity.of_guard():
                call.made_from_finite = batch.is_finite()
                call.loaded = call.loaded or batch.is_bad_where(inputs_of(call))
        if batch is not None:
            self.move_to(batch)
            if self._checks_epochs and batch.epoch > self._checked_epoch:
                self._checked_epoch = batch.epoch
                check_state(self._parts, in_forward=True)
        elif self._is_known:  # the position of the step before would be wrong
            progress = self._parts.progress
            progress.epoch, progress.batch = progress.framework_epoch, progress.framework_batch

    def move_to(self, batch: LoadedBatch) -> None:
        """The next step is made of this batch, or leaves it out."""
        self._is_known = True
        progress = self._parts.progress
        progress.epoch = batch.epoch if progress.framework_epoch is None else progress.framework_epoch
        progress.batch = batch.number if progress.framework_batch is None else progress.framework_batch
