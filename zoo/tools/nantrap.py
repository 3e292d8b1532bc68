"""nantrap in its three forms: `Guard.attempt`, the two lines, and `nantrap run` on a script."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from zoo.loading import Case, loss_function
from zoo.running import Alarm, NamedCause, Run, ScriptRun

if TYPE_CHECKING:
    from nantrap import Guard, Incident


class Guarded:
    """A loop of one's own under `nantrap.Guard`."""

    packages = ("nantrap",)
    preload = ("torch._dynamo", "nantrap.guard", "nantrap.causes", "nantrap.locate", "nantrap.report")
    stops = False

    def __init__(self, form: str, **policy: Any) -> None:
        self.form, self.policy = form, policy
        self.name = f"nantrap_{form.replace(' ', '_')}"
        self.about = "`nantrap`, `guard.attempt`" if form == "attempt" else f"`nantrap`, {form}"

    def train(self, run: Run) -> None:
        """Train with the default policy; no time passes by its clock, so that a busy machine changes no answer."""
        import nantrap

        case = run.build()
        compute = loss_function(case)
        diagnosis = nantrap.Diagnosis(seconds=600, clock=lambda: 0.0)
        settings = nantrap.Policy(**{"diagnosis": diagnosis, **self.policy})
        guard = nantrap.Guard(case["model"], case["optimizer"], max_grad_norm=None, policy=settings, quiet=True)
        with contextlib.suppress(nantrap.NonFiniteError):  # the policy ends the run: too many skips in a row
            for batch in run.batches():
                self._step(run, guard, compute, batch)

    def _step(self, run: Run, guard: Guard, compute: Any, batch: Any) -> None:
        if self.form == "attempt":
            outcome = guard.attempt(compute, batch)
        else:
            guard.backward(compute(batch))
            outcome = guard.step()
        if outcome.incident is not None:
            run.alarm(alarm_of(outcome.incident))


def alarm_of(incident: Incident) -> Alarm:
    """What an incident says, in the words of the zoo."""
    causes = [NamedCause(c.slug, c.proven, c.fix is not None and c.fix.verified) for c in incident.causes]
    return Alarm(
        phase=incident.phase,
        module=incident.module,
        op=incident.op,
        node=incident.node,
        line=incident.source.text if incident.source is not None else None,
        causes=tuple(causes),
        sentences=tuple(sentences(incident)),
    )


def sentences(incident: Incident) -> Iterator[str]:
    """Every sentence of an incident that claims something about its cause."""
    yield from incident.notes
    for cause in incident.causes:
        yield cause.summary
        yield from (evidence.text for evidence in cause.evidence)
        if cause.fix is not None:
            yield cause.fix.words


SCRIPT = """
import contextlib

import torch

from zoo.tools.nantrap import HANDED, built

run = HANDED[-1]
case = built(run)
model, optimizer, dtype = case["model"], case["optimizer"], case["autocast_dtype"]
for batch in run.batches():
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=dtype) if dtype else contextlib.nullcontext():
        loss = case["loss_fn"](model, batch)
        if isinstance(loss, dict):
            loss = sum(loss.values())
    loss.backward()
    optimizer.step()
"""
HANDED: list[Run] = []
"""The run that the script trains."""
MADE: list[object] = []
"""One entry for each update that building the program made: the script's own step count begins with them."""


def built(run: Run) -> Case:
    """The program of a run; a few train before the first of their batches."""
    MADE.clear()
    counting = register_optimizer_step_post_hook(lambda *_: MADE.append(None))
    try:
        return run.build()
    finally:
        counting.remove()


class Script:
    """`nantrap run` on an unmodified script; a program is built by one. The alarms are read afterwards."""

    name = "nantrap_run"
    about = "`nantrap run`"
    packages = ("nantrap",)
    preload = (*Guarded.preload, "nantrap.cli", "nantrap.launch.runner")
    stops = False

    def train(self, run: Run) -> None:
        """Train the program by a script of the usual form; only what happens in training counts."""
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "train.py")
            script.write_text(SCRIPT, encoding="utf-8")
            HANDED.append(run)
            with contextlib.suppress(SystemExit):
                _started(folder, str(script))
            HANDED.pop()
            for incident in _incidents(folder):
                if incident.during == "training":
                    run.alarm(dataclasses.replace(alarm_of(incident), step=incident.step - len(MADE)))

    def run_script(self, run: ScriptRun) -> None:
        """Run a whole script."""
        with tempfile.TemporaryDirectory() as folder:
            try:
                run.run(functools.partial(_started, folder))
            finally:
                for incident in _incidents(folder):
                    run.alarm(dataclasses.replace(alarm_of(incident), step=incident.step))


def _started(folder: str, script: str) -> None:
    """What the command does, in this process."""
    from nantrap.cli import main

    sys.exit(main(["run", "--quiet", "--run-dir", os.path.join(folder, "run"), script]))


def _incidents(folder: str) -> Iterator[Incident]:
    from nantrap.incident.codec import decode_incident

    for path in sorted(Path(folder, "run").rglob("incident.json")):
        yield decode_incident(json.loads(path.read_text(encoding="utf-8")))


TOOLS = (Guarded("attempt"), Guarded("two lines"), Script())
