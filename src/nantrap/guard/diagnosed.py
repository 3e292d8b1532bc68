"""A failure that was diagnosed, before it is known what is done with its step: nothing of it is written, printed or
counted yet. `Diagnosed.finish` makes the final incident, by adding what had to wait for the action."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nantrap.incident import Action, Decider, Incident
from nantrap.locate.source import with_cell_name
from nantrap.record import Material


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """An incident whose action is not known yet, and what its bundle needs to run the step again.

    Attributes:
        incident: where the failure began, why, and what was tried.
        material: what a bundle needs to run the step again.
        worth_a_bundle: whether there is anything to write.
        avoidable: the step was run again without the guilty samples, and was finite.
        notes: what is said after the incident's own notes.
    """

    incident: Incident
    material: Material | None = None
    worth_a_bundle: bool = False
    avoidable: bool = False
    notes: tuple[str, ...] = ()

    def noting(self, *words: str) -> Diagnosed:
        """Adds notes at the end."""
        return replace(self, notes=(*self.notes, *words))

    def noting_first(self, words: str) -> Diagnosed:
        """Adds a note at the beginning."""
        return self.with_incident(replace(self.incident, notes=(words, *self.incident.notes)))

    def with_incident(self, incident: Incident) -> Diagnosed:
        """Replaces the incident."""
        return replace(self, incident=incident)

    def finish(
        self, action: Action, *, decided_by: Decider = "nantrap", restored: Sequence[str] | None = None
    ) -> Incident:
        """The final incident.

        Args:
            action: what was done with the step.
            decided_by: who decided that.
            restored: what is not as before the step; empty if everything was checked to be, `None` if that was not
                the aim.
        """
        notes = self.incident.notes
        if restored:
            notes = (f"not restored to the values before the step: {', '.join(restored)}", *notes)
        return replace(
            self.incident,
            action=action,
            decided_by=decided_by,
            source=with_cell_name(self.incident.source),
            restored=None if restored is None else not restored,
            notes=(*notes, *self.notes),
        )
