"""What a program or a command of a page prints, when it is run in a folder of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_SECONDS = 300
_QUIET = {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "PYTHONWARNINGS": "ignore"}


def printed(
    command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The ended process, with stdout and stderr as one text, without colours.

    Args:
        command: the program and its arguments.
        folder: where it is run.
        environment: of the program; by default that of this process.
    """
    return subprocess.run(
        list(command),
        cwd=folder,
        env={**(os.environ if environment is None else environment), **_QUIET},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=_SECONDS,
        check=False,
    )
