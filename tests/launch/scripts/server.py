"""`nantrap run` in a separate process, without waiting for torch each time: imports it once and forks for each line.

A line on stdin is the request (arguments, folder, environment, files for stdout and stderr), a line on stdout the exit
code. What a child does is what `python -m nantrap` does, or plain `python`.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import sys
import tempfile

import torch
import torch._dynamo  # an optimizer's first step would
import torch.utils.data

import nantrap.launch.runner
from nantrap.cli import main
from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings


def warm_up() -> None:
    """Import whatever a step and a diagnosis import. Leaves torch as it was."""
    with tempfile.TemporaryDirectory() as folder, attached(RunSettings(run_dir=folder, quiet=True)):
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.full((1, 1), float("nan"))).sum().backward()
        optimizer.step()


def become(request: dict) -> None:
    """The process as a shell would have started it."""
    os.chdir(request["folder"])
    os.environ.update(request["environment"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(request["stdout"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    os.dup2(os.open(request["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.path[0] = request["folder"]
    sys.argv = [nantrap.__file__.replace("__init__", "__main__"), *request["arguments"]]


def serve() -> None:
    """Until there are no more lines."""
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            gc.unfreeze()  # some extension modules complain at exit about objects that were never collected
            become(request)
            command, *arguments = request["arguments"]
            if command == "run":
                raise SystemExit(main())
            sys.argv = arguments
            runpy.run_path(arguments[0], run_name="__main__")
            raise SystemExit
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    warm_up()
    gc.freeze()
    serve()
