"""Every help that is called verified is carried out on its program, and the step must be finite with it."""

from __future__ import annotations

import itertools
import math
import runpy
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nantrap
from causes.attacks import ATTACKS
from causes.carrying_out import Build, NotCarriedOutError, edit_for, is_finite_after, verified
from causes.programs import run, run_two_lines
from causes.sentences import POSTLUDE, PRELUDE, PROGRAMS
from nantrap.incident import Incident
from torch_habits import is_possible
from zoo.loading import batches, find, is_control, load, loss_function

pytestmark = pytest.mark.filterwarnings("ignore")
FORMS = ("attempt", "two lines")
CANNOT = ": it is not clear what to do"
NO_TEXT_EDIT = {
    "a temperature of 0.002 before a softmax": "the softmax and the logarithm are two statements",
    "a call that is written in another form": "the logarithm is a function that is handed to map",
    "moe_load_entropy_of_unused_expert": "the softmax is in another function",
    "log_mel_of_silence_in_dataclass": "a batch whose samples are in an object of its own",
    "minus_inf_in_series_list": "a batch that is a list of samples",
    "nan_in_unexpected_column": "a batch whose columns are lists",
    "qwen2_lora_half_adam": "the adapters alone would be float32, in a model of a library",
}
"""Programs whose source this test cannot edit, and why."""


def built(folder: Path) -> Build:
    """A program of tests/causes from its source."""

    def build(source: str) -> dict[str, Any]:
        path = folder / "program.py"
        path.write_text(source, encoding="utf-8")
        names = runpy.run_path(str(path), {"nantrap": nantrap, "math": math})
        return {**names, "loss": names["loss_fn"]}

    return build


def wrong(source: str, incident: Incident, build: Build) -> Iterator[str]:
    """What is called verified and is not: the step of the edited program is not finite, or nothing can be edited."""
    for one, diff in verified(incident):
        try:
            edit = edit_for(source, incident, one.text, diff)
            if not is_finite_after(build, edit, incident):
                yield f"{one.text}: not finite"
        except NotCarriedOutError:
            yield f"{one.text}{CANNOT}"
        except Exception as error:
            yield f"{one.text}: {type(error).__name__}: {error}"


def said_wrongly(source: str, form: str, folder: Path) -> list[str]:
    source = textwrap.dedent(source)
    try:
        incident = (run if form == "attempt" else run_two_lines)(source, folder)
    except ZeroDivisionError:  # of plain numbers: the program ends there by itself
        return []
    return [] if incident is None else list(wrong(source, incident, built(folder)))


NAMES = sorted({name.removesuffix(", two lines") for name in PROGRAMS})
SOURCES = {
    name: PRELUDE + textwrap.dedent(PROGRAMS[name]) + POSTLUDE
    for name in NAMES
    if name in PROGRAMS.keys() - NO_TEXT_EDIT.keys()
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("part", range(8))
def test_programs_of_the_sentences(part: int, form: str, tmp_path: Path) -> None:
    found = {
        name: said_wrongly(source, form, tmp_path) for name, source in itertools.islice(SOURCES.items(), part, None, 8)
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ATTACKS)
def test_programs_that_attack_the_advice(name: str, form: str, tmp_path: Path) -> None:
    assert said_wrongly(ATTACKS[name], form, tmp_path) == []


def of_the_zoo(path: Path, form: str, folder: Path) -> list[str]:
    case = load(path)
    if is_control(case["truth"]):
        return []
    guard = nantrap.Guard(case["model"], case["optimizer"], max_grad_norm=None, quiet=True)
    loss_fn, incident = loss_function(case), None
    for batch in batches(case):
        if form == "attempt":
            incident = guard.attempt(loss_fn, batch).incident
        else:
            guard.backward(loss_fn(batch))
            incident = guard.step().incident
        if incident is not None:
            break
    if incident is None:
        return []

    def build(source: str) -> dict[str, Any]:
        copy = folder / path.name
        copy.write_text(source, encoding="utf-8")
        case = load(copy)
        return {**case, "batches": batches(case), "loss": loss_function(case)}

    if incident.source is not None and Path(incident.source.file).name != path.name:
        return []  # the line is in a library
    found = wrong(path.read_text(encoding="utf-8"), incident, build)
    return [text for text in found if not text.endswith(CANNOT) and path.stem not in NO_TEXT_EDIT]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("path", [path for path in find() if is_possible(path)], ids=lambda path: path.stem)
def test_programs_of_the_zoo(path: Path, form: str, tmp_path: Path) -> None:
    assert of_the_zoo(path, form, tmp_path) == []
