"""`CheckpointStore`: a folder of checkpoints that always holds a good one to resume from.

`catalogue` describes what the folder holds and how a save survives a kill, `storefile` the file itself. At the end: a
checkpoint in a single file without a store, and how the state of a run is taken out of its parts and restored.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nantrap import finite
from nantrap._version import __version__
from nantrap.checkpoints.store.catalogue import (
    QUARANTINE,
    Choice,
    SavedCheckpoint,
    change_entry,
    choose,
    free_path,
    last_good_in,
    put_aside,
    read_catalogue,
    write_checkpoint,
)
from nantrap.checkpoints.store.gate import name_patterns, refuse_nonfinite
from nantrap.checkpoints.store.storefile import NotOursError, Packed, check_file, pack_state, read_file, write_file
from nantrap.errors import FormatError, UsageError, path_argument
from nantrap.incident.wording import escaped
from nantrap.locate import RngState, unwrap
from nantrap.record.durable import make_folder, put_in_place

_MOST_LOOKS: Final = 100
"""How often `load` looks again at a folder whose checkpoints another process replaces meanwhile."""


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """What was loaded. `state` holds every section as it was saved; `instead_of`: which ones were skipped and why."""

    path: Path
    step: int
    data_position: Any = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict, repr=False)
    instead_of: tuple[str, ...] = ()


class _GoneError(FormatError):
    """The file was removed or renamed since it was listed."""


class CheckpointStore:
    """Saves the whole state of a run, only if it is finite, and finds the last good one.

    State held: the folder's name, and the save that is being written in the background. Everything else is read from
    the folder each time, so several processes may use the same one. With several ranks, save on one of them.

    Args:
        folder: where the checkpoints are; made at the first save.
        keep: how many are kept; the last good one and pinned ones are kept in addition.
        allow: name patterns (`"model.*.running_min"`) of values that may be non-finite.
        asynchronous: write in a thread unless `save` is called with `asynchronous=False`; see `save`.
        lock_seconds: how long to wait for another process that is saving here.

    Example:
        >>> import tempfile, torch, nantrap.checkpoints
        >>> model = torch.nn.Linear(2, 1)
        >>> store = nantrap.checkpoints.CheckpointStore(tempfile.mkdtemp())
        >>> store.save(step=10, model=model).name
        'step-000010.safetensors'
        >>> store.load(model=model).step
        10
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int = 3,
        allow: Iterable[str] = (),
        asynchronous: bool = False,
        lock_seconds: float = 30.0,
    ) -> None:
        path_argument(folder, "CheckpointStore", "the path of a folder, such as 'runs/checkpoints'")
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise UsageError(
                f"CheckpointStore(keep={keep!r}): expected an integer, at least 1; older ones are removed beyond it"
            )
        if isinstance(lock_seconds, bool) or not isinstance(lock_seconds, (int, float)) or not lock_seconds >= 0:
            raise UsageError(f"CheckpointStore(lock_seconds={lock_seconds!r}): expected a number of seconds, 0 or more")
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise UsageError(f"CheckpointStore({os.fspath(folder)!r}): this is a file; give a folder")
        self.keep = keep
        self.allow = name_patterns(allow)
        self.asynchronous = asynchronous
        self._lock_seconds = lock_seconds
        self._background = Background()

    # ---- saving

    def save(
        self,
        *,
        step: int,
        model: Any = None,
        optimizer: Any = None,
        scheduler: Any = None,
        scaler: Any = None,
        ema: Any = None,
        rng: bool = True,
        data_position: Any = None,
        extras: Mapping[str, Any] | None = None,
        pin: bool = False,
        asynchronous: bool | None = None,
        allow: Iterable[str] = (),
    ) -> Path:
        """Save the state of a run after `step` steps, and return where.

        Args:
            step: how many steps were made.
            model: a module (also compiled or inside DistributedDataParallel) or a state dict; likewise `optimizer`,
                `scheduler`, `scaler` and `ema`.
            rng: save the random streams of torch, Python and NumPy.
            data_position: any plain value that gives the position in the data: an epoch and a batch, a loader's
                `state_dict()`.
            extras: more of the same, by name: tensors, numbers, text, lists, dicts.
            pin: never remove this one.
            asynchronous: copy the state now and write it in a thread (`None`: the setting of the store). What goes
                wrong there is raised by the next call or by `wait`.
            allow: more patterns of values that may be non-finite.

        Raises:
            NonFiniteError: something is not finite; the message and `incident.findings` name it. Nothing is written.
            OSError: the disk is full or the folder read-only; existing checkpoints are not changed.
            UsageError: something cannot be stored (a sharded tensor, an object), or another process keeps the lock.
        """
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise UsageError(f"save(step={step!r}): the number of steps made so far, 0 or more")
        if extras is not None and not isinstance(extras, Mapping):
            raise UsageError(f"save(extras={type(extras).__name__}): expected a dict of values by name")
        parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, "ema": ema}
        if all(part is None for part in parts.values()) and not extras:
            raise UsageError("save(step=...): there is nothing to save; give at least model=")
        state: dict[str, Any] = {"step": step, **capture(parts, rng=rng)}
        state |= {"data_position": data_position, "extras": dict(extras or {})}
        return self.save_state(state, step=step, pin=pin, asynchronous=asynchronous, allow=allow)

    def wait(self) -> None:
        """Wait until the last asynchronous save is on the disk; raises what went wrong with it."""
        self._background.wait()

    def save_state(
        self,
        state: Mapping[str, Any],
        *,
        step: int,
        pin: bool = False,
        asynchronous: bool | None = None,
        allow: Iterable[str] = (),
    ) -> Path:
        """What `save` does with the state once it is collected: the gate, then the disk."""
        self.wait()
        if not isinstance(pin, bool):
            raise UsageError(f"save(pin={pin!r:.200}): expected True or False")
        refuse_nonfinite(state, what=f"step {step:,}", step=step, allow=(*self.allow, *name_patterns(allow)))
        packed = pack_state(state)
        if not (self.asynchronous if asynchronous is None else asynchronous):
            return self._write(packed, step, pin=pin).path
        copied = packed.copied()
        expected = free_path(self.folder, step)  # checked before the thread starts
        self._background.start(lambda: self._write(copied, step, pin=pin))
        return expected

    def _write(self, packed: Packed, step: int, *, pin: bool) -> SavedCheckpoint:
        seconds = self._lock_seconds
        return write_checkpoint(self.folder, packed, step=step, pin=pin, keep=self.keep, lock_seconds=seconds)

    # ---- loading

    def load(
        self,
        resume: str | int | os.PathLike[str] = "last_good",
        *,
        model: Any = None,
        optimizer: Any = None,
        scheduler: Any = None,
        scaler: Any = None,
        ema: Any = None,
        rng: bool = True,
        strict: bool = True,
        fallback: bool = True,
    ) -> LoadedCheckpoint:
        """Verify a checkpoint by its own checksum and load it into the given parts. A damaged one is moved to
        quarantine, and an older one is loaded.

        Args:
            resume: `"last_good"`, `"latest"` (also one that was marked as suspect), a step, or the path of a file.
            model: what to load into; likewise the others. What is left out is not loaded, but is in `state`.
            rng: restore the random streams.
            strict: the keys of the model must fit exactly.
            fallback: take the next older good one, with a warning, if the chosen one is damaged; else raise.

        Raises:
            FormatError: nothing whole was found; the message says what was tried.
            UsageError: there is no such checkpoint, or it does not fit.
        """
        self.wait()
        parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, "ema": ema}
        passed: dict[str, str] = {}
        for _ in range(_MOST_LOOKS):
            try:
                choice = choose(resume, self.folder, read_catalogue(self.folder))
            except UsageError:
                if passed:  # the other ones are gone by now
                    break
                raise
            for candidate in choice.candidates if fallback else choice.candidates[:1]:
                try:
                    state = self._read(candidate)
                except FormatError as error:
                    reason = self._passed_over(candidate, error, in_store=choice.in_store)
                    if reason is None:
                        break  # another process has saved since the folder was listed: look again
                    passed[candidate.path.name] = reason
                    continue
                left_out = tuple(passed.values())
                self._warn(left_out, candidate)
                restore(state, parts, rng=rng, strict=strict, where=str(candidate.path))
                position, extras = state.get("data_position"), state.get("extras") or {}
                return LoadedCheckpoint(candidate.path, int(state["step"]), position, extras, state, left_out)
            else:
                break
        raise FormatError(self._nothing_left(choice, tuple(passed.values()), fallback=fallback))

    def last_good(self) -> SavedCheckpoint | None:
        """The newest checkpoint that is not marked as suspect, or `None`. Its bytes are verified by `load`."""
        self.wait()
        return last_good_in(self.folder)

    def checkpoints(self) -> tuple[SavedCheckpoint, ...]:
        """All of them, the newest first."""
        self.wait()
        return tuple(read_catalogue(self.folder))

    def verify(self, saved: SavedCheckpoint) -> str:
        """What is wrong with the file, in words, or an empty string."""
        try:
            self._read(saved, check_file)
        except FormatError as error:
            return str(error)
        return ""

    def _read(self, saved: SavedCheckpoint, read: Callable[[Path], Any] = lambda path: read_file(path)[1]) -> Any:
        """The state, verified by the checksum in the file."""
        try:
            return read(saved.path)
        except FileNotFoundError:
            raise _GoneError("it is gone") from None
        except OSError as error:
            raise NotOursError(f"it cannot be read: {error.strerror or error}") from error

    def _passed_over(self, saved: SavedCheckpoint, error: FormatError, *, in_store: bool) -> str | None:
        """Why a checkpoint is not loaded, and where it is now; `None` if it has changed since it was chosen."""
        if isinstance(error, _GoneError):
            return None
        moved = ""
        if in_store and not isinstance(error, NotOursError):
            try:
                name = put_aside(self.folder, saved, lock_seconds=self._lock_seconds)
            except (OSError, UsageError) as problem:
                moved = f", left where it is: {problem}"
            else:
                if name is None:
                    return None
                moved = f", moved to {QUARANTINE}/{name}"
        reason = str(error).removeprefix(f"{saved.path}: ")
        return f"{saved.path.name} ({reason}){moved}"

    # ---- notes on a checkpoint

    def pin(self, saved: SavedCheckpoint, *, pinned: bool = True) -> None:
        """Never remove this one, or allow it again."""
        self._change(saved, pinned=pinned)

    def mark_suspect(self, saved: SavedCheckpoint, reason: str) -> None:
        """Finite, but not to be resumed from (a run diverged from it): `last_good` skips it from now on."""
        self._change(saved, suspect=reason)

    def _change(self, saved: SavedCheckpoint, **changes: Any) -> None:
        if not isinstance(saved, SavedCheckpoint):
            raise UsageError(f"{saved!r} is no checkpoint of a store; give one of store.checkpoints()")
        self.wait()
        change_entry(self.folder, saved, lock_seconds=self._lock_seconds, **changes)

    # ---- small things

    def close(self) -> None:
        """Wait for what is still being written."""
        self.wait()

    def __enter__(self) -> CheckpointStore:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"CheckpointStore({str(self.folder)!r}, keep={self.keep})"

    @staticmethod
    def _warn(passed: tuple[str, ...], taken: SavedCheckpoint) -> None:
        if passed:
            warnings.warn(
                escaped(f"nantrap: damaged: {'; '.join(passed)}", most=4000)
                + f". Loading {escaped(taken.path.name)} (step {taken.step:,}) instead",
                RuntimeWarning,
                stacklevel=3,
            )

    def _nothing_left(self, choice: Choice, passed: tuple[str, ...], *, fallback: bool) -> str:
        tried = "; ".join(passed) or "each was removed before it could be read"
        if not fallback and choice.in_store:
            good = last_good_in(self.folder)
            older = f"; the last good one is {good.path.name}" if good is not None else ""
            return f"{self.folder}: the checkpoint is damaged: {tried}{older}"
        return f"{self.folder}: no whole checkpoint was found: {tried}. See {QUARANTINE}/, or start from the beginning"


class Background:
    """Holds the thread of the current job, and its error until `wait` is called."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, job: Callable[[], object]) -> None:
        """Run `job` in a thread. The interpreter waits for it at its end, so a save is not lost when the program
        exits."""
        self.wait()

        def run() -> None:
            try:
                job()
            except BaseException as error:  # raised by the next `wait`
                self._error = error

        self._thread = threading.Thread(target=run, name="nantrap-checkpoint", daemon=False)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the job, and raise what it raised, once."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error


# ---- one checkpoint in one file, without a store


def save_alone(path: str | os.PathLike[str], state: Mapping[str, Any], *, step: int, allow: Iterable[str] = ()) -> Path:
    """Write the state, only if it is finite; a file of that name is replaced atomically."""
    target = Path(path_argument(path, "save", "the path of a file, such as 'best.safetensors'"))
    if target.is_dir():
        raise UsageError(f"save({os.fspath(path)!r}): this is a folder; give a file, or use a CheckpointStore")
    refuse_nonfinite(state, what=f"{os.fspath(path)} (step {step:,})", step=step, allow=name_patterns(allow))
    packed = pack_state(state)
    saved_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    about = {"step": step, "sequence": 0, "saved_at": saved_at, "nantrap": __version__}
    try:
        make_folder(target.parent)
        write_file(target, packed, about)
        put_in_place(target)
    except OSError as error:
        reason = f"not saved: {error.strerror or error}; the old file is unchanged"
        raise OSError(error.errno, reason, str(target)) from error
    return target


def load_alone(
    path: str | os.PathLike[str], parts: Mapping[str, Any], *, rng: bool = True, strict: bool = True
) -> dict[str, Any]:
    """Verify the file by its checksum and load it into the parts; the state as it was saved comes back as well."""
    path_argument(path, "load", "the path of a file that guard.save wrote")
    try:
        state = read_file(Path(path))[1]
    except FileNotFoundError:
        raise UsageError(f"{os.fspath(path)} does not exist; give the path of a file that guard.save wrote") from None
    except OSError as error:
        raise FormatError(f"{os.fspath(path)}: it cannot be read: {error.strerror or error}") from error
    restore(state, parts, rng=rng, strict=strict, where=os.fspath(path))
    return state


# ---- the parts of a run: their state taken out, and restored


NAMES: Final = ("model", "optimizer", "scheduler", "scaler", "ema")
"""The parts that have a `state_dict`, in the order in which they are loaded."""


def capture(parts: Mapping[str, Any], *, rng: bool) -> dict[str, Any]:
    """The state of each part by its name: live tensors, not copies.

    A model also gives its non-persistent buffers (`buffers`), as far as they are finite: a forward pass may count in
    them, and a mask of `-inf` is made by the constructor anyway.
    """
    state = {name: _state_of(name, part) for name, part in parts.items() if part is not None}
    model = parts.get("model")
    if isinstance(model, nn.Module):
        root = unwrap(model)
        saved = state["model"].keys()
        unsaved = {name: buffer for name, buffer in root.named_buffers() if name not in saved}
        state["buffers"] = {name: b for name, b in unsaved.items() if not b.is_meta and not finite.any_nonfinite([b])}
    if rng:
        streams = RngState.capture()
        state["rng"] = {
            "torch_cpu": streams.torch_cpu,
            "torch_cuda": list(streams.torch_devices),
            "python": streams.python,
            "numpy": streams.numpy,
        }
    return state


def restore(state: Mapping[str, Any], parts: Mapping[str, Any], *, rng: bool, strict: bool, where: str) -> None:
    """Load the state into the parts. A part that the file does not have is refused before anything is changed."""
    wanted = [name for name in NAMES if parts.get(name) is not None]
    for name in wanted:
        if name not in state:
            held = ", ".join(key for key in NAMES if key in state) or "nothing"
            raise UsageError(
                f"{where} holds no {name} state (it holds {held}); leave {name}= out, or take another file"
            )
        if not callable(getattr(parts[name], "load_state_dict", None)):
            raise UsageError(f"load({name}={type(parts[name]).__name__}): it has no load_state_dict to load into")
    for name in wanted:
        try:
            _load(name, parts[name], state, strict=strict)
        except (RuntimeError, ValueError, KeyError) as error:
            raise UsageError(f"{where} does not fit the {name} it is loaded into: {error}") from error
    if rng and state.get("rng") is not None:
        restore_rng(state["rng"])


def restore_rng(saved: Mapping[str, Any]) -> None:
    """Put the random streams back; those of an accelerator only where it has as many devices as there were."""
    devices = tuple(saved["torch_cuda"])
    devices = devices if len(devices) == len(RngState.capture().torch_devices) else ()
    RngState(saved["torch_cpu"], devices, saved["python"], saved["numpy"]).restore()


def _state_of(name: str, part: Any) -> Any:
    if isinstance(part, nn.Module):
        return unwrap(part).state_dict() if name == "model" else part.state_dict()
    if isinstance(part, Mapping):
        return part
    if callable(getattr(part, "state_dict", None)):
        return part.state_dict()
    raise UsageError(f"save({name}={type(part).__name__}): expected something with state_dict(), or a state dict")


def _load(name: str, part: Any, state: Mapping[str, Any], *, strict: bool) -> None:
    """Load one part of a saved state into its object, with buffers and dtypes that `load_state_dict` leaves out."""
    saved = state[name]
    if name == "model" and isinstance(part, nn.Module):
        root = unwrap(part)
        root.load_state_dict(saved, strict=strict)
        _load_buffers(root, state.get("buffers", {}))
    elif name == "scaler" and not saved:
        return  # it was disabled when it was saved
    elif isinstance(part, Optimizer):
        part.load_state_dict(saved)
        _keep_dtypes(part, saved)
    else:
        part.load_state_dict(saved)


def _load_buffers(root: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Non-persistent buffers where they fit: one of another shape is a table that grows while it is used."""
    live = dict(root.named_buffers())
    with torch.no_grad():
        for name, tensor in saved.items():
            if name in live and live[name].shape == tensor.shape:
                live[name].copy_(tensor)


def _keep_dtypes(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """`Optimizer.load_state_dict` rounds the state to the parameter's dtype: float32 moments of bfloat16 weights."""
    order = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [n for group in saved["param_groups"] for n in group["params"]]
    for number, parameter in zip(numbers, order, strict=True):
        live = optimizer.state.get(parameter)
        if not isinstance(live, dict):
            continue
        for key, value in saved["state"].get(number, {}).items():
            if isinstance(value, Tensor) and isinstance(live.get(key), Tensor) and live[key].dtype != value.dtype:
                live[key] = value.to(device=live[key].device, copy=True)
