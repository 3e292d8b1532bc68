"""Python processes that a script starts as ranks: Lightning's own launcher, `torch.distributed.run`, DeepSpeed.

They start `python train.py` once more for each rank. The others would have to decide without a rank that has no guard,
so the command becomes `python -m nantrap run train.py`, and the settings are passed in the environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nantrap.launch.loops import Loops
from nantrap.launch.patches import Patches
from nantrap.launch.settings import as_environment

_RANKS = ("RANK", "LOCAL_RANK")
_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")


def install(patches: Patches, loops: Loops) -> None:
    """Guard every rank that the script starts as a separate process."""

    def start(original: Any, self: Any, *given: Any, **kwargs: Any) -> None:
        """Starts the process under `nantrap run`, if its command is a Python program that can be guarded."""
        command = given[0] if given else kwargs.get("args")
        guarded = guarded_command(command, kwargs.get("env"), here=os.environ)
        if guarded is None or kwargs.get("shell") or kwargs.get("executable"):
            original(self, *given, **kwargs)
            return
        loops.has_children = True
        # the first rank prints the summary, as text
        kwargs["env"] = {**kwargs["env"], **as_environment(replace(loops.settings, json=False))}
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
    place = 1
    while place < len(words) and words[place].startswith("-") and words[place] != "-m":
        if words[place] in ("-c", "-"):
            return None
        place += 2 if words[place] in _WITH_VALUE else 1
    program = words[place:]
    if not program or program == ["-m"] or (program[0] == "-m" and program[1].partition(".")[0] == "nantrap"):
        return None
    return [*words[:place], "-m", "nantrap", "run", *program]


def _is_this_python(word: str) -> bool:
    return word == sys.executable or os.path.realpath(word) == os.path.realpath(sys.executable)
