"""Writing during the training, and one writer at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nantrap
from nantrap.checkpoints import CheckpointStore
from nantrap.checkpoints.store import store as store_module
from nantrap.checkpoints.store.catalogue import locked


def test_training_continues_while_the_old_state_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    real = store_module.write_checkpoint

    def held(*arguments: Any, **options: Any) -> Any:
        assert go_on.wait(30)
        return real(*arguments, **options)

    monkeypatch.setattr(store_module, "write_checkpoint", held)
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()
    store = CheckpointStore(tmp_path)
    path = store.save(step=1, model=model, asynchronous=True)
    assert not path.exists()
    with torch.no_grad():
        model.weight.fill_(float("nan"))  # whatever happens now is not in the file
    go_on.set()
    store.wait()
    assert path.exists()
    assert torch.equal(store.load().state["model"]["weight"], before)


def test_what_goes_wrong_in_the_thread_is_raised_once_by_the_next_call(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file where the folder should be")
    folder = tmp_path / "other"
    for call in ("wait", "save", "load", "last_good", "close"):
        store = CheckpointStore(folder)
        store.folder = tmp_path / "store" / "below"
        store.save(step=1, model={"w": torch.ones(1)}, asynchronous=True)
        arguments: dict[str, Any] = {"step": 2, "model": {"w": torch.ones(1)}} if call == "save" else {}
        with pytest.raises(NotADirectoryError, match="the checkpoint of step 1 was not saved: Not a directory"):
            getattr(store, call)(**arguments)
        store.wait()  # told once
        store.folder = folder
        assert store.save(step=3, model={"w": torch.ones(1)}).exists()


def test_a_program_that_ends_without_waiting_loses_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, torch, nantrap.checkpoints as c\n"
        "c.CheckpointStore(sys.argv[1]).save(step=5, model={'w': torch.ones(3_000_000)}, asynchronous=True)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=120)
    assert CheckpointStore(tmp_path).load().step == 5


def test_a_lock_that_is_held_names_its_holder(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, lock_seconds=0)
    with locked(tmp_path, seconds=0), pytest.raises(nantrap.UsageError) as caught:
        store.save(step=1, model={"w": torch.ones(1)})
    assert str(caught.value) == (
        f"{tmp_path / '.lock'} has been held by process {os.getpid()} for 0 s: another process writes checkpoints into "
        "this folder. Give each run its own folder, or end that process"
    )
    assert store.save(step=1, model={"w": torch.ones(1)}).exists()


def test_the_lock_of_a_dead_process_is_no_lock(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait(timeout=60)
    (tmp_path / ".lock").write_text(f"{dead.pid}\n")
    assert CheckpointStore(tmp_path, lock_seconds=0).save(step=1, model={"w": torch.ones(1)}).exists()


def test_loading_needs_no_lock(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, lock_seconds=0)
    store.save(step=1, model={"w": torch.ones(1)})
    with locked(tmp_path, seconds=0):
        assert store.load().step == 1
        assert store.last_good() is not None


def test_the_store_is_a_context_manager(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path) as store:
        path = store.save(step=1, model={"w": torch.ones(1)}, asynchronous=True)
    assert path.exists()
    assert repr(store) == f"CheckpointStore({str(tmp_path)!r}, keep=3)"


def test_a_guard_saves_a_file_of_its_own_while_a_store_saves_in_the_same_folder(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), quiet=True)
    store = CheckpointStore(tmp_path, keep=3)
    failed: list[BaseException] = []

    def save() -> None:
        try:
            for step in range(20):
                store.save(step=step, model=model)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=save)
    thread.start()
    for _ in range(20):
        guard.save(tmp_path / "best.safetensors")
    thread.join()
    assert failed == []
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == [
        "best.safetensors", "step-000017.safetensors", "step-000018.safetensors", "step-000019.safetensors",
    ]  # fmt: skip
    assert nantrap.audit(tmp_path).healthy
    assert store.load(model=model).step == 19
