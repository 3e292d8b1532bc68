"""Programs are written to a file and run from there, so that their lines can be read and replaced as a user's can."""

from __future__ import annotations

import runpy
import textwrap
from collections.abc import Callable
from pathlib import Path

import torch

import nantrap
from nantrap.causes import Case
from nantrap.incident import Incident, lookup
from nantrap.pages.page import read_page

Diagnose = Callable[[str], Incident]
IncidentOf = Callable[[str], "Incident | None"]
InspectCase = Callable[[str, Callable[[Case], None]], None]

TORCH_WARNS = ("ignore:std\\(\\)", "ignore:Using `torch.compile")
"""A deviation of one element, and a compiled model under a trace, make torch itself warn."""


def example(slug: str) -> str:
    """The example of the page of a cause: such a program."""
    return read_page(lookup(slug)).example


def run(source: str, folder: Path) -> Incident | None:
    """The first incident of a program that defines `model`, `optimizer`, `batches`, `loss_fn` and perhaps `guard`."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    torch.manual_seed(0)
    names = runpy.run_path(str(path))
    guard = names.get("guard") or nantrap.Guard(names["model"], names["optimizer"], max_grad_norm=None, quiet=True)
    with guard:
        for batch in names["batches"]:
            incident: Incident | None = guard.attempt(names["loss_fn"], batch).incident
            if incident is not None:
                return incident
    return None


_TWO_LINES = """
import nantrap
guard = nantrap.Guard(model, optimizer, max_grad_norm=None, quiet=True)
incident = None
for batch in batches:
    loss = loss_fn(batch)
    guard.backward(loss)
    incident = guard.step().incident
    if incident is not None:
        break
guard.close()
"""


def run_two_lines(source: str, folder: Path) -> Incident | None:
    """The first incident of the same program in its own loop, guarded by two lines."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(source) + _TWO_LINES, encoding="utf-8")
    torch.manual_seed(0)
    incident: Incident | None = runpy.run_path(str(path))["incident"]
    return incident
