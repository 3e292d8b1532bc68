"""How an incident is completed before its action is known: where it began, why, and that it was seen before.

Pure functions from one incident to the next; `diagnosis` decides which of them apply.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nantrap.guard.watching.ranges import outside_in_words
from nantrap.guard.window import Micro
from nantrap.incident import Cause, Evidence, Fix, Incident
from nantrap.locate import Location

if TYPE_CHECKING:  # the rules are many: imported by the first failure
    from nantrap.causes import Explanation


def with_location(incident: Incident, location: Location) -> Incident:
    """The incident with the place where it began. What was seen there comes before what was seen at the end."""
    samples, notes = location.samples, location.notes
    batch, indices = samples.guilty, samples.dataset_indices
    all_fail = len(batch) > 1 and len(batch) == samples.size
    measured = tuple(sorted({i for f in location.findings for i in f.samples})) if location.phase == "data" else ()
    if measured and (all_fail or not batch):
        # a loss that mixes the samples fails with each of them, and yet the bad values are in a few
        by_sample = dict(zip(batch, indices, strict=False))
        batch, indices = measured, tuple(by_sample[i] for i in measured if i in by_sample)
        indices = indices if len(indices) == len(batch) else ()
    elif all_fail:  # a list of all of them would say nothing
        batch, indices = (), ()
        words = f"each of the {samples.size:,} samples of the batch fails alone, so no single one is the reason"
        notes = (*notes, words)
    return replace(
        incident,
        phase=location.phase,
        module=location.module,
        op=location.op,
        node=location.node,
        source=location.source,
        call=location.call,
        findings=(*location.findings, *incident.findings),
        samples=batch,
        dataset_indices=indices,
        frames=location.frames,
        path=location.path,
        probes=location.probes,
        exact=location.exact,
        notes=(*incident.notes, *notes),
    )


def with_explanation(incident: Incident, explanation: Explanation) -> Incident:
    """The incident with its causes, and with what was tried."""
    return replace(
        incident,
        causes=explanation.causes,
        refuted=explanation.refuted,
        trials=explanation.trials,
        controls=explanation.controls,
        notes=(*incident.notes, *explanation.notes),
    )


def with_unusual_batch(incident: Incident) -> Incident:
    """A batch outside its usual range: nothing failed, and what was measured is all there is to say."""
    found = [finding for finding in incident.findings if finding.kind == "batch"]
    cause = Cause(
        "input_out_of_scale",
        proven=True,
        risk="medium",
        confidence=1.0,
        summary=outside_in_words(found),
        evidence=tuple(Evidence(f"{finding.name} {finding.note}") for finding in found),
        fix=Fix(text=f"check the range of {found[0].name} where the data are read, and scale or drop what is outside"),
    )
    samples = tuple(sorted({index for finding in found for index in finding.samples}))
    return replace(incident, module="data", causes=(cause,), samples=samples)


def signature_of(incident: Incident) -> tuple[str, ...]:
    """What is known of an incident without running anything: two that agree in it count as the same."""
    return (incident.phase, *sorted({f"{f.kind}:{f.name}" for f in incident.findings})[:8])


def like_known(incident: Incident, known: Incident, words: str) -> Incident:
    """An incident that was seen before: its place and causes are taken over, and it refers back."""
    return replace(
        incident,
        phase=known.phase,
        module=known.module,
        op=known.op,
        node=known.node,
        source=known.source,
        # the summary names another batch's samples and values; the title holds for both
        causes=tuple(replace(cause, proven=False, summary=_of_both(cause)) for cause in known.causes),
        same_as=known.step,
        notes=(words,),
    )


def _of_both(cause: Cause) -> str:
    """What can be said of two incidents that look alike. A guess about the first is no more than that here."""
    return cause.title if cause.proven else f"perhaps {cause.title}"


def not_compared(incident: Incident, earlier: Incident) -> Incident:
    """The same tensors are bad as before, and the ranks do not run the step again to see whether it is the same."""
    note = (
        f"the same tensors are bad as in step {earlier.step:,}; the step was not run again, so the cause is not known"
    )
    return replace(incident, notes=(*incident.notes, note))


def at_position_of(micro: Micro, incident: Incident) -> Incident:
    """The incident at the epoch and batch of a micro-batch, where they are known: the step ends with a later one."""
    if micro.position is None:
        return incident
    epoch, batch = micro.position
    return replace(incident, epoch=epoch, batch=batch)


MAY_DIFFER = (
    "the ranks exchange nothing here: if the other ranks applied this step, their weights differ from those of this "
    "rank now"
)
"""An update that went wrong on one of several ranks that cannot tell each other."""


def began_elsewhere(rank: int | None) -> str:
    """The note of a rank on which nothing began."""
    return "it began on another rank" if rank is None else f"it began on rank {rank}; see that rank's incident"
