"""The finite gate before `torch.distributed.checkpoint`: `save` and `async_save` of a guarded model.

All ranks write one checkpoint, so all take the same decision: where any rank's shard is bad, the whole checkpoint is
written under another name, and the last good one stays. Ranks that do not know that the others are guarded only warn: a
checkpoint with some of its shards elsewhere would be worse than a bad one.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch.distributed as dist

from nantrap.checkpoints.store.gate import bad_values, refusal
from nantrap.incident import Finding
from nantrap.incident.wording import escaped, some_of
from nantrap.launch.importing import when_imported
from nantrap.launch.loops import Loops
from nantrap.launch.patches import Patches
from nantrap.launch.saving import checked

_MODULE = "torch.distributed.checkpoint.state_dict_saver"


def install(patches: Patches, loops: Loops) -> None:
    """Wrap the two functions now, or as soon as the script imports them: the import takes a second."""

    def save(original: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        # async_save calls save again in another thread, for a copy that was checked already
        if threading.current_thread() is threading.main_thread():
            kwargs = _checked(loops, state_dict, kwargs)
        return original(state_dict, *args, **kwargs)

    def wrap(module: ModuleType) -> None:
        for name in ("save", "async_save"):
            if hasattr(module, name):
                patches.wrap(module, name, save)
                package = sys.modules["torch.distributed.checkpoint"]
                if hasattr(package, name):
                    patches.put(package, name, vars(module)[name])

    when_imported(patches, _MODULE, wrap)


def _checked(loops: Loops, state: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options of the save: unchanged, or with another path. What cannot be checked is saved."""
    return checked(loops, options, lambda: _options(loops, state, options), saved="a distributed checkpoint")


def _options(loops: Loops, state: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options to save with: another folder if a rank's part is not finite. Raises under a strict policy."""
    guards = list(loops)
    if loops.is_own_call() or not guards or not isinstance(state, Mapping):
        return options
    ranks = guards[0].parts.ranks
    bad = sorted(set(_bad(loops, state)))
    together = ranks.together and not options.get("no_dist")
    everywhere = bad
    if together and ranks.acquainted:
        gathered: list[list[str]] = [[] for _ in range(dist.get_world_size(options.get("process_group")))]
        dist.all_gather_object(gathered, bad[:20], group=options.get("process_group"))
        everywhere = sorted({name for names in gathered for name in names})
    if not everywhere:
        return options
    where = options.get("checkpoint_id") or getattr(options.get("storage_writer"), "path", None)
    place, names = str(where or "a distributed checkpoint"), some_of(everywhere)
    if loops.settings.strict and (ranks.acquainted or not together):
        text = escaped(f"{place} was not saved: these are not finite: {names}", most=4000)
        findings = tuple(Finding("parameter", name, "state") for name in everywhere)
        raise refusal(text, findings, step=max(loop.tally.attempted for loop in guards))
    prints = not (together and ranks.acquainted) or ranks.prints  # all write it, one says so
    if loops.settings.observes or where is None or (together and not ranks.acquainted):
        if prints:
            loops.say(f"{place} is being saved with non-finite values: {names}")
        return options
    kept = "the last good checkpoint of that name stays" if os.path.exists(place) else "nothing of that name is written"
    beside = f"{place.rstrip('/')}.nonfinite"
    if prints:
        loops.say(
            f"{place} would hold non-finite values ({names}): saved as {os.path.basename(beside)} instead, {kept}"
        )
    return {**options, "checkpoint_id": beside}


def _bad(loops: Loops, state: Mapping[Any, Any]) -> Iterator[str]:
    """What is not finite on this rank, of a state that belongs to a guarded model."""
    names = {name for loop in loops for name, _ in loop.parts.protected.members.named()}
    tails = {key for each in _mappings(state) for key in each if isinstance(key, str)}
    if any(hasattr(value, "state_dict") for value in state.values()):
        for loop in loops:  # an object may need all ranks to give its state: the model is checked instead
            yield from loop.bad_state()
    if any(key == name or key.endswith(f".{name}") for key in tails for name in names):
        allowed = tuple(f"*{name}" for loop in loops for name in loop.parts.protected.buffers.exempt_names())
        plain = {key: value for key, value in state.items() if not hasattr(value, "state_dict")}
        yield from (name for name, _ in bad_values(plain, allow=allowed))


def _mappings(value: Any, depth: int = 4) -> Iterator[Mapping[Any, Any]]:
    if isinstance(value, Mapping):
        yield value
    inner: Sequence[Any] = list(value.values()) if isinstance(value, Mapping) else []
    for each in inner if depth else ():
        yield from _mappings(each, depth - 1)
