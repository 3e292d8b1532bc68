"""The end of a step on paper: journal line, history, tally, the outcome."""

from __future__ import annotations

import os
import time
import warnings
from typing import TYPE_CHECKING, Any

from nantrap import finite
from nantrap.guard.ladder import Tally
from nantrap.guard.outcome import Outcome
from nantrap.incident import Action, Incident
from nantrap.record import History, Journal, StepRecord, write_run_info

if TYPE_CHECKING:
    from nantrap.guard.guard import Guard
    from nantrap.guard.window import Window


class Ledger:
    """Writes down what became of each step. Holds the last steps, the tally, the last incident and the open journal."""

    def __init__(self, guard: Guard, run_dir: str | os.PathLike[str] | None) -> None:
        self._guard = guard
        self.history = History()
        self.tally = Tally()
        self.last_incident: Incident | None = None
        self._journal: Journal | None = None
        if run_dir is not None:
            rank = guard._agreement.rank
            self._journal = Journal(run_dir, rank=rank)
            if rank == 0:
                try:
                    write_run_info(run_dir, _facts(guard))
                except OSError as error:
                    warnings.warn(
                        f"nantrap: {os.fspath(run_dir)}/run.json cannot be written: {error.strerror or error}. "
                        "Training goes on",
                        RuntimeWarning,
                        stacklevel=4,
                    )

    def end(
        self,
        window: Window,
        action: Action,
        norm: float,
        watch: dict[str, float],
        rates: tuple[float, ...],
        *,
        incident: Incident | None,
    ) -> Outcome:
        """A step has ended: write it down, count it, and begin the next."""
        guard = self._guard
        step = guard._step
        milliseconds = (time.perf_counter() - window.started) * 1e3
        self.write(step, window, action, norm, watch, rates, milliseconds, incident)
        for message in guard._headroom.end(step, applied=action is Action.APPLY):
            guard._console.say(f"step {step:,}: {message}")
        for message in guard._watch.exceeded(watch, step) if watch else ():
            guard._console.say(f"step {step:,}: watched value {message}")
        self.tally.attempted += 1
        if action is Action.APPLY:
            self.tally.applied += 1
        if incident is not None:
            self.count(incident)
        guard._step = step + 1
        return Outcome(action is Action.APPLY, action, step, window.loss, norm, incident, window.terms)

    def write(
        self,
        step: int,
        window: Window,
        action: Action,
        norm: float,
        watch: dict[str, float],
        rates: tuple[float, ...],
        milliseconds: float,
        incident: Incident | None,
    ) -> None:
        """One line in the journal and one record in the history."""
        scale = self._guard._scaling.value()
        self.history.add(StepRecord(step, window.loss, norm, rates, action is Action.APPLY, scale))
        if self._journal is None:
            return
        line: dict[str, Any] = {
            "step": step,
            "loss": window.loss,
            "grad_norm": norm,
            "lr": rates,
            "action": action.value,
            "ms": round(milliseconds, 3),
        }
        if window.terms:
            line["terms"] = window.terms
        if scale is not None:
            line["scale"] = scale
        if watch:
            line["watch"] = watch
        if window.dropped:
            line["dropped"] = window.dropped
        if incident is not None:
            line["incident"] = {
                "phase": incident.phase,
                "module": incident.module,
                "op": incident.op,
                "cause": incident.causes[0].slug if incident.causes else None,
            }
        self._journal.append(line)
        if incident is not None:
            self._journal.flush()

    def count(self, incident: Incident) -> None:
        """One incident more."""
        self.last_incident = incident
        self.tally.incidents += 1
        self.tally.causes[incident.causes[0].slug if incident.causes else _undiagnosed(incident)] += 1

    def close(self) -> None:
        """Write what is kept and close the journal."""
        if self._journal is not None:
            self._journal.close()


def _undiagnosed(incident: Incident) -> str:
    return "undiagnosed" if incident.same_as is None else f"after step {incident.same_as:,}"


def _facts(guard: Guard) -> dict[str, Any]:
    """What `run.json` says of this run: an allow-list."""
    parameters = guard._members.parameters
    return {
        "model": type(guard._members.root).__name__,
        "parameters": sum(p.numel() for p in parameters),
        "optimizer": type(guard.optimizer).__name__,
        "precision": sorted({finite.dtype_name(p.dtype) for p in parameters}),
        "devices": sorted({str(p.device) for p in parameters}),
        "world_size": guard._agreement.world_size,
        "max_grad_norm": guard._max_grad_norm,
        "loss_scaler": guard._scaling.enabled,
        "policy": {name: getattr(guard.policy, name) for name in guard.policy.__slots__},
    }
