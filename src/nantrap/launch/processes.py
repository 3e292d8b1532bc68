"""Processes that a script starts to train in: each is guarded separately, and writes its own journal.

`torch.multiprocessing.spawn` runs a function in new interpreters, which have to attach; a forked one is attached as its
parent is. Launchers (Lightning's own, `torch.distributed.run`, DeepSpeed) start `python train.py` once more for each
rank. The others would have to decide without a rank that has no guard, so the command becomes `python -m nantrap run
train.py`, and the settings are passed in the environment.
"""

from __future__ import annotations

import multiprocessing.process
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch.multiprocessing.spawn

from nantrap.errors import NonFiniteError
from nantrap.launch.patches import Patches
from nantrap.launch.registry import OptimizerRegistry
from nantrap.launch.settings import RunSettings, as_environment

_RANKS = ("RANK", "LOCAL_RANK")
_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")


def install(patches: Patches, registry: OptimizerRegistry) -> None:
    """Guard every process that the script starts to train in."""
    _install_spawn(patches, registry)
    _install_commands(patches, registry)
    _install_processes(patches, registry)


@dataclass(frozen=True, slots=True)
class GuardedFunction:
    """A function that a child process runs under guard."""

    function: Callable[..., Any]
    settings: RunSettings

    def __call__(self, number: int, *args: Any) -> None:
        from nantrap.launch.attach import Attachment, current
        from nantrap.launch.summary import RunSummary, print_summary

        settings, attachment = replace(self.settings, process=number), current()
        if attachment is None:
            attachment = Attachment(settings)
        else:  # a forked process is attached already
            attachment.begin_in_child(settings)
        try:
            self.function(number, *args)
        finally:
            summary = RunSummary.of(attachment)
            attachment.detach()
            if summary.optimizers:
                print_summary(summary, 3 if summary.stopped else 0, self.settings)


def _install_spawn(patches: Patches, registry: OptimizerRegistry) -> None:
    """Guard every process of `mp.spawn` separately."""
    module = sys.modules["torch.multiprocessing.spawn"]

    def start(original: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
        registry.has_children = True
        return original(GuardedFunction(fn, replace(registry.settings, json=False)), *args, **kwargs)

    patches.wrap(module, "start_processes", start)
    patches.put(torch.multiprocessing, "start_processes", vars(module)["start_processes"])


def _install_processes(patches: Patches, registry: OptimizerRegistry) -> None:
    """Count the new interpreters that the script starts by `multiprocessing`. They are not guarded: most of them train
    nothing (an environment, a reader of files), and would have to import torch for it."""

    def start(original: Any, self: Any) -> None:
        function = getattr(self, "_target", None)  # forgotten when it has started
        original(self)
        method = getattr(self, "_start_method", None) or multiprocessing.get_start_method()
        if method != "fork" and not str(getattr(function, "__module__", "")).startswith("torch."):
            registry.unguarded_processes += 1

    patches.wrap(multiprocessing.process.BaseProcess, "start", start)


def _install_commands(patches: Patches, registry: OptimizerRegistry) -> None:
    """Guard every rank that the script starts as a Python program."""

    def start(original: Any, self: Any, *given: Any, **kwargs: Any) -> None:
        """Starts the process under `nantrap run`, if its command is a Python program that can be guarded."""
        command = given[0] if given else kwargs.get("args")
        guarded = guarded_command(command, kwargs.get("env"), here=os.environ)
        if guarded is None or kwargs.get("shell") or kwargs.get("executable"):
            original(self, *given, **kwargs)
            return
        registry.has_children = True
        # the first rank prints the summary, as text
        kwargs["env"] = {**kwargs["env"], **as_environment(replace(registry.settings, json=False))}
        if given:
            original(self, guarded, *given[1:], **kwargs)
        else:
            original(self, **{**kwargs, "args": guarded})

    patches.wrap(subprocess.Popen, "__init__", start)


def guarded_command(command: Any, environment: Any, *, here: Mapping[str, str]) -> list[str] | None:
    """The command of a rank under guard; `None` if this is not a Python program that is started as a rank.

    Args:
        command: what is to be started.
        environment: of the new process. A launcher names the rank there.
        here: the environment of this process.
    """
    if not isinstance(environment, Mapping) or not isinstance(command, Sequence) or isinstance(command, (str, bytes)):
        return None
    if not any(name in environment and environment[name] != here.get(name) for name in _RANKS):
        return None
    words = [os.fspath(word) if isinstance(word, os.PathLike) else word for word in command]
    if not words or not all(isinstance(word, str) for word in words) or not _is_this_python(words[0]):
        return None
    place = _place_of_program(words)
    program = words[place:]
    if not program or program[0] in ("-c", "-") or program == ["-m"]:
        return None
    if program[0] == "-m" and program[1].partition(".")[0] == "nantrap":
        return None
    return [*words[:place], "-m", "nantrap", "run", *program]


def _place_of_program(words: Sequence[str]) -> int:
    """Where the options of Python end in a command: at `-m`, `-c`, `-` or the name of a script."""
    place = 1
    while place < len(words) and words[place].startswith("-") and words[place] not in ("-m", "-c", "-"):
        place += 2 if words[place] in _WITH_VALUE else 1
    return place


def _is_this_python(word: str) -> bool:
    return word == sys.executable or os.path.realpath(word) == os.path.realpath(sys.executable)


def came_from_guard(error: BaseException) -> bool:
    """Whether an error that ended a run is the guard's, raised in a child or wrapped by a framework."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, NonFiniteError) or f"{NonFiniteError.__module__}.{NonFiniteError.__name__}" in str(seen):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
