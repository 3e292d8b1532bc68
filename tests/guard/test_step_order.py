"""The order of a step, as its functions are called: a healthy one, and a bad one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import nantrap
from guard.loops import make_run, poison

PLACES = {
    "guard/step.py": {"read", "decide", "make_update", "accept"},
    "guard/refusal.py": {"observe_step", "contain", "refuse", "act"},
    "guard/judge.py": {"judge"},
    "guard/diagnosis/diagnose.py": {"diagnose"},
    "guard/recorder.py": {"begin_incident", "finish", "end"},
    "guard/state/protected.py": {"begin", "verify"},
    "locate/locate.py": {"locate"},
}
FOLDER = str(Path(nantrap.__file__).parent) + "/"


def order_of(step: Callable[[], object]) -> list[str]:
    calls: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        file = frame.f_code.co_filename.removeprefix(FOLDER)
        if event == "call" and frame.f_code.co_name in PLACES.get(file, ()):
            calls.append(f"{Path(file).stem}.{frame.f_code.co_name}")

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return calls


def test_a_healthy_step() -> None:
    run = make_run()
    guard = run.guard()
    for batch in run.batches[:2]:
        guard.attempt(run.forward, batch)
    assert order_of(lambda: guard.attempt(run.forward, run.batches[2])) == [
        "protected.begin",
        "step.read",
        "step.decide",
        "step.make_update",
        "step.accept",
        "recorder.end",
    ]


def test_a_bad_step_is_contained_located_once_acted_on_and_then_recorded() -> None:
    run = make_run()
    guard = run.guard()
    guard.attempt(run.forward, run.batches[0])
    assert order_of(lambda: guard.attempt(run.forward, poison(run.batches[1]))) == [
        "protected.begin",
        "step.read",
        "step.decide",
        "judge.judge",
        "refusal.observe_step",
        "refusal.contain",
        "diagnose.diagnose",
        "recorder.begin_incident",
        "locate.locate",
        "refusal.refuse",
        "refusal.act",
        "protected.verify",
        "recorder.finish",
        "recorder.end",
    ]
