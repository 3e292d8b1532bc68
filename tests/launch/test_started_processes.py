"""Processes that `multiprocessing` starts: workers that train one model in shared memory are guarded, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HOGWILD = """
import sys, torch, torch.multiprocessing as mp
from torch import nn

def train(number, model, bad):
    torch.set_num_threads(1)
    torch.manual_seed(number)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.5)
    for step in range(20):
        x = torch.randn(8, 4)
        if number == 0 and step in bad:
            x[3, 1] = float("nan")
        optimizer.zero_grad()
        (model(x) - 1).pow(2).mean().backward()
        optimizer.step()

if __name__ == "__main__":
    method, workers, *bad = sys.argv[1:]
    mp.set_start_method(method)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).share_memory()
    processes = [mp.Process(target=train, args=(n, model, [int(b) for b in bad])) for n in range(int(workers))]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    state = model.state_dict().values()
    print([process.exitcode for process in processes], all(bool(t.isfinite().all()) for t in state))
    print([float(t.double().sum()).hex() for t in state])
"""
COPIES = """
import sys, torch, torch.multiprocessing as mp
from torch import nn

def made():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

def train(number, shared, optimizer):
    torch.set_num_threads(1)
    torch.manual_seed(number)
    own = made()
    for step in range(12):
        own.load_state_dict(shared.state_dict())
        x = torch.randn(8, 4)
        if number == 0 and step == 5:
            x[0, 0] = float("nan")
        own.zero_grad()
        (own(x) - 1).pow(2).mean().backward()
        for mine, common in zip(own.parameters(), shared.parameters()):
            common.grad = mine.grad
        optimizer.step()

if __name__ == "__main__":
    mp.set_start_method(sys.argv[1])
    torch.set_num_threads(1)
    shared = made().share_memory()
    optimizer = torch.optim.SGD(shared.parameters(), 0.05)
    processes = [mp.Process(target=train, args=(number, shared, optimizer)) for number in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print([process.exitcode for process in processes], all(bool(p.isfinite().all()) for p in shared.parameters()))
"""
LATE = """
import multiprocessing

def train():
    import torch
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.ones(2, 3)).mean().backward()
    optimizer.step()

class Worker(multiprocessing.get_context("spawn").Process):
    def run(self):
        pass

if __name__ == "__main__":
    for process in (multiprocessing.get_context("spawn").Process(target=train), Worker()):
        process.start()
        process.join()
"""
NO_TORCH = """
import multiprocessing

def work(number):
    return number + 1

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=work, args=(1,))
    process.start()
    process.join()
    raise SystemExit(process.exitcode)
"""
LOADS = """
import torch
from torch.utils.data import DataLoader

if __name__ == "__main__":
    for _ in DataLoader(torch.ones(4, 3), num_workers=1, multiprocessing_context="spawn"):
        pass
"""
IN_CHILDREN = "nantrap: the training ran in other processes, each of which prints its own summary"
METHODS = [pytest.param("fork", marks=pytest.mark.skipif(sys.platform == "win32", reason="no fork")), "spawn"]


def run(folder: Path, program: str, *arguments: str, guarded: bool = True) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(program)
    front = ["-m", "nantrap", "run"] if guarded else []
    command = [sys.executable, *front, str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd=folder)


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_that_trains_alone_ends_with_the_same_bits(method: str, tmp_path: Path) -> None:
    plain, done = run(tmp_path, HOGWILD, method, "1", guarded=False), run(tmp_path, HOGWILD, method, "1")
    assert (done.returncode, done.stdout) == (0, plain.stdout), done.stderr
    assert "20 steps, 20 applied (100.0 %), 0 incidents" in done.stderr
    assert IN_CHILDREN in done.stderr


@pytest.mark.parametrize("method", METHODS)
def test_a_bad_batch_of_one_worker_stays_out_of_the_shared_weights(method: str, tmp_path: Path) -> None:
    done = run(tmp_path, HOGWILD, method, "2", "5")
    assert done.stdout.startswith("[0, 0] True"), done.stderr
    assert done.returncode == 0
    assert "[NT101]" in done.stderr
    assert "20 steps, 19 applied (95.0 %), 1 incident" in done.stderr
    assert len(list((tmp_path / "runs").glob("*/process-*/journal-*.jsonl"))) == 2
    assert len(list((tmp_path / "runs").iterdir())) == 1, "one folder for the run"


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_that_is_stopped_makes_the_exit_code(method: str, tmp_path: Path) -> None:
    done = run(tmp_path, HOGWILD, method, "2", *map(str, range(5, 20)))
    assert done.stdout.startswith("[1, 0] True"), done.stderr
    assert done.returncode == 3
    assert "nantrap: 1 process was stopped by the guard" in done.stderr


@pytest.mark.parametrize("method", METHODS)
def test_workers_that_copy_their_gradients_into_a_common_model(method: str, tmp_path: Path) -> None:
    """The optimizer is made by the process that starts them, and the common model is never called."""
    done = run(tmp_path, COPIES, method)
    assert (done.returncode, done.stdout) == (0, "[0, 0] True\n"), done.stderr
    assert "12 steps, 11 applied (91.7 %), 1 incident" in done.stderr
    assert "12 steps, 12 applied (100.0 %), 0 incidents" in done.stderr
    assert "NT871" not in done.stderr, "each step has gradients of its own"
    assert IN_CHILDREN in done.stderr


def test_what_cannot_be_guarded_is_said(tmp_path: Path) -> None:
    """A function that imports torch itself, and a class of its own that runs no function."""
    done = run(tmp_path, LATE)
    assert done.returncode == 0, done.stderr
    assert "NOT GUARDED: 2 processes that the script started by multiprocessing (spawn)" in done.stderr
    assert "no optimizer made a step in this process" in done.stderr


@pytest.mark.parametrize("program", [NO_TORCH, LOADS], ids=["no torch", "loads"])
def test_of_a_process_that_cannot_train_nothing_is_said(program: str, tmp_path: Path) -> None:
    done = run(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert "GUARDED" not in done.stderr
    assert "no optimizer made a step" in done.stderr
