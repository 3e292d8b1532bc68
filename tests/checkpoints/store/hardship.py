"""Runs as a separate program: forks writers, kills them, fills their disk, takes their rights, looks what is left.

    python hardship.py MODE FOLDER      prints one JSON document

A child says so by one byte on a pipe when a save has returned; whatever was said must be found afterwards.
"""

from __future__ import annotations

import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nantrap.checkpoints import CheckpointStore

torch.set_num_threads(1)
SIZE = 20_000


def save(store: CheckpointStore, step: int, **options: Any) -> None:
    weight = torch.full((SIZE,), float(step))
    store.save(step=step, model={"weight": weight}, extras={"step": step}, rng=False, **options)


def fork(work: Callable[[int], None]) -> tuple[int, int]:
    """A child that does `work(pipe)`; its id, and the end of the pipe to read from."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    os.close(reading)
    try:
        work(writing)
        os._exit(0)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)


def found(folder: Path) -> dict[str, Any]:
    """What a fresh look at the folder gives: the last good one, verified and loaded."""
    store = CheckpointStore(folder)
    good = store.last_good()
    if good is None:
        return {"step": 0, "whole": True, "count": 0}
    loaded = store.load(rng=False, fallback=False)
    weight = loaded.state["model"]["weight"]
    whole = loaded.step == good.step == loaded.extras["step"] and bool((weight == float(good.step)).all())
    whole = whole and all(not store.verify(saved) for saved in store.checkpoints())
    return {"step": good.step, "whole": whole, "count": len(store.checkpoints())}


def count_said(pipe: int) -> int:
    said = 0
    while chunk := os.read(pipe, 4096):
        said += len(chunk)
    os.close(pipe)
    return said


def kill_at_random_moments(folder: Path, trials: int = 50) -> list[dict[str, Any]]:
    """One store, many lives: each child continues where the last one was killed."""
    chance = random.Random(20_240)
    results = []
    step = 0
    for trial in range(trials):

        def work(pipe: int, first: int = step, asynchronous: bool = trial % 3 == 2) -> None:
            store = CheckpointStore(folder, keep=3)
            for number in range(first + 1, first + 10_000):
                save(store, number, asynchronous=asynchronous)
                if asynchronous:
                    store.wait()
                os.write(pipe, b".")

        child, pipe = fork(work)
        os.read(pipe, 1)  # it has saved at least once
        until = time.monotonic() + chance.uniform(0.0, 0.04)
        said = 1
        while (left := until - time.monotonic()) > 0 and select.select([pipe], [], [], left)[0]:
            said += len(os.read(pipe, 4096))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        said += count_said(pipe)
        after = found(folder)
        results.append({"promised": step + said, **after})
        step = after["step"]
    return results


def kill_at_every_call(folder: Path) -> list[dict[str, Any]]:
    """Every call that changes the disk, one by one, is the last thing a writer does, half done or not at all."""
    results = []
    template = folder / "template"
    for step in (1, 2, 3):
        save(CheckpointStore(template), step)
    for half in (False, True):
        for point in range(1, 200):
            place = folder / f"{half}-{point}"
            shutil.copytree(template, place)

            def work(pipe: int, place: Path = place, point: int = point, half: bool = half) -> None:
                _die_at(point, half=half)
                save(CheckpointStore(place), 4)
                os.write(pipe, b".")

            child, pipe = fork(work)
            _, status = os.waitpid(child, 0)
            said = count_said(pipe)
            after = found(place)
            save(CheckpointStore(place), 5)
            again = found(place)
            left = len(list(place.glob(".writing-*")))
            result = {
                "promised": 3 + said,
                **after,
                "again": again["step"],
                "whole_again": again["whole"],
                "left": left,
            }
            results.append(result)
            if not os.WIFSIGNALED(status):
                break
    return results


def _die_at(point: int, *, half: bool) -> None:
    """Kill this process before (or, for a write, amid) the call number `point` that changes the disk."""
    calls = 0

    def counted(real: Callable[..., Any], partial: Callable[..., Any] | None = None) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == point:
                if half and partial is not None:
                    partial(*arguments)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return call

    for name in ("fsync", "replace", "unlink", "ftruncate", "mkdir"):
        setattr(os, name, counted(getattr(os, name)))
    real_open = Path.open

    class Shaky:
        def __init__(self, file: Any) -> None:
            self._file = file
            half_of = lambda data: (file.write(memoryview(data)[: len(data) // 2]), file.flush())  # noqa: E731
            self.write = counted(file.write, half_of)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def __enter__(self) -> Shaky:
            return self

        def __exit__(self, *exception: object) -> None:
            self._file.close()

    def open_shaky(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        file = real_open(path, mode, *arguments, **options)
        return Shaky(file) if mode == "wb" else file

    Path.open = open_shaky  # type: ignore[method-assign,assignment]


def two_writers(folder: Path, each: int = 25) -> dict[str, Any]:
    """Two processes save into one folder in parallel."""

    def work_from(first: int) -> Callable[[int], None]:
        def work(pipe: int) -> None:
            store = CheckpointStore(folder, keep=1000)
            for step in range(first, first + each):
                save(store, step)

        return work

    children = [fork(work_from(first)) for first in (1000, 2000)]
    codes = [os.waitpid(child, 0)[1] for child, _ in children]
    store = CheckpointStore(folder)
    listed = store.checkpoints()
    return {
        "codes": codes,
        "steps": sorted(saved.step for saved in listed),
        "sequences": sorted(saved.sequence for saved in listed),
        "damaged": [saved.path.name for saved in listed if store.verify(saved)],
    }


def _try(folder: Path, work: Callable[[CheckpointStore], Any]) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            message = f"done: {work(CheckpointStore(folder))}"
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"
        os.write(writing, message.encode()[:4000])
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    text = b""
    while chunk := os.read(reading, 4096):
        text += chunk
    os.close(reading)
    return text.decode()


def full_disk(folder: Path) -> list[dict[str, Any]]:
    """A limit on the size of files, and a real ENOSPC (/dev/full) for each of the three files that a save writes."""
    for step in (1, 2):
        save(CheckpointStore(folder), step)
    results = []

    def too_large(store: CheckpointStore) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE, SIZE))
        save(store, 3)

    def full_at(name: str) -> Callable[[CheckpointStore], None]:
        def work(store: CheckpointStore) -> None:
            (folder / f".writing-store-{name}").symlink_to("/dev/full")
            save(store, 3)

        return work

    attempts = [too_large, full_at("step-000003.safetensors"), full_at("manifest.json"), full_at("last-good.json")]
    for work in attempts:
        message = _try(folder, work)
        left = len([p for p in folder.glob(".writing-*") if p.is_file()])
        results.append({"message": message.replace(str(folder), "FOLDER"), **found(folder), "left": left})
    save(CheckpointStore(folder), 4)
    results.append(found(folder))
    return results


def read_only(folder: Path) -> dict[str, Any]:
    """Without the right to write: saving reports it, loading works, a damaged one is skipped and not moved."""
    for step in (1, 2):
        save(CheckpointStore(folder), step)

    def without_rights(work: Callable[[CheckpointStore], Any]) -> Callable[[CheckpointStore], Any]:
        def run(store: CheckpointStore) -> Any:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            return work(store)

        return run

    os.chmod(folder, 0o555)
    for parent in folder.parents:  # pytest's folders are closed to others
        if parent.stat().st_uid == os.getuid() and not parent.stat().st_mode & 1:
            os.chmod(parent, parent.stat().st_mode | 0o011)
    for file in folder.iterdir():
        file.chmod(0o444)
    saved = _try(folder, without_rights(lambda store: save(store, 3)))
    loaded = _try(folder, without_rights(lambda store: store.load(rng=False).step))
    newest = folder / "step-000002.safetensors"
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.chmod(0o644)
    newest.write_bytes(bytes(data))
    newest.chmod(0o444)

    def load_and_tell(store: CheckpointStore) -> Any:
        loaded = store.load(rng=False)
        return loaded.step, loaded.instead_of

    fallen_back = _try(folder, without_rights(load_and_tell))
    os.chmod(folder, 0o755)
    return {"saved": saved.replace(str(folder), "FOLDER"), "loaded": loaded, "fallen_back": fallen_back}


if __name__ == "__main__":
    modes: dict[str, Callable[[Path], Any]] = {
        "random": kill_at_random_moments,
        "every": kill_at_every_call,
        "rest": lambda folder: {
            "two": two_writers(folder / "two"),
            "full": full_disk(folder / "full"),
            "read_only": read_only(folder / "read_only"),
        },
    }
    sys.stdout.write(json.dumps(modes[sys.argv[1]](Path(sys.argv[2]))))
