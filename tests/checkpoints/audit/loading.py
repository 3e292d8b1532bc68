"""Load every file of a folder with `torch.load(weights_only=False)`, each in its own process, and report what it left.

    python loading.py FOLDER SECONDS     prints {"file": ["what", "it", "made"], ...}

A child has an empty folder to work in, little time, memory and disk, and no network where the kernel allows that.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import shutil
import sys
import tempfile
import time
import warnings

import numpy  # noqa: F401 - imported once, for all children
import torch


def left_by(path: str, seconds: float) -> list[str]:
    """The names of what loading the file made in its folder."""
    place = tempfile.mkdtemp(prefix="loading-")
    child = os.fork()
    if child == 0:
        _load(path, place)
    deadline = time.monotonic() + seconds
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            break
        time.sleep(0.001)
    made = sorted(os.listdir(place))
    shutil.rmtree(place, ignore_errors=True)
    return made


def _load(path: str, place: str) -> None:
    try:
        os.setsid()
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).unshare(0x40000000)  # no network
        os.chdir(place)
        silence = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(silence, descriptor)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        os.environ.clear()
        os.environ["PATH"] = "/usr/bin:/bin"
        warnings.simplefilter("ignore")
        torch.load(path, map_location="cpu", weights_only=False)
    except BaseException:
        pass
    finally:
        os._exit(0)


if __name__ == "__main__":
    folder, limit = sys.argv[1], float(sys.argv[2])
    torch.set_num_threads(1)
    result = {name: left_by(os.path.join(folder, name), limit) for name in sorted(os.listdir(folder))}
    print(json.dumps(result))
