"""Runs each program in a process of its own, so that a crash or a hang of a tool ends that program and nothing else.

The processes are forked from a server that has imported what the tool needs; every one starts from the same state, in
an empty folder, with one thread. Needs an operating system with `fork`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from zoo.judging import Answer, measure
from zoo.loading import is_healthy
from zoo.running import Tool
from zoo.tools import find_tool

SECONDS = 120
"""How long one program may take, unless the tool has a limit of its own."""
_OFTEN = (
    "torch", "numpy", "torch._dynamo", "torch.distributions", "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto", "transformers.masking_utils", "zoo.tools",
)  # fmt: skip
"""What most programs import; what is not installed is left out."""


def answers(name: str, paths: Iterable[Path], *, jobs: int = 1, seconds: float | None = None) -> Iterator[Answer]:
    """What a tool did with each program, in the order in which they end."""
    tool = find_tool(name)
    limit = seconds or getattr(tool, "seconds", SECONDS)
    context, waiting = _context(tool), list(reversed(list(paths)))
    running: dict[Path, tuple[BaseProcess, Connection]] = {}
    with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
        while waiting or running:
            while waiting and len(running) < jobs:
                path = waiting.pop()
                running[path] = _start(context, name, path, Path(folder, path.stem))
            ready = wait([end for _, end in running.values()], timeout=limit)
            for path, (process, end) in list(running.items()):
                if end in ready or not ready:
                    yield _result(name, path, process, end, hung=end not in ready)
                    del running[path]


def _context(tool: Tool) -> ForkServerContext:
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    os.environ["PYTHONHASHSEED"] = "0"  # the order of a set must not change an answer
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_OFTEN, "zoo.isolated", *getattr(tool, "preload", ())])
    return context


def _start(context: ForkServerContext, name: str, path: Path, folder: Path) -> tuple[BaseProcess, Connection]:
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(name, path, folder, theirs), daemon=False)
    process.start()
    theirs.close()
    return process, ours


def _child(name: str, path: Path, folder: Path, end: Connection) -> None:
    """Measure in an empty folder; what the tool prints is thrown away."""
    import torch

    with contextlib.suppress(OSError):
        os.setsid()  # what the tool starts ends with this process
    folder.mkdir()
    os.chdir(folder)
    sink = open(os.devnull, "w")  # noqa: SIM115
    os.dup2(sink.fileno(), 1)
    os.dup2(sink.fileno(), 2)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    end.send(measure(find_tool(name), path, to_the_end=True))
    end.close()


def _result(name: str, path: Path, process: BaseProcess, end: Connection, *, hung: bool) -> Answer:
    """What the process sent, or how it ended."""
    answer = None
    if not hung:
        with contextlib.suppress(EOFError):
            answer = end.recv()
    end.close()
    if hung or answer is None:
        process.join(0 if hung else 10)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid or 0, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.join()
    if answer is None:
        said = "no end within the time limit" if hung else f"the process ended with {process.exitcode}"
        answer = Answer(path.stem, name, is_healthy(path), raised=said, said=said, finite=False)
    return answer


def is_possible() -> bool:
    """Whether programs can be run apart here."""
    return sys.platform != "win32"
