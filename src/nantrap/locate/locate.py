"""Where it began: the questions in order, cheapest first, and one answer.

0.  Is only a parameter bad that the program wrote between two steps? Then no operation of the step made it.
1.  Did the update make it? Then the optimizer's step is run again under a trace.
2.  Did finite gradients have a norm that is not? Then the norm is taken again under a trace.
3.  Otherwise forward and backward are run again under a trace (`attempt`), or the root module's call and the live
    graph are (the two-line form).
"""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nantrap.incident.wording import NO_MEMORY, is_out_of_memory
from nantrap.locate.batch import may_be_listed_image, tensors_of
from nantrap.locate.budget import Budget
from nantrap.locate.failure import Failure, without_printed_warnings
from nantrap.locate.location import Location, as_step_data, evidence_location, location_of, owner_of
from nantrap.locate.probes import clear_probes, probes_kept, read_probes
from nantrap.locate.replay.fresh_memory import unwritten_memory
from nantrap.locate.replay.program import cannot_rewind
from nantrap.locate.replay.replay import replay_norm, replay_step, replay_update
from nantrap.locate.replay.samples import find_samples
from nantrap.locate.source import cell_name
from nantrap.locate.torch_private import version_of
from nantrap.locate.trace import Trace
from nantrap.locate.trace.origin import Replay, judge_tape
from nantrap.locate.trace.tape import Tape
from nantrap.locate.twoline.autopsy import GraphEvidence
from nantrap.locate.twoline.rerun import compute_again
from nantrap.locate.twoline.without_function import locate_without_function

_LONGEST_ERROR = 200
_NOT_EVALUATED = (
    "the optimizer evaluates the loss several times in one step, and the loss could not be computed again: its update "
    "was not made again"
)


@without_printed_warnings
def locate(failed: Failure, *, budget: Budget | None = None, samples: bool = True) -> tuple[Failure, Location]:
    """Find where the failure began. Never raises: what goes wrong while locating is written to `notes`.

    Args:
        failed: the step that failed.
        budget: how long this may take; the step itself is run again in any case.
        samples: whether the guilty samples are searched, too.

    Returns:
        The step as it is known afterwards, and where it began. Where a way was found to run a step again that had
        none, that way is in the step.
    """
    try:
        with probes_kept():
            known, location = _locate(failed, budget or Budget(), samples=samples)
            return known, _with_entries(location, failed)
    except Exception as error:
        if is_out_of_memory(error):
            return failed, Location(phase=failed.symptom, notes=(f"locating was given up: {NO_MEMORY}",))
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = (str(error).splitlines() or [""])[0][:_LONGEST_ERROR]  # some of torch's take pages
        note = f"locating failed with {type(error).__name__}: {said} ({last.name}, line {last.lineno})"
        return failed, Location(phase=failed.symptom, notes=(note,))


def _with_entries(location: Location, failed: Failure) -> Location:
    """The location with the sample of a bad tensor that is one entry of a list, such as one image of a detector.

    Its first dimension counts channels. Where the batch of a data loader is a list with one entry per sample, the entry
    is the sample. Of any other tensor that may be an image in a list, no sample is named.
    """
    external = location.external
    if external is None or external.kind != "batch" or failed.root_call is None:
        return location
    found: tuple[int, ...] | None = None
    for call in failed.root_call.chain():
        entry = None if call.origin is None else call.origin.sample_of(external.tensor)
        if entry is not None:
            found = (entry,)
        elif found is None and may_be_listed_image((call.args, call.kwargs), external.tensor):
            found = ()
    if found is None:
        return location
    findings = (
        replace(finding, samples=found) if finding.kind == "batch" and finding.name == external.name else finding
        for finding in location.findings
    )
    return replace(location, findings=tuple(findings))


def _locate(failed: Failure, budget: Budget, *, samples: bool) -> tuple[Failure, Location]:
    """Choose how to search: the update, the norm, a replay of the step, its source, a tape, or the graph alone."""
    if failed.undone:
        known = _repeatable(failed)
        if known.can_update:
            return known, location_of(replay_update(known), fallback="optimizer")
        return known, Location(phase="optimizer", notes=(_NOT_EVALUATED,))
    if failed.symptom == "state" and failed.written_between:
        return failed, Location(phase="state", module=owner_of(failed.written_between[0]))
    if failed.norm_overflowed and math.isfinite(failed.loss_value):
        known = _repeatable(failed)
        return known, _from_norm(known)
    if not failed.repeatable:
        found = _from_source(failed, budget, samples=samples) or _from_tape(failed)
        return found or (failed, locate_without_function(failed))
    if _is_used_up(failed.batch):
        note = "the batch is an iterator and used up, so the step cannot be run again; pass what it yields instead"
        if isinstance(failed.evidence, GraphEvidence):
            return failed, evidence_location(failed.evidence, failed).noting(note)
        return failed, Location(phase=failed.symptom, notes=(note,))
    clear_probes()
    return failed, _from_replay(failed, _replayed(failed, budget), budget, samples=samples)


def _replayed(failed: Failure, budget: Budget) -> Replay:
    """The step again under a trace, which shows how long it takes where that is not known."""
    before = budget.took
    replay = replay_step(failed)
    budget.learn(budget.took - before)
    return replay


def _repeatable(failed: Failure) -> Failure:
    """The step with a way to compute its loss again, if it has one or its source lines show one."""
    again = None if failed.repeatable else compute_again(failed)
    return failed if again is None else failed.repeated_by(again.forward, again.batch, again.rng)


def _from_norm(failed: Failure) -> Location:
    """What the norm of the gradients shows when it is taken again."""
    location = location_of(replay_norm(failed), fallback="backward")
    if location.source is not None:  # the guard computes the norm when this line is called
        location = replace(location, source=replace(location.source, column=None, end_column=None, inferred=True))
    if failed.repeatable and not _is_used_up(failed.batch):
        location = replace(location, witnesses=tuple(replay_step(failed).trace.witnesses.values()))
    return location


def _from_replay(failed: Failure, replay: Replay, budget: Budget, *, samples: bool) -> Location:
    """What a replay of the whole step shows, and which samples are guilty."""
    probes = read_probes()
    unwritten = unwritten_memory(failed, replay)
    clear_probes()
    if unwritten is not None:
        location = location_of(unwritten, fallback=failed.symptom, batch=failed.batch)
        findings = tuple(finding for finding in location.findings if finding.kind != "activation")
        note = "place and operations are those of a run with fresh memory filled with NaN"
        return replace(location, unwritten=True, findings=findings, notes=(note,))
    changed = _changed_in_place(failed)
    location = as_step_data(location_of(replay, fallback=failed.symptom, batch=failed.batch), failed.batch)
    if replay.origin is None and isinstance(failed.evidence, GraphEvidence):
        shown = evidence_location(failed.evidence, failed, replay=replay)
        location = replace(
            shown, exact=location.exact, sinks=location.sinks, notes=(*location.notes, *shown.notes)
        ).noting("the place is read from the graph of the failed pass, since its replay does not show it")
    if not replay.failed and replay.error is None and (hidden := cannot_rewind(failed.forward, failed.batch)):
        location = location.noting(f"the step reads what a replay cannot restore: {', '.join(hidden[:3])}")
    location = replace(location, notes=(*location.notes, *changed), probes=probes)
    found = location.samples
    if replay.failed and samples:
        found = find_samples(failed, budget=budget.part(1 / 3), seen=location.bad_rows)
    if location.phase == "data" and not found.guilty:
        guilty = sorted({i for finding in location.findings for i in finding.samples})
        found = replace(found, guilty=tuple(guilty), note="")
    return replace(location, samples=found).noting(*([found.note] if found.note else []))


def _from_source(failed: Failure, budget: Budget, *, samples: bool) -> tuple[Failure, Location] | None:
    """The loss computed again from its own source lines; `None` if that cannot be done, or does not fail as it did."""
    again = compute_again(failed, budget)
    if again is None:
        return None
    known = failed.repeated_by(again.forward, again.batch, again.rng)
    probes = read_probes()
    clear_probes()
    replay = _replayed(known, budget)
    if not (replay.failed and replay.alike and replay.error is None) and unwritten_memory(known, replay) is None:
        return None
    if not replay.exact:  # gradients of several micro-batches were added up: the values cannot be compared
        replay = replace(replay, exact=None, differences=())
    location = _from_replay(known, replay, budget, samples=samples)
    location = replace(location, probes=location.probes or probes)
    if again.lines is None:
        return known, location.noting("the loss was computed again by the model, which computes it itself")
    file, first, last = again.lines
    lines = f"line {first}" if first == last else f"lines {first} to {last}"
    return known, location.noting(
        f"the loss was computed again from its source ({lines} of {cell_name(file) or os.path.basename(file)}), "
        "without side effects"
    )


def _from_tape(failed: Failure) -> tuple[Failure, Location] | None:
    """The location from the trace of the step itself; `None` if it did not run under a trace, or its trace does not
    show it."""
    if not isinstance(failed.tape, Trace):
        return None
    replay = judge_tape(failed, failed.tape)
    if replay.origin is None:
        return None
    location = location_of(replay, fallback=failed.symptom, batch=failed.batch)
    location = replace(location, probes=read_probes()).noting(
        "the step ran under a trace (armed), so place and operands are those of the failure itself"
    )
    known, reason = _repeated_by_tape(failed, replay)
    if known is None:
        return failed, location.noting(f"no trial was run on the recorded operations: {reason}")
    return known, location


def _repeated_by_tape(failed: Failure, then: Replay) -> tuple[Failure | None, str]:
    """The step, repeatable by its recorded operations, if they fail as it did. Otherwise `None`, and why not."""
    tape = getattr(failed.tape, "tape", None)
    if not isinstance(tape, Tape) or failed.loss is None or failed.root_call is None:
        return None, "the loss is not known"
    forward = tape.forward(failed.loss)
    if forward is None:
        return None, tape.reason or "the loss is not among their results"
    known = failed.repeated_by(forward, (), failed.root_call.chain()[0].rng)
    now = replay_step(known)
    guilty = (then.op.name, then.op.phase) if then.op is not None else None
    again = (now.op.name, now.op.phase) if now.op is not None else None
    if now.failed and now.alike and now.error is None and again == guilty:
        return known, ""
    if now.error is not None:
        return None, f"they ended with {type(now.error).__name__}"
    return None, "they do not fail as the step did" if now.failed else "they are finite when they are run again"


def _is_used_up(batch: Any) -> bool:
    parts = batch if isinstance(batch, (tuple, list)) else (batch,)
    return any(isinstance(part, Iterator) for part in parts)


def _changed_in_place(failed: Failure) -> list[str]:
    """A batch that the loss function wrote into is not the batch of the failed step any more."""
    now = dict(tensors_of(failed.batch))
    written = [
        path for path, version in failed.batch_versions.items() if path in now and version_of(now[path]) != version
    ]
    if not written:
        return []
    names = ", ".join(written)
    return [
        f"the loss function changed the batch in place ({names}), so the replay does not begin with the same values"
    ]
