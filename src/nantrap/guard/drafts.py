"""An incident while it is being made: a draft first, and the incident once it is known what was done.

`build_incident` is the only place where the guard makes an `Incident`, and `Draft.finish` the only one that sets what
was done. Nothing is written, printed or counted before that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nantrap.guard.judge import Verdict
from nantrap.guard.progress import Progress
from nantrap.incident import Action, Cause, Finding, Incident, Phase
from nantrap.locate.source import with_cell_name
from nantrap.record import Material


@dataclass(slots=True)
class Draft:
    """An incident whose action is not known yet, and what its bundle needs to run the step again."""

    incident: Incident
    material: Material | None = None
    worth_a_bundle: bool = False
    avoidable: bool = False
    """The step was run again without the guilty samples, and was finite."""
    notes: list[str] = field(default_factory=list)

    def finish(self, action: Action, *, restored: Sequence[str] | None = None) -> Incident:
        """The final incident.

        Args:
            action: what was done with the step.
            restored: what is not as before the step; empty if everything was checked to be, `None` if that was not
                the aim.
        """
        notes = self.incident.notes
        if restored:
            notes = (f"not everything is as before the step: {', '.join(restored)}", *notes)
        return replace(
            self.incident,
            action=action,
            source=with_cell_name(self.incident.source),
            restored=None if restored is None else not restored,
            notes=(*notes, *self.notes),
        )


def build_incident(
    progress: Progress,
    *,
    rank: int,
    phase: Phase,
    verdict: Verdict | None = None,
    module: str | None = None,
    findings: Sequence[Finding] = (),
    causes: Sequence[Cause] = (),
    samples: Sequence[int] = (),
    loss: float | None = None,
    terms: Mapping[str, float] | None = None,
    norm: float | None = None,
    rates: tuple[float, ...] = (),
    notes: Sequence[str] = (),
    step: int | None = None,
    inputs: Sequence[Finding] = (),
) -> Incident:
    """An incident as far as it is known without running anything again."""
    return Incident(
        step=progress.step if step is None else step,
        rank=rank,
        origin_rank=rank if verdict is None else verdict.origin_rank,
        bad_ranks=(rank,) if verdict is None else verdict.bad_ranks,
        epoch=progress.epoch,
        batch=progress.batch,
        phase=phase,
        module=module,
        findings=tuple(findings),
        causes=tuple(causes),
        samples=tuple(samples),
        inputs=tuple(inputs),
        action=Action.SKIP,
        loss=loss,
        terms=dict(terms or {}),
        grad_norm=norm,
        lr=rates,
        notes=tuple(notes),
    )
