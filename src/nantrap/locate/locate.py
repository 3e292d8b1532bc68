"""Where it began: the order of asking, cheapest first, and one answer.

1.  Did the update make it? Then the optimizer's step is run again under a trace.
2.  Did finite gradients have a norm that is not? Then the norm is taken again under a trace.
3.  Otherwise forward and backward are run again under a trace (`attempt`), or the root module's call and the live
    graph are (the two-line form).
"""

from __future__ import annotations

import traceback

from nantrap.locate.location import Location, location_of
from nantrap.locate.probes import clear_probes, read_probes
from nantrap.locate.replay import replay_norm, replay_step, replay_update
from nantrap.locate.samples import find_samples
from nantrap.locate.step import FailedStep
from nantrap.locate.twoline import locate_without_function


def locate(failed: FailedStep, *, seconds: float = 60.0) -> Location:
    """Find where the failure began. Never raises: what goes wrong while locating is said in `notes`."""
    try:
        return _locate(failed, seconds)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        note = f"locating failed with {type(error).__name__}: {error} ({last.name}, line {last.lineno})"
        return Location(phase=failed.symptom, notes=[note])


def _locate(failed: FailedStep, seconds: float) -> Location:
    if failed.symptom == "optimizer" and failed.run_update is not None:
        return location_of(replay_update(failed), fallback="optimizer")
    if failed.norm_overflowed:
        return location_of(replay_norm(failed), fallback="backward")
    if not failed.repeatable:
        return locate_without_function(failed)
    clear_probes()
    replay = replay_step(failed)
    location = location_of(replay, fallback=failed.symptom)
    location.probes = read_probes()
    clear_probes()
    if replay.failed:
        location.samples = find_samples(failed, seconds=seconds / 3)
        if location.samples.note:
            location.notes.append(location.samples.note)
    return location
