"""Pages of incidents are written after the step: who waits for them, and what a kill, a fork and an exit leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nantrap.cli import main
from nantrap.report import page_queue, render_incident, wait_for_pages
from nantrap.report.page_queue import PageQueue, page_is_coming, write_page_later
from report.runs import MASKED, write_incident

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="signals and forks of POSIX")


class Slow:
    """Writes pages once it is allowed to, and counts them by thread."""

    def __init__(self) -> None:
        self.allowed = threading.Event()
        self.written: list[tuple[str, bool]] = []

    def __call__(self, folder: str) -> None:
        here = threading.current_thread() is threading.main_thread()
        if not here:
            assert self.allowed.wait(10)
        self.written.append((os.path.basename(folder), here))
        if folder.endswith("broken"):
            raise KeyboardInterrupt


def test_the_caller_goes_on_and_can_wait() -> None:
    write = Slow()
    pages = PageQueue(write)
    began = time.monotonic()
    pages.add("a")
    pages.add("broken")
    pages.add("b")
    assert time.monotonic() - began < 5
    assert pages.has("a")
    assert pages.has(os.path.abspath("b"))
    assert not pages.wait(timeout=0.05)
    write.allowed.set()
    assert pages.wait(timeout=10)
    assert write.written == [("a", False), ("broken", False), ("b", False)]
    assert not pages.has("a")
    pages.add("c")  # another thread, since the first one has ended
    assert pages.wait(timeout=10)
    assert write.written[-1] == ("c", False)


def test_a_full_queue_writes_in_the_step_and_loses_nothing() -> None:
    write = Slow()
    pages = PageQueue(write, most=2)
    for name in "abc":
        pages.add(name)
    assert write.written == [("c", True)]
    write.allowed.set()
    assert pages.wait(timeout=10)
    assert write.written == [("c", True), ("a", False), ("b", False)]


def test_without_a_thread_the_page_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", fail)
    write = Slow()
    PageQueue(write).add("a")
    assert write.written == [("a", True)]


def test_a_call_in_the_thread_itself_does_not_wait() -> None:
    said: list[bool] = []
    pages = PageQueue(lambda _: said.append(pages.wait(timeout=60)))
    pages.add("a")
    assert pages.wait(timeout=10)
    assert said == [False]


def test_a_fork_waits_and_its_child_begins_anew(tmp_path: Path) -> None:
    folder = write_incident(tmp_path / "run", MASKED)
    (folder / "report.html").unlink(missing_ok=True)
    write_page_later(folder)
    child = os.fork()
    if not child:
        os._exit(0 if (folder / "report.html").exists() and not page_is_coming(folder) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_message_names_a_page_that_is_coming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Slow()
    monkeypatch.setattr(page_queue, "_pages", PageQueue(write))
    incident = replace(MASKED, bundle=str(tmp_path))
    assert render_incident(incident).endswith(f"bundle: {tmp_path}")
    write_page_later(tmp_path)
    assert render_incident(incident).endswith(f"report: {tmp_path}/report.html")
    write.allowed.set()
    assert wait_for_pages()


SCRIPT = """
import os, signal, sys, threading
import torch, nantrap
from nantrap.report import writing

{before}
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    guard = nantrap.Guard(model, optimizer, run_dir="run", quiet=True)
    for step in range(3):
        factor = float("nan") if step == 2 else 1.0
        outcome = guard.attempt(lambda b: model(b).square().mean() * factor, torch.ones(4, 2))
    return guard, outcome.incident

{then}
"""
BLOCKED = "threading.Event().wait"
FORKED = """
import multiprocessing

def work():
    train()

process = multiprocessing.get_context("fork").Process(target=work)
process.start()
process.join()
raise SystemExit(process.exitcode)
"""


def run(tmp_path: Path, then: str, before: str = "") -> subprocess.CompletedProcess[str]:
    (tmp_path / "train.py").write_text(SCRIPT.format(before=before, then=then))
    return subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    ("then", "code"),
    [
        ("train()", 0),
        ("guard, incident = train()\nraise SystemExit(4)", 4),
        ("guard, incident = train()\nraise ValueError", 1),
        ("guard, incident = train()\nos.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
        (FORKED, 0),
        ("guard, incident = train()\nguard.close()\nos._exit(5)", 5),
        ("guard, incident = train()\nassert nantrap.report.wait_for_pages()\nos._exit(6)", 6),
        ("guard, incident = train()\nos.chdir('/')", 0),
    ],
    ids=["ends", "exit", "exception", "interrupt", "forked", "closed", "waited", "other folder"],
)
def test_however_the_script_ends_the_page_is_there(tmp_path: Path, then: str, code: int) -> None:
    done = run(tmp_path, then, before="import nantrap.report")
    assert done.returncode == code, done.stderr
    folder = tmp_path / "run" / "incidents" / "000002-r0"
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    assert not list(folder.glob(".writing-*"))


def test_a_kill_before_the_page_leaves_what_it_is_made_from(tmp_path: Path) -> None:
    before = f"writing.write_incident_report = lambda folder: {BLOCKED}()"
    done = run(tmp_path, "kept = train()\nos.kill(os.getpid(), signal.SIGKILL)", before)
    assert done.returncode == -signal.SIGKILL, done.stderr
    folder = tmp_path / "run" / "incidents" / "000002-r0"
    assert sorted(path.name for path in folder.iterdir()) == ["bundle.json", "diagnostic.txt", "incident.json"]
    lines = [json.loads(line) for line in (tmp_path / "run" / "journal-r0.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 2
    assert lines[-1]["incident"]["phase"] == "forward"
    assert main(["report", str(folder)]) == 0
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


def test_a_script_under_nantrap_run_that_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "(model(torch.ones(4, 2)).mean() * float('nan')).backward()\n"
        "optimizer.step()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "nantrap", "run", "--run-dir", "run", "train.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    page = tmp_path / "run" / "incidents" / "000000-r0" / "report.html"
    assert f"report: {page.relative_to(tmp_path)}\n" in done.stderr, done.stderr
    assert page.read_text().startswith("<!doctype html>")
