"""The finite gate under `nantrap run`: a non-finite state of a guarded model never replaces a file that was there.

Every function that turns objects into bytes (`SERIALISERS`) is wrapped, and its object judged before the first byte.
Only a state of a guarded model is judged: data and predictions may hold NaN. An object is a state if it holds a
module or an optimizer, names of the model's parameters at any depth and with any prefix, or, under other names, the
very non-finite values that are in the model now: the same memory, or NaN and Inf at the same places. By policy a bad
state is refused (`strict`), saved as asked with a warning (`observe`), or written next to the file that it would
replace, as `model.nonfinite.pt`. Where there was no file it is written as asked, since nothing is lost and the script
may read it; the file is remembered, and is not renamed or copied over another one later.

An open file still has its content when its state is judged (`written_files`). Bytes in memory are recognised when the
script writes them to a file. What was not seen is counted, and the summary says so.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import itertools
import os
import shutil
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nantrap import finite
from nantrap.checkpoints.store.gate import as_tensor, bad_values, refuse_nonfinite
from nantrap.errors import NonFiniteError
from nantrap.incident.wording import counted, some_of, typed_path
from nantrap.launch.patches import Patches, when_imported
from nantrap.launch.python_private import path_methods
from nantrap.launch.registry import OptimizerRegistry
from nantrap.launch.script_loop import ScriptLoop
from nantrap.launch.written_files import SerialisedState, WrittenFile
from nantrap.locate.hooks import without_hooks

_MOST_SERIALISED = 16
_BINARY = ("wb", "bw", "wb+", "w+b", "bw+")
"""The modes in which a file is emptied and written as bytes."""
_BELOW = ("raw", "buffer", "fileobj", "file", "f", "_fp")
"""Where files that compress, buffer or rename keep the file that they write to."""


class Serialiser(NamedTuple):
    """A function that writes an object to a path or a file, or returns its bytes.

    Attributes:
        module: where it is.
        function: its name; that of a method begins with its class.
        obj: the place and name of the argument that is written.
        target: the place and name of the argument that says where; `None` if the bytes are returned.
        suffix: what it adds to a path that does not end so.
    """

    module: str
    function: str
    obj: tuple[int, str]
    target: tuple[int, str] | None
    suffix: str = ""


SERIALISERS = (
    Serialiser("torch", "save", (0, "obj"), (1, "f")),
    Serialiser("torch.jit", "save", (0, "m"), (1, "f")),
    Serialiser("torch.jit", "RecursiveScriptModule.save", (0, "self"), (1, "f")),
    Serialiser("safetensors.torch", "save_file", (0, "tensors"), (1, "filename")),
    Serialiser("safetensors.torch", "save", (0, "tensors"), None),
    Serialiser("safetensors.numpy", "save_file", (0, "tensor_dict"), (1, "filename")),
    Serialiser("safetensors.numpy", "save", (0, "tensor_dict"), None),
    Serialiser("pickle", "dump", (0, "obj"), (1, "file")),
    Serialiser("pickle", "dumps", (0, "obj"), None),
    Serialiser("cloudpickle", "dump", (0, "obj"), (1, "file")),
    Serialiser("cloudpickle", "dumps", (0, "obj"), None),
    Serialiser("dill", "dump", (0, "obj"), (1, "file")),
    Serialiser("dill", "dumps", (0, "obj"), None),
    Serialiser("joblib", "dump", (0, "value"), (1, "filename")),
    Serialiser("numpy", "save", (1, "arr"), (0, "file"), ".npy"),
    Serialiser("numpy", "savez", (-1, ""), (0, "file"), ".npz"),
    Serialiser("numpy", "savez_compressed", (-1, ""), (0, "file"), ".npz"),
)
"""A place of -1: all arguments but the target are written."""


def install(patches: Patches, registry: OptimizerRegistry) -> SaveGate:
    """Judge every state before it is written, and every file that the script opens or renames."""
    gate = SaveGate(registry)
    registry.notes.append(gate.lines)
    for serialiser in SERIALISERS:

        def wrap(module: ModuleType, serialiser: Serialiser = serialiser) -> None:
            """Put the gate in front of one function of a module that was just imported."""

            def save(original: Any, *args: Any, **kwargs: Any) -> Any:
                return gate.save(serialiser, original, args, kwargs)

            kind, _, name = serialiser.function.rpartition(".")
            owner = getattr(module, kind, None) if kind else module
            if hasattr(owner, name):
                patches.wrap(owner, name, save)
                if serialiser.module == "torch":
                    patches.put(torch.serialization, "save", torch.save)

        when_imported(patches, serialiser.module, wrap)
    for module, name, method in (
        (os, "replace", gate.rename),
        (os, "rename", gate.rename),
        (shutil, "copyfile", gate.copy),
        (builtins, "open", gate.open),
    ):
        patches.wrap(module, name, _as_function(method))
    for owner in (io, sys.modules["_io"]):
        patches.put(owner, "open", builtins.open)
    for owner, name, function in path_methods():
        patches.put(owner, name, function())
    return gate


def _as_function(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method as a function: the compiler of torch puts a mark on what it must not trace."""
    return lambda *args, **kwargs: method(*args, **kwargs)


class SaveGate:
    """Judges what the script saves. Holds which files are known to hold a non-finite state, and what was done.

    Args:
        registry: the guards of the script.
    """

    def __init__(self, registry: OptimizerRegistry) -> None:
        self._registry = registry
        self.serialised: deque[SerialisedState] = deque(maxlen=_MOST_SERIALISED)
        """Bytes in memory that a state was turned into."""
        self._bad_files: set[tuple[int, int, int]] = set()
        """Files that hold a non-finite state, by device, inode and size."""
        self._diverted: dict[str, None] = {}
        """Files that were written instead of others, by name; in the order in which they were written."""
        self._written: dict[str, None] = {}
        self._lost: dict[str, None] = {}
        self._unseen = 0
        self._paused = 0
        self._inside = threading.local()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What is saved meanwhile, in any thread, was judged as a whole."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def _is_off(self) -> bool:
        return bool(self._paused) or not self._registry.guards or self._registry.is_own_call()

    def lines(self) -> list[str]:
        """What the summary says of states that were not finite when they were saved."""
        found = []
        if self._diverted:
            found.append(
                f"non-finite states were saved beside the files they would have replaced: {some_of([*self._diverted])}"
            )
        if self._written:
            found.append(f"files that hold a non-finite state: {some_of([*self._written])}")
        if self._lost:
            found.append(f"a NON-FINITE state replaced what was in {some_of([*self._lost])}")
        unseen = self._unseen + sum(bool(each.names) and not each.is_written for each in self.serialised)
        if unseen:
            times = counted(unseen, "time")
            found.append(f"a non-finite state was turned into bytes {times}; nantrap did not see which file got them")
        return found

    def note_sharded(self, folder: str, *, instead: bool) -> None:
        """A non-finite distributed checkpoint is written to this folder, instead of another one or as asked."""
        (self._diverted if instead else self._written)[typed_path(Path(folder))] = None

    # ---- what is saved

    def save(self, serialiser: Serialiser, original: Any, args: Any, kwargs: Any) -> Any:
        """Judge the object, and call the function with the place where it may be written."""
        if self._is_off() or getattr(self._inside, "save", False):
            return original(*args, **kwargs)
        self._inside.save = True  # one serialiser uses another
        try:
            return self._save(serialiser, original, list(args), kwargs)
        finally:
            self._inside.save = False

    def _save(self, serialiser: Serialiser, original: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Saves an object that is not a part of another one."""
        target = None if serialiser.target is None else _argument(args, kwargs, serialiser.target)
        obj = _argument(args, kwargs, serialiser.obj) if serialiser.obj[0] >= 0 else {**kwargs, "arrays": args[1:]}
        path = _with_suffix(target, serialiser.suffix)
        parts = list(parts_of(obj))
        try:
            names = self._judge(obj, parts, path or _path_of(target))
        except NonFiniteError:
            if (file := written_file_below(target)) is not None:
                file.leave()
            raise
        if path is not None and names:
            asked, path = path, self._path_for(path, names)
            if path is not asked:
                _put_argument(args, kwargs, serialiser.target, path)
        elif names and target is not None:
            self._announce_stream(target, names)
        start = target.tell() if isinstance(target, io.BytesIO) else 0
        whole = any(isinstance(part, nn.Module) for part in parts)  # it must open where nantrap is not installed
        with without_hooks(*(loop.session.protected.root for loop in self._registry if whole)):
            result = original(*args, **kwargs)
        if path is not None:
            with contextlib.suppress(OSError):
                self._note(os.stat(path), bad=bool(names))
        elif isinstance(target, io.BytesIO):
            self._remember(target.getbuffer()[start:], names)
        elif target is None and isinstance(result, (bytes, bytearray)):
            self._remember(result, names)
        return result

    def _judge(self, obj: Any, parts: list[Any], path: Path) -> str:
        """What is not finite in the state of a guarded model, in words; empty if it may be written. May raise
        `NonFiniteError`, by policy."""
        try:
            if not is_state(parts, list(self._registry)):
                return ""
            self._registry.record_abandoned()
            allowed = self._registry.exempt_patterns()
            bad = bad_values(obj, allow=allowed)
            if bad and self._registry.settings.strict:
                step = max((loop.tally.attempted for loop in self._registry), default=0)
                refuse_nonfinite(obj, what=str(path), step=step, allow=allowed)
            return some_of([name for name, _ in bad])
        except NonFiniteError:
            raise
        except Exception as error:  # the script decides what it saves
            self._registry.say(f"{path} is saved unchecked: {type(error).__name__}: {error}")
            return ""

    # ---- where it is written

    def _path_for(self, path: Path, names: str) -> Path:
        """Where a bad state goes: to its path if nothing good is there, else next to it."""
        if self._registry.settings.observes:
            return self._write_as_asked(path, names, "")
        if not self._would_lose(path):
            return self._write_as_asked(path, names, "; it replaces no other file" if not path.exists() else "")
        self._say_diverted(path, names)
        return beside(path)

    def _write_as_asked(self, path: Path, names: str, more: str) -> Path:
        self._written[typed_path(path)] = None
        self._registry.say(f"{path} is being saved with non-finite values: {names}{more}")
        return path

    def _say_diverted(self, path: Path, names: str) -> None:
        aside = beside(path)
        self._diverted[typed_path(aside)] = None
        self._registry.say(
            f"{path} would hold non-finite values ({names}): saved as {aside.name} instead, "
            "the file that was there stays"
        )

    def _announce_stream(self, stream: Any, names: str) -> None:
        """A bad state is about to be written to an open file: to another one, if its content is still there."""
        file = written_file_below(stream)
        path = _path_of(stream)
        if file is None:
            if path.is_file():
                self._written[typed_path(path)] = None
            elif not isinstance(stream, io.BytesIO):
                self._unseen += 1
            self._registry.say(f"{path} is being saved with non-finite values: {names}")
            return
        file.is_judged = True
        if self._divert(file):
            self._say_diverted(path, names)
        else:
            file.holds_bad = True
            self._say_written(file, path, names)

    def _divert(self, file: WrittenFile) -> Path | None:
        """Let an open file write next to the good one, if that is still whole."""
        path = file.path
        if path is None or not file.keeps_content or self._registry.settings.observes or not self._would_lose(path):
            return None
        try:
            file.divert(beside(path))
        except OSError:
            return None
        return beside(path)

    def _say_written(self, file: WrittenFile, path: Path, names: str) -> None:
        (self._lost if file.replaced else self._written)[typed_path(path)] = None
        self._registry.say(f"{path} is being saved with non-finite values: {names}")

    def _would_lose(self, path: Path) -> bool:
        """Whether there is a file with content that is not known to be bad."""
        try:
            status = os.stat(path)
        except OSError:
            return False
        return path.is_file() and status.st_size > 0 and _identity(status) not in self._bad_files

    # ---- bytes and files

    def _remember(self, data: Any, names: str) -> None:
        """A state was turned into bytes. Those of a good one matter only if they begin like those of a bad one."""
        if names or self.serialised:
            if len(self.serialised) == _MOST_SERIALISED:
                self._unseen += bool(self.serialised[0].names) and not self.serialised[0].is_written
            self.serialised.append(SerialisedState(data, names))

    def _note(self, status: os.stat_result, *, bad: bool) -> None:
        (self._bad_files.add if bad else self._bad_files.discard)(_identity(status))

    def divert(self, file: WrittenFile) -> Path | None:
        """The bytes of a non-finite state are about to be written to this file."""
        return self._divert(file)

    def note_closed(self, file: WrittenFile, status: os.stat_result) -> None:
        """A file was written: it is remembered if it holds a bad state."""
        if file.state is not None:
            file.state.is_written = True
            path = _path_of(file)
            if file.beside is not None:
                self._say_diverted(path, file.state.names)
            else:
                self._say_written(file, path, file.state.names)
        self._note(status, bad=file.holds_bad)

    def open(
        self,
        original: Any,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        """`open`; a file that is written in binary form keeps its content until the first byte."""
        is_text = encoding is not None or errors is not None or newline is not None
        if mode not in _BINARY or buffering < -1 or is_text or self._is_off():
            return original(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = WrittenFile(file, mode.replace("b", ""), closefd, opener, self)
        if buffering == 0:
            return raw
        size = io.DEFAULT_BUFFER_SIZE if buffering in (-1, 1) else buffering
        return io.BufferedRandom(raw, size) if "+" in mode else io.BufferedWriter(raw, size)

    def rename(self, original: Any, src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
        """`os.replace` and `os.rename`: a file that holds a bad state gets a name beside the target."""
        if args or kwargs or not self._is_bad_file(src):
            return original(src, dst, *args, **kwargs)
        if self._replaces(src, dst):
            dst = self._beside_target(src, dst, "renamed")
        else:
            self._written[typed_path(Path(os.fsdecode(dst)))] = None
        self._written.pop(typed_path(Path(os.fsdecode(src))), None)
        return original(src, dst)

    def copy(self, original: Any, src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
        """`shutil.copyfile`, and what is built on it: the same for a copy."""
        if not self._is_bad_file(src):
            return original(src, dst, *args, **kwargs)
        if self._replaces(src, dst):
            original(src, self._beside_target(src, dst, "copied"), *args, **kwargs)
            return dst
        result = original(src, dst, *args, **kwargs)
        self._written[typed_path(Path(os.fsdecode(dst)))] = None
        self._note(os.stat(dst), bad=True)
        return result

    def _beside_target(self, src: Any, dst: Any, done: str) -> Path:
        """The name that a file with a bad state gets; said, and counted."""
        path = Path(os.fsdecode(dst))
        self._diverted[typed_path(beside(path))] = None
        what = os.path.basename(os.fsdecode(src))
        self._registry.say(f"{path} would hold non-finite values: {what} was {done} to {beside(path).name} instead")
        return beside(path)

    def _is_bad_file(self, path: Any) -> bool:
        try:
            return bool(self._bad_files) and _identity(os.stat(path)) in self._bad_files
        except (OSError, TypeError, ValueError):
            return False

    def _replaces(self, src: Any, dst: Any) -> bool:
        """Whether a file with a bad state is about to take the place of another one."""
        if self._registry.settings.observes or self._is_off() or not self._is_bad_file(src):
            return False
        return self._would_lose(Path(os.fsdecode(dst)))


def beside(path: Path) -> Path:
    """The name under which a state is saved that must not replace a file."""
    return path.with_name(f"{path.stem}.nonfinite{path.suffix}")


def written_file_below(stream: Any) -> WrittenFile | None:
    """The file that a stream writes to, through what compresses or buffers."""
    for _ in range(len(_BELOW)):
        if isinstance(stream, WrittenFile):
            return stream
        stream = next((each for name in _BELOW if (each := getattr(stream, name, None)) is not None), None)
    return None


def _argument(args: list[Any], kwargs: dict[str, Any], which: tuple[int, str]) -> Any:
    place, name = which
    return args[place] if len(args) > place else kwargs.get(name)


def _put_argument(args: list[Any], kwargs: dict[str, Any], which: tuple[int, str] | None, value: Any) -> None:
    place, name = which or (0, "")
    if len(args) > place:
        args[place] = value
    else:
        kwargs[name] = value


def _with_suffix(target: Any, suffix: str) -> Path | None:
    """The path that a function writes to; `None` if it was given a file, or nothing."""
    if not isinstance(target, (str, os.PathLike)):
        return None
    name = os.fsdecode(target)
    return Path(name if name.endswith(suffix) else name + suffix)


def _path_of(stream: Any) -> Path:
    """The name of the file that a stream writes to, as the script gave it; in words if it has none."""
    name = getattr(written_file_below(stream) or stream, "name", None)
    return Path(os.fsdecode(name) if isinstance(name, (str, bytes, os.PathLike)) else "a checkpoint")


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_dev, status.st_ino, status.st_size


# ---- which objects are a state of a guarded model

_MOST_PARTS = 100_000
"""Parts of an object that are looked at, before it is known to be a state."""
_PLAIN = (str, bytes, int, float, complex, type(None))


def is_state(parts: list[Any], loops: list[ScriptLoop]) -> bool:
    """Whether an object with these parts is a state of a guarded model."""
    mappings = [part for part in parts if isinstance(part, Mapping)]
    if any(isinstance(part, (nn.Module, Optimizer)) for part in parts) or any(map(_is_of_optimizer, mappings)):
        return True
    if mappings:
        names = {name for loop in loops for name, _ in loop.session.protected.members.named()}
        keys = (key for each in mappings for key in each if isinstance(key, str))
        if any(tail in names for key in keys for tail in _tails(key)):
            return True
    tensors = [tensor for part in parts if (tensor := as_tensor(part)) is not None]
    bad = [tensor for tensor in tensors if finite.any_nonfinite([tensor])]
    return bool(bad) and _is_of_model(bad, loops)


def _is_of_model(bad: list[Tensor], loops: list[ScriptLoop]) -> bool:
    """Whether non-finite values are those of a model, by their memory or by their places."""
    live = [tensor for loop in loops for tensor in _tensors_of(loop) if finite.any_nonfinite([tensor])]
    masks = [_mask(tensor) for tensor in live]
    alike = 0
    for tensor in bad:
        if any(_share(tensor, each) for each in live):
            return True
        mask = _mask(tensor)
        if any(mask.shape == each.shape and torch.equal(mask, each) for each in masks):
            alike += 1
            if bool(mask.any()) or alike > 1:  # of values none of which is finite, one tensor says nothing
                return True
    return False


def parts_of(value: Any) -> Iterator[Any]:
    """An object and everything in it: containers and attributes, but not what is inside of modules and tensors."""
    waiting: list[Any] = [value]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_PARTS:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        inner: Any = ()
        if isinstance(part, Mapping):
            inner = part.values()
        elif isinstance(part, (list, tuple, set, frozenset)):
            inner = part
        elif not isinstance(part, (nn.Module, Tensor, type, ModuleType)):
            inner = getattr(part, "__dict__", {}).values()
        waiting += [each for each in itertools.islice(inner, _MOST_PARTS) if not isinstance(each, _PLAIN)]


def _is_of_optimizer(mapping: Mapping[Any, Any]) -> bool:
    return "param_groups" in mapping and "state" in mapping


def _tails(name: str) -> Iterator[str]:
    """The name, then without each of its leading parts: a wrapper may have put something before it."""
    while name:
        yield name
        name = name.partition(".")[2]


def _tensors_of(loop: ScriptLoop) -> list[Tensor]:
    """The parameters and buffers of a model, the state of its optimizer, and all parameters as one vector."""
    root = loop.session.protected.root
    parameters = [each.detach() for each in loop.parameters]
    state = [each for values in loop.optimizer.state.values() for each in values.values() if isinstance(each, Tensor)]
    plain = [flat for each in parameters if (flat := finite.readable(each)) is not None]
    alike = len({(each.dtype, each.device) for each in plain}) == 1
    vector = [torch.cat([each.reshape(-1) for each in plain])] if alike else []
    return [*parameters, *root.buffers(), *state, *vector]


def _mask(tensor: Tensor) -> Tensor:
    """Which values are finite."""
    dense = finite.readable(tensor)
    return torch.ones(0, dtype=torch.bool) if dense is None else dense.isfinite().cpu()


def _share(one: Tensor, other: Tensor) -> bool:
    return one.device == other.device and one.data_ptr() == other.data_ptr() != 0
