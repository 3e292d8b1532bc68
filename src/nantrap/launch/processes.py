"""Processes that a script starts to train in: each is guarded separately, and writes its own journal.

`torch.multiprocessing.spawn` and `multiprocessing.Process` run a function in new interpreters, which have to attach
(`started.py`); a forked one is attached as its parent is. Launchers (Lightning's own, `torch.distributed.run`,
DeepSpeed) start `python train.py` once more for each rank. The others would have to decide without a rank that has no
guard, so the command becomes `python -m nantrap run train.py`, and the settings are passed in the environment.
"""

from __future__ import annotations

import multiprocessing.process
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch.multiprocessing.spawn

from nantrap.errors import NonFiniteError
from nantrap.launch.patches import Patches
from nantrap.launch.registry import OptimizerRegistry
from nantrap.launch.settings import as_environment
from nantrap.launch.started import GuardedFunction

_RANKS = ("RANK", "LOCAL_RANK")
_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")


def install(patches: Patches, registry: OptimizerRegistry) -> None:
    """Guard every process that the script starts to train in."""
    _install_spawn(patches, registry)
    _install_commands(patches, registry)
    _install_processes(patches, registry)


def _install_spawn(patches: Patches, registry: OptimizerRegistry) -> None:
    """Guard every process of `mp.spawn` separately."""
    module = sys.modules["torch.multiprocessing.spawn"]

    def start(original: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
        registry.has_children = True
        guarded = GuardedFunction(fn, replace(registry.settings, json=False), registry.reports.open())
        return original(guarded, *args, **kwargs)

    patches.wrap(module, "start_processes", start)
    patches.put(torch.multiprocessing, "start_processes", vars(module)["start_processes"])


def _install_processes(patches: Patches, registry: OptimizerRegistry) -> None:
    """Guard what the script starts by `multiprocessing`: workers that train one model in shared memory, and others.

    A new interpreter is guarded if its function has imported torch by then; else it is counted.
    """

    def start(original: Any, self: Any) -> None:
        """Starts the process with a guarded function in the place of its own."""
        function = getattr(self, "_target", None)  # forgotten when it has started
        method = getattr(self, "_start_method", None) or multiprocessing.get_start_method()
        if not str(getattr(function, "__module__", "")).startswith("torch."):
            reports, folder = registry.reports.open(), registry.folder_of_children()  # a fork inherits them
            if method != "fork":
                registry.started_processes += 1
                settings = replace(registry.settings, json=False, run_dir=folder)
                if function is not None:
                    self._target = GuardedFunction(function, settings, reports, number=registry.started_processes)
        original(self)

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
