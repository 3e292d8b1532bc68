"""The two-line form: the loss cannot be computed again, but the model's calls can, and the graph shows the rest.

1.  A bad loss whose graph shows a guilty node above the model: that is the origin (`autopsy`).
2.  A finite loss with bad gradients: the backward of the loss's own nodes, from the tensors they saved (`losspart`).
3.  The model's calls once more under the trace, with the gradients they got (`replay`).
4.  A replay that is finite leaves what the graph of the failed pass showed inside the model.
"""

from __future__ import annotations

import math
from dataclasses import replace

from nantrap.finite import any_nonfinite
from nantrap.locate.autopsy import Evidence
from nantrap.locate.infer import infer_source
from nantrap.locate.kept import LossPart
from nantrap.locate.location import FINITE_REPLAY, Location, evidence_location, location_of
from nantrap.locate.losspart import replay_loss_part
from nantrap.locate.nodes import operation_name
from nantrap.locate.origin import Replay
from nantrap.locate.probes import read_probes
from nantrap.locate.replay import replay_calls
from nantrap.locate.step import FailedStep
from nantrap.locate.trace import OUTSIDE

_NO_CALL = (
    "the guard saw no call of the model in this step (its parts were called directly), so only the graph could be "
    "read; guard.attempt(fn, batch) shows more"
)


def locate_without_function(failed: FailedStep) -> Location:
    """Find where a failure began without the loss function."""
    probes = read_probes()
    location = replace(_search(failed), probes=probes)
    if isinstance(failed.evidence, Evidence):
        location = replace(location, witnesses=failed.evidence.witnesses)
    return location.noting(_NO_CALL) if failed.root_call is None else location


def _search(failed: FailedStep) -> Location:
    """Where it began without a function to run: the loss's own nodes first, then the model's calls."""
    evidence = failed.evidence
    if isinstance(evidence, Evidence) and not evidence.inside and failed.root_call is not None:
        return _in_loss(evidence_location(evidence, failed), failed)
    if isinstance(evidence, LossPart) and not failed.bad_buffers:
        replay = replay_loss_part(failed, evidence)
        if replay.origin is not None:
            return _in_loss(location_of(replay, fallback="backward", batch=failed.batch), failed)
        if replay.unknown and _bad_cotangent(failed):
            return _by_elimination(replay, failed)
    if failed.root_call is None:
        if isinstance(evidence, Evidence):
            return _in_loss(evidence_location(evidence, failed), failed)
        return Location(phase=failed.symptom)
    replay = replay_calls(failed)
    location = location_of(replay, fallback=failed.symptom, batch=failed.batch)
    if location.source is None and location.op is not None and failed.root_call.place is not None:
        # a layer of torch's own, called by the user's line
        location = replace(location, source=failed.root_call.place.source())
    if replay.origin is None:
        if isinstance(evidence, Evidence):
            location = evidence_location(evidence, failed, replay=replay)
        if not replay.failed and replay.error is None:
            # the graph, or the rest being finite, says that the cause is in the model; yet it is finite in the replay
            model_failed = isinstance(evidence, Evidence) or not _bad_cotangent(failed)
            general = f"{FINITE_REPLAY}:"  # the same in fewer words
            location = replace(
                location,
                exact=False if model_failed and evidence is not None else None,
                notes=tuple(note for note in location.notes if not note.startswith(general)),
            ).noting(_finite_model(failed))
    return location


def _in_loss(location: Location, failed: FailedStep) -> Location:
    """Code outside the model leaves no frames behind; where only one line is possible, it is named, as inferred."""
    if location.module == OUTSIDE and location.source is None and location.op is not None:
        forward = operation_name(location.node) if location.node else None
        calls = failed.root_call.chain() if failed.root_call is not None else []
        replayed = [call.module for call in calls if call.module is not None]
        inferred = infer_source(forward or location.op.removeprefix("aten."), failed.root, replayed)
        if inferred is not None:
            location = replace(location, source=inferred.source, module=inferred.module or location.module)
            return location.noting("the line is inferred: the only one of its kind in the code that called the guard")
    return location


def _by_elimination(replay: Replay, failed: FailedStep) -> Location:
    node = replay.unknown[0]
    name = operation_name(node.name())
    op = f"aten.{name}" if name else node.name()
    location = Location(phase="backward", module=OUTSIDE, op=op, node=node.name(), replay=replay)
    note = f"found by elimination: the backward of {node.name()} could not be run again"
    return _in_loss(location.noting(note), failed)


def _bad_cotangent(failed: FailedStep) -> bool:
    calls = failed.root_call.chain() if failed.root_call is not None else []
    return any(any_nonfinite(call.cotangents.values()) for call in calls)


def _finite_model(failed: FailedStep) -> str:
    """The note for a model that is finite in a replay: what that says about the cause."""
    if math.isfinite(failed.loss_value) and _bad_cotangent(failed):
        return "the gradient that entered the model was bad already: the cause is in the loss function's backward"
    if not math.isfinite(failed.loss_value) and failed.evidence is None:
        return "the model's output is finite in a replay: the cause is in the loss function, or does not repeat"
    return (
        "what the model returns is finite in a replay: the cause is in the code around it, the model replaced the bad "
        "value itself, or the failure does not repeat with the same inputs"
    )
