"""Runs as a separate program: every interleaving of a writer, a killed writer and a reader, and every power cut.

    python interleaving.py MODE FOLDER [EVERY]      prints one JSON document; of the calls that may be interrupted only
                                                   each EVERY-th, another one after each death

The points are the calls of the interpreter into the system: at the n-th one the other process does all of its work, or
the process ends. A power cut leaves of a file what was flushed, and of a folder the names that it had when it was.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import nantrap
from nantrap.checkpoints import CheckpointStore

torch.set_num_threads(1)
CHANGES = {"open", "replace", "unlink", "mkdir", "flock"}
READS = {"open", "scandir", "listdir", "stat", "flock"}


def save(folder: Path, step: int, value: float, *, keep: int) -> None:
    state = {"weight": torch.full((50,), value)}
    CheckpointStore(folder, keep=keep, lock_seconds=0).save(step=step, model=state, rng=False)


def at_call(number: int, names: set[str], work: Callable[[], Any], other: Callable[[], Any]) -> bool:
    """Do `work`, and `other` just before its call number `number`; whether there is such a call."""
    calls = 0

    def listen(_frame: Any, event: str, function: Any) -> None:
        nonlocal calls
        if event == "c_call" and getattr(function, "__name__", "") in names:
            calls += 1
            if calls == number:
                sys.setprofile(None)
                other()
                sys.setprofile(listen)

    sys.setprofile(listen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls >= number


def killed(folder: Path, number: int, step: int, *, keep: int) -> bool:
    """A writer that ends before its call number `number`; whether it got that far."""
    child = os.fork()
    if not child:
        try:
            at_call(number, CHANGES, lambda: save(folder, step, 1.5, keep=keep), lambda: os._exit(7))
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def looked(folder: Path) -> dict[str, Any]:
    """What a reader sees: the loaded step, and whether it said or moved anything."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        store = CheckpointStore(folder, lock_seconds=0)
        try:
            loaded = store.load(rng=False)
            step, value = loaded.step, float(loaded.state["model"]["weight"].sum()) / 50
        except Exception as error:
            step, value = -1, float("nan")
            warnings.warn(str(error), stacklevel=1)
        try:
            audits = nantrap.audit(folder).checkpoints
        except nantrap.UsageError:  # no file, or the only one was replaced between the list and the look
            audits = ()
    aside = [path.name for path in folder.glob("quarantine/*")]
    sick = [p.message for checkpoint in audits for p in checkpoint.problems if p.code != "NT912"]  # it is gone
    return {"step": step, "value": value, "aside": aside, "said": [str(one.message) for one in said], "sick": sick}


def fresh(template: Path, place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(template, place)
    return place


def interleave(folder: Path, every: int) -> list[dict[str, Any]]:
    """A writer was killed at any point; another one saves the same step, and a reader looks, one inside the other."""
    results: list[dict[str, Any]] = []
    os.fsync = lambda fd: None  # a power cut is another test
    for keep in (1, 3):
        start = folder / f"start-{keep}"
        save(start, 1, 1.0, keep=keep)
        for death in range(1, 200):
            left = fresh(start, folder / "left")
            died = killed(left, death, 2, keep=keep)
            for inside in ("writer", "reader"):
                for number in range(1 + death % every, 400, every):
                    place = fresh(left, folder / "place")
                    seen: list[dict[str, Any]] = []
                    write = lambda place=place: save(place, 2, 2.0, keep=keep)  # noqa: E731
                    read = lambda place=place, seen=seen: seen.append(looked(place))  # noqa: E731
                    names = CHANGES if inside == "writer" else READS
                    works = (write, read) if inside == "writer" else (read, write)
                    if not at_call(number, names, *works):
                        break
                    after = looked(place)
                    point = {"keep": keep, "death": death, "inside": inside, "number": number}
                    results += [{**point, **one} for one in (*seen, after)]
            if not died:
                break
    return results


class Disk:
    """What a power cut would leave: names of flushed folders, bytes of flushed files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names: dict[str, int | None] = {str(root): None}
        self.flushed: dict[str, int | None] = {str(root): None}
        self.data: dict[int, bytes] = {}
        self.states: list[tuple[int, dict[str, int | None], dict[int, bytes]]] = []
        self.returned = self.made = 0

    def note(self) -> None:
        self.states.append((self.returned, dict(self.flushed), dict(self.data)))

    def watch(self) -> None:
        """From now on every call that changes the disk is followed by a note of what a power cut would leave."""
        real = {name: getattr(os, name) for name in ("fsync", "replace", "unlink", "mkdir")}
        real_open = Path.open

        def opened(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            file = real_open(path, mode, *arguments, **options)
            if "w" in mode:
                self.made += 1
                self.names[os.path.abspath(path)] = self.made
                self.note()
            return file

        def fsync(number: int) -> None:
            real["fsync"](number)
            path = os.readlink(f"/proc/self/fd/{number}")
            if os.path.isdir(path):
                for known in (self.flushed, self.names):
                    inside = [name for name in known if os.path.dirname(name) == path]
                    for name in inside:
                        if known is self.flushed:
                            del known[name]
                        else:
                            self.flushed[name] = known[name]
            else:
                self.data[self.names[path] or 0] = Path(path).read_bytes()
            self.note()

        def replace(source: Any, target: Any) -> None:
            real["replace"](source, target)
            self.names[os.path.abspath(target)] = self.names.pop(os.path.abspath(source))
            self.note()

        def unlink(path: Any, **options: Any) -> None:
            real["unlink"](path, **options)
            self.names.pop(os.path.abspath(path), None)
            self.note()

        def mkdir(path: Any, *arguments: Any, **options: Any) -> None:
            real["mkdir"](path, *arguments, **options)
            self.names[os.path.abspath(path)] = None
            self.note()

        Path.open = opened  # type: ignore[method-assign,assignment]
        for function in (fsync, replace, unlink, mkdir):
            setattr(os, function.__name__, function)

    def build(self, names: dict[str, int | None], data: dict[int, bytes], place: Path) -> None:
        """A folder with what is left."""
        for name, inode in sorted(names.items()):
            target = place / os.path.relpath(name, self.root)
            if not target.parent.is_dir() and target != place:
                continue  # the folder above was lost
            if inode is None:
                target.mkdir()
            else:
                target.write_bytes(data.get(inode, b""))


def power(folder: Path, _every: int) -> list[dict[str, Any]]:
    """A run in a new folder below new folders saves six times, and rotates; the power goes after every call."""
    results = []
    for keep in (1, 2):
        root = folder / f"root-{keep}"
        root.mkdir()
        child = os.fork()
        if not child:
            try:
                record(root, keep)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        disk: Disk = pickle.loads((folder / f"root-{keep}.states").read_bytes())
        for number, (returned, names, data) in enumerate(disk.states):
            place = folder / "after"
            shutil.rmtree(place, ignore_errors=True)
            disk.build(names, data, place)
            store = place / "runs" / "exp" / "checkpoints"
            seen = looked(store) if store.is_dir() else {"step": 0, "value": 0, "aside": [], "said": [], "sick": []}
            results.append({"keep": keep, "number": number, "returned": returned, **seen})
    return results


def record(root: Path, keep: int) -> None:
    """Save six times, and write down what a power cut would leave after each call."""
    disk = Disk(root)
    disk.watch()
    for step in range(1, 7):
        save(root / "runs" / "exp" / "checkpoints", step, float(step), keep=keep)
        disk.returned = step
        disk.note()
    with open(f"{root}.states", "wb") as file:
        pickle.dump(disk, file)


if __name__ == "__main__":
    modes: dict[str, Callable[[Path, int], Any]] = {"interleave": interleave, "power": power}
    mode, place, *every = sys.argv[1:]
    sys.stdout.write(json.dumps(modes[mode](Path(place), int(every[0]) if every else 1)))
