"""The files of a model that the script writes and reads: the finite gate before a save, and the check after a load.

A non-finite state never replaces a good file in `torch.save` and `safetensors.torch.save_file` with a path, also of a
temporary file that is renamed, and in `torch.distributed.checkpoint`; docs/checkpoints.md lists what is not gated. Only
a guarded model's state is checked, recognised by the names of its parameters; data and predictions may hold NaN. By
policy a bad state is refused (`strict`), saved as asked with a warning (`observe`), or saved next to it under another
name, `model.nonfinite.pt`, while the last good `model.pt` stays.

All ranks write one distributed checkpoint, so all take the same decision: where any rank's shard is bad, the whole
checkpoint is written under another name. Ranks that do not know that the others are guarded only warn: a checkpoint
with some of its shards elsewhere would be worse than a bad one.

What a script loads before it continues (`load_state_dict` of modules, optimizers and schedules) is checked once.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from nantrap import finite
from nantrap.checkpoints.store.gate import bad_values, refusal, refuse_nonfinite
from nantrap.errors import NonFiniteError
from nantrap.incident import Finding
from nantrap.incident.wording import escaped, some_of
from nantrap.launch.patches import Patches, when_imported
from nantrap.launch.registry import OptimizerRegistry
from nantrap.locate.hooks import without_hooks
from nantrap.locate.torch_private import version_of

T = TypeVar("T")
_DEPTH = 4


def install(patches: Patches, registry: OptimizerRegistry) -> None:
    """Check every file of a model before it is written, and every state after it was loaded."""
    _install_saving(patches, registry)
    _install_sharded_saving(patches, registry)
    _install_loading(patches, registry)


def _install_saving(patches: Patches, registry: OptimizerRegistry) -> None:
    """Check every file of a model before it is written."""

    diverted: dict[str, Path] = {}
    """Files that were written under another name, by the name that the script gave and that does not exist."""

    def checked_place(obj: Any, where: Any) -> Any:
        place = _checked_place(registry, obj, where)
        if place is not where and not os.path.lexists(where):
            diverted[os.path.abspath(where)] = place
        return place

    def rename(original: Any, src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
        """A script that writes a temporary file and renames it: the diverted file gets the name beside the target."""
        if not diverted or not isinstance(src, (str, os.PathLike)) or os.path.lexists(src):
            return original(src, dst, *args, **kwargs)
        beside = diverted.pop(os.path.abspath(src), None)
        if beside is None:
            return original(src, dst, *args, **kwargs)
        aside = _beside(Path(dst))
        registry.say(f"{dst} would hold non-finite values: {beside.name} was renamed to {aside.name} instead")
        return original(beside, aside, *args, **kwargs)

    def save(original: Any, obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        place = checked_place(obj, f)
        # a pickled module must open where nantrap is not installed
        with without_hooks(*(loop.session.protected.root for loop in registry)):
            return original(obj, place, *args, **kwargs)

    def save_file(original: Any, tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        return original(tensors, checked_place(tensors, filename), *args, **kwargs)

    patches.wrap(os, "replace", rename)
    patches.wrap(os, "rename", rename)
    patches.wrap(torch, "save", save)
    patches.put(torch.serialization, "save", torch.save)
    import safetensors.torch

    patches.wrap(safetensors.torch, "save_file", save_file)


def _checked_place(registry: OptimizerRegistry, obj: Any, where: Any) -> Any:
    return _checked(registry, where, lambda: _place(registry, obj, where), saved=where)


def _checked(registry: OptimizerRegistry, given: T, check: Callable[[], T], *, saved: object) -> T:
    """What a check of values to be saved gives; `given` if it fails: the script decides what it saves.

    Args:
        registry: say that nothing was checked.
        given: the script's own path or options.
        check: gives those to save with, or raises `NonFiniteError`.
        saved: what is saved, in words.
    """
    try:
        return check()
    except NonFiniteError:
        raise
    except Exception as error:
        registry.say(f"{saved} is saved unchecked: {type(error).__name__}: {error}")
        return given


def _place(registry: OptimizerRegistry, obj: Any, where: Any) -> Any:
    """Where this may be written: at the given path, or next to it."""
    if registry.is_own_call() or not _is_guarded_state(registry, obj):
        return where
    registry.record_abandoned()
    is_path = isinstance(where, (str, os.PathLike))
    path = Path(where) if is_path else Path("a checkpoint")
    allowed = tuple(f"*{name}" for loop in registry for name in loop.session.protected.ledger.exempt_names())
    bad = bad_values(obj, allow=allowed)
    if not bad:
        return where
    step = max((loop.tally.attempted for loop in registry), default=0)
    if registry.settings.strict:
        refuse_nonfinite(obj, what=str(path), step=step, allow=allowed)
    names = some_of([name for name, _ in bad])
    if registry.settings.observes or not is_path:  # a stream has no path
        registry.say(f"{path} is being saved with non-finite values: {names}")
        return where
    beside = _beside(path)
    kept = "the last good file of that name stays" if path.exists() else "no file of that name was written"
    registry.say(f"{path} would hold non-finite values ({names}): saved as {beside.name} instead, {kept}")
    return beside


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.stem}.nonfinite{path.suffix}")


def _is_guarded_state(registry: OptimizerRegistry, obj: Any) -> bool:
    names = {name for loop in registry for name, _ in loop.session.protected.members.named()}
    return bool(names) and any(_is_state(value, names) for value in _values(obj, _DEPTH))


def _is_state(value: Any, names: set[str]) -> bool:
    if isinstance(value, nn.Module):
        return True
    if not isinstance(value, Mapping):
        return False
    if "param_groups" in value and "state" in value:
        return True
    return any(tail in names for key in value if isinstance(key, str) for tail in _tails(key))


def _tails(name: str) -> Iterator[str]:
    """The name, then without each of its leading parts: a wrapper may have put something before it."""
    while name:
        yield name
        name = name.partition(".")[2]


def _values(value: Any, depth: int) -> Iterator[Any]:
    yield value
    if depth and isinstance(value, Mapping):
        for item in value.values():
            yield from _values(item, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for item in value:
            yield from _values(item, depth - 1)


_MODULE = "torch.distributed.checkpoint.state_dict_saver"


def _install_sharded_saving(patches: Patches, registry: OptimizerRegistry) -> None:
    """Wrap the two functions now, or as soon as the script imports them: the import takes a second."""

    def save(original: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        # async_save calls save again in another thread, for a copy that was checked already
        if threading.current_thread() is threading.main_thread():
            kwargs = _checked_options(registry, state_dict, kwargs)
        return original(state_dict, *args, **kwargs)

    def wrap(module: ModuleType) -> None:
        for name in ("save", "async_save"):
            if hasattr(module, name):
                patches.wrap(module, name, save)
                package = sys.modules["torch.distributed.checkpoint"]
                if hasattr(package, name):
                    patches.put(package, name, vars(module)[name])

    when_imported(patches, _MODULE, wrap)


def _checked_options(registry: OptimizerRegistry, state: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options of the save: unchanged, or with another path. What cannot be checked is saved."""
    return _checked(registry, options, lambda: _options(registry, state, options), saved="a distributed checkpoint")


def _options(registry: OptimizerRegistry, state: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options to save with: another folder if a rank's part is not finite. Raises under a strict policy."""
    guards = list(registry)
    if registry.is_own_call() or not guards or not isinstance(state, Mapping):
        return options
    ranks = guards[0].session.ranks
    together = ranks.together and not options.get("no_dist")
    asks_others, is_alone = together and ranks.acquainted, together and not ranks.acquainted
    bad = sorted(set(_bad(registry, state)))
    if asks_others:
        bad = _of_all_ranks(bad, options.get("process_group"))
    if not bad:
        return options
    where = options.get("checkpoint_id") or getattr(options.get("storage_writer"), "path", None)
    place, names = str(where or "a distributed checkpoint"), some_of(bad)
    if registry.settings.strict and not is_alone:
        text = escaped(f"{place} was not saved: these are not finite: {names}", most=4000)
        findings = tuple(Finding("parameter", name, "state") for name in bad)
        raise refusal(text, findings, step=max(loop.tally.attempted for loop in guards))
    if registry.settings.observes or where is None or is_alone:
        said = f"{place} is being saved with non-finite values: {names}"
    else:
        beside = f"{place.rstrip('/')}.nonfinite"
        there = os.path.exists(place)
        kept = "the last good checkpoint of that name stays" if there else "nothing of that name is written"
        said = f"{place} would hold non-finite values ({names}): saved as {os.path.basename(beside)} instead, {kept}"
        options = {**options, "checkpoint_id": beside}
    if ranks.prints or not asks_others:  # all write it, one says so
        registry.say(said)
    return options


def _of_all_ranks(names: list[str], group: Any) -> list[str]:
    """The names that any rank has; each rank gives the first 20 of its own."""
    gathered: list[list[str]] = [[] for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(gathered, names[:20], group=group)
    return sorted({name for each in gathered for name in each})


def _bad(registry: OptimizerRegistry, state: Mapping[Any, Any]) -> Iterator[str]:
    """What is not finite on this rank, of a state that belongs to a guarded model."""
    names = {name for loop in registry for name, _ in loop.session.protected.members.named()}
    tails = {key for each in _mappings(state) for key in each if isinstance(key, str)}
    if any(hasattr(value, "state_dict") for value in state.values()):
        for loop in registry:  # an object may need all ranks to give its state: the model is checked instead
            yield from loop.bad_state()
    if any(key == name or key.endswith(f".{name}") for key in tails for name in names):
        allowed = tuple(f"*{name}" for loop in registry for name in loop.session.protected.ledger.exempt_names())
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
        result = original(self, *args, **kwargs)
        if not registry.is_own_call():
            for entry in registry.entries():
                optimizer = entry.optimizer()
                if self is optimizer or getattr(self, "optimizer", None) is optimizer:
                    entry.resumed = True
        return result

    def loaded_model(original: Any, self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Loads the state into the module, and reports parameters that are not finite after it."""
        if not registry.is_own_call():
            registry.record_abandoned()  # the script goes back to another state: what it tested belongs to this one
        result = original(self, *args, **kwargs)
        if not registry.is_own_call():
            named = (*self.named_parameters(), *self.named_buffers())
            found = {name: tensor for name, tensor in named if finite.any_nonfinite([tensor.detach()])}
            registry.loaded_bad += [(weakref.ref(tensor), version_of(tensor)) for tensor in found.values()]
            bad = [name for name, p in self.named_parameters() if name in found]
            if bad:
                registry.say(
                    f"resume: the state that was loaded into {type(self).__name__} is not finite: "
                    f"{some_of(bad)}; `nantrap audit` finds the last good checkpoint"
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
