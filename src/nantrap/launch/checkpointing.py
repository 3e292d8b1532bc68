"""The files of a model that the script writes and reads: the finite gate before a save, and the check after a load.

`saving` has the gate of single files. All ranks write one distributed checkpoint, so all take the same decision: where
any rank's shard is bad and any rank sees an older checkpoint, the whole is written under another name. Ranks that do
not know that the others are guarded only warn: a checkpoint with some of its shards elsewhere would be worse than a bad
one.

What a script loads before it continues (`load_state_dict` of modules, optimizers and schedules) is checked once.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from nantrap import finite
from nantrap.checkpoints.store.gate import bad_values, refusal
from nantrap.errors import NonFiniteError
from nantrap.incident import Finding
from nantrap.incident.wording import escaped, some_of
from nantrap.launch import saving
from nantrap.launch.patches import Patches, when_imported
from nantrap.launch.registry import OptimizerRegistry
from nantrap.launch.saving import SaveGate
from nantrap.locate.torch_private import version_of


def install(patches: Patches, registry: OptimizerRegistry) -> None:
    """Check every file of a model before it is written, and every state after it was loaded."""
    _install_sharded_saving(patches, registry, saving.install(patches, registry))
    _install_loading(patches, registry)


_MODULE = "torch.distributed.checkpoint.state_dict_saver"


def _install_sharded_saving(patches: Patches, registry: OptimizerRegistry, gate: SaveGate) -> None:
    """Wrap the two functions now, or as soon as the script imports them: the import takes a second."""

    def save(original: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        # async_save calls save again in another thread, for a copy that was checked already
        if threading.current_thread() is threading.main_thread():
            kwargs = _checked_options(registry, gate, state_dict, kwargs)
        with gate.paused():  # the files of a distributed checkpoint stay together
            return original(state_dict, *args, **kwargs)

    def wrap(module: ModuleType) -> None:
        for name in ("save", "async_save"):
            if hasattr(module, name):
                patches.wrap(module, name, save)
                package = sys.modules["torch.distributed.checkpoint"]
                if hasattr(package, name):
                    patches.put(package, name, vars(module)[name])

    when_imported(patches, _MODULE, wrap)


def _checked_options(
    registry: OptimizerRegistry, gate: SaveGate, state: Any, options: dict[str, Any]
) -> dict[str, Any]:
    """The options of the save: unchanged, or with another path. What cannot be checked is saved."""
    try:
        return _options(registry, gate, state, options)
    except NonFiniteError:
        raise
    except Exception as error:
        registry.say(f"a distributed checkpoint is saved unchecked: {type(error).__name__}: {error}")
        return options


def _options(registry: OptimizerRegistry, gate: SaveGate, state: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options to save with: another folder if a rank's part is not finite. Raises under a strict policy."""
    guards = list(registry)
    if registry.is_own_call() or not guards or not isinstance(state, Mapping):
        return options
    ranks = guards[0].session.ranks
    together = ranks.together and not options.get("no_dist")
    asks_others, is_alone = together and ranks.acquainted, together and not ranks.acquainted
    where = options.get("checkpoint_id") or getattr(options.get("storage_writer"), "path", None)
    is_there = where is not None and os.path.exists(os.path.join(str(where), ".metadata"))
    bad = sorted(set(_bad(registry, state)))
    if asks_others:
        bad, is_there = _of_all_ranks(bad, is_there, options.get("process_group"))
    if not bad:
        return options
    place, names = str(where or "a distributed checkpoint"), some_of(bad)
    if registry.settings.strict and not is_alone:
        text = escaped(f"{place} was not saved: these are not finite: {names}", most=4000)
        findings = tuple(Finding("parameter", name, "state") for name in bad)
        raise refusal(text, findings, step=max(loop.tally.attempted for loop in guards))
    if not is_there or registry.settings.observes or is_alone:
        said = f"{place} is being saved with non-finite values: {names}"
        gate.note_sharded(place, instead=False)
    else:
        beside = f"{place.rstrip('/')}.nonfinite"
        aside = os.path.basename(beside)
        said = f"{place} would hold non-finite values ({names}): saved as {aside} instead, what was there stays"
        gate.note_sharded(beside, instead=True)
        options = {**options, "checkpoint_id": beside}
    if ranks.prints or not asks_others:  # all write it, one says so
        registry.say(said)
    return options


def _of_all_ranks(names: list[str], is_there: bool, group: Any) -> tuple[list[str], bool]:
    """The names that any rank has (each gives the first 20 of its own), and whether any sees an older checkpoint."""
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, (names[:20], is_there), group=group)
    return sorted({name for each, _ in gathered for name in each}), any(there for _, there in gathered)


def _bad(registry: OptimizerRegistry, state: Mapping[Any, Any]) -> Iterator[str]:
    """What is not finite on this rank, of a state that belongs to a guarded model."""
    names = {name for loop in registry for name, _ in loop.session.protected.members.named()}
    tails = {key for each in _mappings(state) for key in each if isinstance(key, str)}
    if any(hasattr(value, "state_dict") for value in state.values()):
        for loop in registry:  # an object may need all ranks to give its state: the model is checked instead
            yield from loop.bad_state()
    if any(key == name or key.endswith(f".{name}") for key in tails for name in names):
        allowed = registry.exempt_patterns()
        plain = {key: value for key, value in state.items() if not hasattr(value, "state_dict")}
        yield from (name for name, _ in bad_values(plain, allow=allowed))


def _mappings(value: Any, depth: int = 4) -> Iterator[Mapping[Any, Any]]:
    if isinstance(value, Mapping):
        yield value
    inner: Sequence[Any] = list(value.values()) if isinstance(value, Mapping) else []
    for each in inner if depth else ():
        yield from _mappings(each, depth - 1)


def _install_loading(patches: Patches, registry: OptimizerRegistry) -> None:
    """Remember that something was loaded; it is checked before the next step, when everything is loaded."""

    def loaded(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        """Loads the state, and keeps the learning rates that it brought."""
        result = original(self, *args, **kwargs)
        if not registry.is_own_call():
            for entry in registry.entries():
                optimizer = entry.optimizer()
                if self is optimizer or getattr(self, "optimizer", None) is optimizer:
                    entry.resumed = True
                    entry.restored = tuple(group["lr"] for group in optimizer.param_groups) if optimizer else ()
        return result

    def loaded_model(original: Any, self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Loads the state into the module, and reports parameters that are not finite after it."""
        if not registry.is_own_call():
            registry.record_abandoned()  # the script goes back to another state: what it tested belongs to this one
        result = original(self, *args, **kwargs)
        if not registry.is_own_call():
            named = (*self.named_parameters(), *self.named_buffers())
            found = {name: tensor for name, tensor in named if finite.any_nonfinite([tensor.detach()])}
            missing = found.keys() & set(getattr(result, "missing_keys", ()))  # with strict=False
            written = {name: tensor for name, tensor in found.items() if name not in missing}
            registry.loaded_bad += [(weakref.ref(tensor), version_of(tensor)) for tensor in written.values()]
            bad = [name for name, _ in self.named_parameters() if name in written]
            if bad:
                registry.say(
                    f"resume: the state that was loaded into {type(self).__name__} is not finite: "
                    f"{some_of(bad)}; `nantrap audit` finds the last good checkpoint"
                )
            if missing:
                registry.say(
                    f"resume: the state that was loaded into {type(self).__name__} has no {some_of(sorted(missing))}, "
                    "and what is there is not finite"
                )
        return result

    patches.wrap(nn.Module, "load_state_dict", loaded_model)
    patches.wrap_all(Optimizer, "load_state_dict", loaded)
    patches.wrap_all(LRScheduler, "load_state_dict", loaded)


def look_at_resume(registry: OptimizerRegistry, optimizer: Optimizer) -> None:
    """Before the first step after a load: does what was restored fit what was configured?"""
    entry = registry.entry(optimizer)
    if entry is None or not entry.resumed or entry.loop is None:
        return
    from nantrap.checkpoints.store.resume import check_resume, steps_made

    entry.resumed = False
    loop = entry.loop
    if loop.tally.attempted:  # the script went back to an earlier state itself, and chooses its learning rate
        return
    # a schedule that needs a metric (ReduceLROnPlateau) cannot compute its next learning rate
    scheduler = next((each for each in entry.schedules() if not isinstance(each, ReduceLROnPlateau)), None)
    rates = entry.configured if len(entry.configured) == len(optimizer.param_groups) else None
    if entry.sets_its_rate(optimizer):
        rates = None  # whatever was restored is overwritten, and so would be what is set here
    take = registry.settings.resume_lr if rates is not None else "restored"
    for found in check_resume(
        model=loop.session.protected.root, optimizer=optimizer, scheduler=scheduler, lr=rates, take=take
    ):
        if found.kind == "rate" and not found.data["taken"]:
            found = replace(found, help=_USE_FLAG)
        registry.say(*f"resume: {found}".split("\n"))
    loop.continue_at(steps_made(optimizer) or 0)


_USE_FLAG = (
    "start it with `nantrap run --resume-lr configured` to set the configured learning rate; do nothing if you want "
    "the restored one"
)
