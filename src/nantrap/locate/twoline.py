"""The two-line form: the loss cannot be computed again, but the model's last call can, and the graph tells the rest."""

from __future__ import annotations

from nantrap.locate.location import Location, location_of
from nantrap.locate.probes import read_probes
from nantrap.locate.replay import replay_root
from nantrap.locate.step import FailedStep


def locate_without_function(failed: FailedStep) -> Location:
    """Replay the root module's last call; where that is finite, read the graph between its output and the loss."""
    probes = read_probes()
    location = Location(phase=failed.symptom)
    if failed.root_call is not None:
        replay = replay_root(failed)
        location = location_of(replay, fallback=failed.symptom)
    location.probes = probes
    return location
