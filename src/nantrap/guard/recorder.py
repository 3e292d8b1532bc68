"""What is recorded, printed and counted: a journal line for each step, a message and a bundle for each incident.

Everything reported about an incident comes from one final object. The last steps are kept in memory for the rules that
use the history.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from nantrap.guard.bundling import write_incident
from nantrap.guard.policy import Policy
from nantrap.guard.progress import LONGEST_LINE, Progress, Tally, why_no_gradient
from nantrap.guard.ranks.ranks import lost_rank_in_words
from nantrap.guard.watching.ranges import Ranges, outside_in_words
from nantrap.guard.watching.sample_list import SampleList
from nantrap.guard.watching.watch import Watch
from nantrap.guard.window import Diagnosed, Outcome, Reading, Window
from nantrap.incident import Action, Decider, Finding, Incident
from nantrap.incident.wording import escaped
from nantrap.record import (
    RUN_ENDS,
    RUN_RESUMES,
    RUN_STARTS,
    History,
    Journal,
    Listener,
    StepRecord,
    StepTally,
    write_run_info,
)
from nantrap.record.journal import FLUSH_LINES
from nantrap.record.restarts import RunStop, last_stop, line_of, restart_count
from nantrap.record.run_info import add_run_fact
from nantrap.report import (
    begin_pages,
    fingerprint,
    one_line,
    render_incident,
    wait_for_pages,
    wants_details,
    write_line,
    write_run_report,
)
from nantrap.thresholds import DEAD_AFTER

_BY = {(True, False): "script", (True, True): "script", (False, True): "scaler", (False, False): "guard"}
"""Who did not make a step: by whether the script gave it up, and whether a scaler searches its scale."""
_KEPT = 256
"""Steps that are kept in memory for the rules."""
_LARGEST_REPORTED = 32 * 1024 * 1024
"""Up to this many bytes of journal the report is written when the run ends; for a longer one, run `nantrap report`."""
_MOST_SPIKES = 5
"""Spikes that are printed, and batches outside their usual range; further ones are only counted."""
_MOST_LINES = 5
"""Incidents of one cause that have a line; more are counted."""
_MOST_SHOWN = 3
"""Different places of one cause that are shown in full."""


@dataclass(frozen=True)
class RecordTarget:
    """Where a recorder writes and prints.

    Attributes:
        run_dir: where journal and incidents go; `None` writes nothing.
        quiet: print nothing.
        by: what makes the updates: `guard` or `script`.
        rank: of this process, which names its files.
        prints: whether this rank prints; among those that decide together, the first one.
    """

    run_dir: str | os.PathLike[str] | None = None
    quiet: bool = False
    by: str = "guard"
    rank: int = 0
    prints: bool = True


class Recorder:
    """Records the result of each step. Holds the last steps, the tally, the last incident, the open journal and its
    listeners.

    Args:
        progress: where the run is; moved on by one with each step.
        target: where to write and to print.
        policy: what an incident leaves on disk.
        watch: watched values, for their limits.
        samples: the list of bad samples beside the run.
        ranges: the usual range of batches.
    """

    def __init__(
        self,
        progress: Progress,
        target: RecordTarget,
        *,
        policy: Policy,
        watch: Watch | None = None,
        samples: SampleList | None = None,
        ranges: Ranges | None = None,
    ) -> None:
        self.tally = Tally()
        self.label = ""
        """Of which optimizer the printed lines speak, where there are several."""
        self.ended_by: str | None = None
        """The class of the exception that ended the program, where the caller knows it."""
        self.samples = samples
        self.last_incident: Incident | None = None
        self.run_dir = None if target.run_dir is None else os.fspath(target.run_dir)
        self._progress = progress
        self._policy = policy
        self._rank = target.rank
        self._prints = target.prints and not target.quiet
        self._quiet = target.quiet
        self._by = target.by
        self._watch = watch
        self._ranges = ranges
        self._records: deque[StepRecord] = deque(maxlen=_KEPT)
        self._first_rates: tuple[float, ...] = ()
        self._printed: Counter[str] = Counter()
        self._shown: dict[str, set[tuple[object, ...]]] = {}
        """How many incidents of a cause there were that had a line or were counted, and what was shown in full."""
        self._unwritten: list[Incident] = []
        """The incidents of the present step: the journal has no line with them yet."""
        self._in_diagnosis: Incident | None = None
        self._journal = None if self.run_dir is None else Journal(self.run_dir, rank=target.rank)
        self._listeners: tuple[Listener, ...] = ()
        self.last_stop = None if self._journal is None or not restart_count() else last_stop(self._journal.path)
        """How the last attempt was stopped, where a scheduler has started the run again."""
        if self._journal is not None and self._journal.used_before:
            self._note(RUN_STARTS, progress.step)

    def describe_run(self, facts: Mapping[str, Any]) -> None:
        """Write `run.json`. A folder that cannot be written gives a warning and never stops the run."""
        if self.run_dir is None or self._rank:
            return
        try:
            write_run_info(self.run_dir, dict(facts))
        except OSError as error:
            warnings.warn(
                escaped(
                    f"nantrap: {self.run_dir}/run.json cannot be written: {error.strerror or error}", most=LONGEST_LINE
                )
                + ". Training continues",
                RuntimeWarning,
                stacklevel=5,
            )

    def note_autocast(self, dtype: str) -> None:
        """The first step runs under autocast: operations are computed in another precision than that of the weights."""
        if self.run_dir is not None and not self._rank:
            with contextlib.suppress(OSError, ValueError):
                add_run_fact(self.run_dir, "autocast", dtype)

    def note_read_at_once(self, why: str) -> None:
        """Steps could be read late, and are not."""
        self.say(f"each step is read before its update: {why}")
        if self.run_dir is not None and not self._rank:
            with contextlib.suppress(OSError, ValueError):
                add_run_fact(self.run_dir, "read", f"at once: {why}")

    def listen(self, listeners: tuple[Listener, ...]) -> None:
        """From here on, send each journal line to exporters and alerts as well."""
        self._listeners = listeners

    def history(self) -> History:
        """The last steps, as the journal has them."""
        history = History(_KEPT)
        for record in self._records:
            history.add(record)
        if self._first_rates:
            history.first_lr = self._first_rates
        return history

    def remember(self, records: Iterable[StepRecord]) -> None:
        """Steps that were not made here, for the rules that use the history."""
        self._records.extend(records)

    # ---- the end of a step

    def end(
        self,
        window: Window,
        reading: Reading,
        action: Action = Action.APPLY,
        incident: Incident | None = None,
        *,
        launched: tuple[Progress, float] | None = None,
    ) -> Outcome:
        """A step has ended: record it, count it, and begin the next.

        Args:
            window: the step.
            reading: what was read of it.
            action: what was done.
            incident: what went wrong, if anything did.
            launched: position and milliseconds of a step that was launched earlier and is read now
                (`Policy(sync="late")`): the next one has begun already.
        """
        progress, tally = self._progress, self.tally
        applied = action is Action.APPLY
        norm, loss, terms, rates, watched, scale, _, _ = reading
        now = time.perf_counter()
        if launched is not None:
            progress, milliseconds = launched
            step = progress.step
        else:
            step, milliseconds = progress.step, (now - window.started) * 1e3
            if window.repeated and incident is None:  # the same update once more: it has its line and number already
                return Outcome(applied, action, max(step - 1, 0), loss, norm, None, terms, max(step - 1, 0))
        if not self._first_rates:
            self._first_rates = rates
        self._records.append(StepRecord(step, loss, norm, rates, applied, scale, now))
        if self._journal is not None or self._listeners:
            line: dict[str, Any] = {
                "step": step,
                "loss": loss,
                "grad_norm": norm,
                "lr": rates,
                "action": "apply" if applied else action.value,
                "by": self._by if applied else _BY[window.given_up, window.probes_scale],
                "ms": int(milliseconds * 1e3) / 1e3,
            }
            if window.without_gradient:
                del line["grad_norm"]
            if progress.epoch is not None:
                line["epoch"] = progress.epoch
            if progress.batch is not None:
                line["batch"] = progress.batch
            if terms:
                line["terms"] = terms
            if scale is not None:
                line["scale"] = scale
            if watched:
                line["watch"] = watched
            if progress.cleaned:
                line["cleaned"], progress.cleaned = progress.cleaned, 0
            if window.dropped:
                line["dropped"] = window.dropped
            if self._ranges is not None and self._ranges.findings:
                line["outside"] = {finding.name: finding.note for finding in self._ranges.findings}
            if window.left_out:
                line["dropped_terms"] = window.left_out
            if incident is not None:
                line["incident"] = {**_short(incident), **self._others(incident)}
            journal = self._journal
            if journal is not None:
                journal.pending.append(line)
                if incident is not None or now >= journal.due or len(journal.pending) >= FLUSH_LINES:
                    journal.flush()
            for listener in self._listeners:
                listener.append(line)
        if applied:
            tally.applied += 1
        elif window.given_up:
            tally.given_up += 1
        elif window.probes_scale:
            tally.scaler_probes += 1
        elif action is Action.STOP:
            tally.stops += 1
        if incident is not None:
            self.last_incident = incident
            self._unwritten.clear()
            begin_pages()
        if self._watch is not None and watched:
            for message in self._watch.exceeded(watched, step):
                self.say(f"step {step:,}: watched value {message}")
        if launched is None:
            if self._ranges is not None and (outside := self._ranges.end(applied=applied)):
                self.say_outside(outside, told=incident is not None and not applied)
            tally.attempted += 1
            progress.step = step + 1
        return Outcome(applied, action, step, loss, norm, incident, terms, step)

    # ---- incidents

    def begin_incident(self, incident: Incident) -> None:
        """A diagnosis begins: a short line, written immediately, so that a kill during it leaves a trace."""
        self._in_diagnosis = incident
        if self._journal is not None:
            line = {"step": incident.step, "kind": "incident_begins", "phase": incident.phase, "loss": incident.loss}
            self._journal.append({**line, "found": [f"{f.kind} {f.name}" for f in incident.findings[:4]]})
            self._journal.flush()

    def end_diagnosis(self) -> None:
        """The diagnosis came to its end."""
        self._in_diagnosis = None

    def note_interrupted(self) -> None:
        """The run ends. If it ends in the middle of a diagnosis, its incident is counted as it was seen."""
        incident, self._in_diagnosis = self._in_diagnosis, None
        if incident is not None:
            self.say(f"step {incident.step:,}: the run ended while this failure was being diagnosed")
            self.tally.note(_short(incident))
            self.last_incident = incident
            self._unwritten.append(incident)
            self._note_outside("incident")

    def finish(
        self,
        diagnosed: Diagnosed,
        action: Action,
        reason: str,
        *,
        decided_by: Decider = "nantrap",
        restored: list[str] | None = None,
        known_here_only: bool = False,
    ) -> Incident:
        """The final incident: its bundle is written and its message printed, by this rank if no other knows of it."""
        self._in_diagnosis = None
        incident = self._with_samples(diagnosed.finish(action, decided_by=decided_by, restored=restored), diagnosed)
        if self.run_dir is not None:
            incident = write_incident(self.run_dir, incident, diagnosed, self._policy)
        self._unwritten.append(incident)
        self.tally.note(_short(incident))
        if self._prints or (known_here_only and not self._quiet):
            self._print(incident, reason)
        if self._listeners:
            headline, text = one_line(incident, reason), render_incident(incident)
            for listener in self._listeners:
                listener.incident(incident, headline=headline, text=text)
        return incident

    def finish_dropped(
        self, window: Window, action: Action = Action.APPLY, *, decided_by: Decider = "nantrap"
    ) -> Incident | None:
        """The incidents of dropped micro-batches. Returns the first of them."""
        first: Incident | None = None
        for diagnosed, words in window.diagnosed:
            incident = self.finish(diagnosed.noting_first(words), action, words, decided_by=decided_by)
            first = first or incident
        window.diagnosed = []
        return first

    def note_exception(self, diagnosed: Diagnosed, action: Action, reason: str) -> Incident:
        """An incident that ended with an exception, which is raised again."""
        incident = self.finish(diagnosed, action, reason, decided_by="exception", known_here_only=True)
        self.last_incident = incident
        self._note_outside("exception")
        return incident

    def finish_without_step(self, window: Window) -> None:
        """The incidents of dropped micro-batches after which no step is made."""
        if window.diagnosed:
            self.finish_dropped(window, Action.SKIP, decided_by="script")
            self._note_outside("incident", dropped=window.dropped)

    def _note_outside(self, kind: str, *, dropped: int = 0) -> None:
        """A line for each incident that belongs to no step."""
        if self._journal is not None:
            for incident in self._unwritten:
                line = {"step": incident.step, "kind": kind, "incident": _short(incident)}
                self._journal.append({**line, "dropped": dropped} if dropped else line)
                dropped = 0
            self._journal.flush()
        self._unwritten.clear()

    def note_evaluation(self, diagnosed: Diagnosed, *, raised: bool = False) -> Incident:
        """An incident of an evaluation or an inference: it belongs to no step, and the run goes on as before, or ends
        with the exception that was raised."""
        by: Decider = "exception" if raised else "nantrap"
        incident = self.finish(diagnosed, Action.APPLY, "", decided_by=by, known_here_only=True)
        self.last_incident = incident
        self._note_outside("incident")
        return incident

    def note_repeated(self, incident: Incident, times: int) -> None:
        """Further calls of a model gave what an incident describes: counted, and not run again."""
        if times:
            short = {**_short(incident), "times": times}
            self.tally.note(short)
            if self._journal is not None:
                self._journal.append({"step": self._progress.step, "kind": "incident", "incident": short})
            self.say(f"{incident.during}: {times:,} more calls of the model gave the same; they were not run again")

    # ---- other lines

    def log_eval(self, step: int, metrics: Mapping[str, float]) -> None:
        """A line with the results of an evaluation."""
        numbers = {str(name): float(value) for name, value in metrics.items()}
        line = {"step": step, "kind": "eval", "metrics": numbers, **self._position()}
        if self._journal is not None:
            self._journal.append(line)
        for listener in self._listeners:
            listener.append(line)

    def note_resume(self, step: int) -> None:
        """A state was restored, and the steps are counted from its step on."""
        self._note(RUN_RESUMES, step)

    def note_stop(self, stop: RunStop) -> None:
        """A line about why the run stops, for the next attempt."""
        if self._journal is not None:
            self._journal.append(line_of(stop))

    def _note(self, kind: str, step: int) -> None:
        """A line that is no step: where another start of the run begins, so that readers can tell the two apart."""
        if self._journal is not None:
            self._journal.append({"step": step, "kind": kind, "time": round(time.time(), 3)})

    def say(self, text: str, *more: str) -> None:
        """One line of the guard's own, and more if there are. A name in it can forge no other."""
        if self._prints:
            lines = [escaped(line, most=LONGEST_LINE) for line in (f"nantrap: {self.label}{text}", *more)]
            write_line("\n".join(lines))

    def say_spike(self, note: str | None) -> None:
        """A finite value far outside its range: the first few are printed, all are counted."""
        self.tally.spikes += 1
        if self.tally.spikes <= _MOST_SPIKES:
            self.say(f"step {self._progress.step:,}: {note}")
        elif self.tally.spikes == _MOST_SPIKES + 1:
            self.say(f"step {self._progress.step:,}: {note}; further spikes are only counted")

    def say_outside(self, findings: list[Finding], *, told: bool) -> None:
        """A batch outside its usual range: the first few are printed, all are counted."""
        self.tally.outside += 1
        more = "; further ones are only counted" if self.tally.outside == _MOST_SPIKES else ""
        if self.tally.outside <= _MOST_SPIKES and not told:
            self.say(f"step {self._progress.step:,}: {outside_in_words(findings)}{more}")

    def note_gradient(self, *, missing: bool) -> None:
        """Count the steps without any gradient: after a number of them the run is reported as dead, once."""
        tally = self.tally
        tally.steps_without_gradient = tally.steps_without_gradient + 1 if missing else 0
        if tally.steps_without_gradient == DEAD_AFTER:
            tally.no_gradient_since = self._progress.step - DEAD_AFTER + 1
        if not missing and tally.no_gradient_because:
            tally.no_gradient_because = ""
            if tally.no_gradient_since is None:
                self.say(f"step {self._progress.step:,}: there are gradients again")
        if tally.steps_without_gradient == DEAD_AFTER and not tally.no_gradient_because:
            self.say(
                f"step {self._progress.step:,}: no gradient has reached any parameter for {DEAD_AFTER} steps, "
                f"since step {tally.no_gradient_since:,}: nothing is learned (NT505 dead_training). Possible reasons: "
                "a loss that was replaced by a constant, frozen parameters, or a graph that is cut by detach()"
            )
        elif not missing and tally.no_gradient_since is not None:
            self.say(f"step {self._progress.step:,}: there are gradients again")
            tally.no_gradient_since = None

    def explain_no_gradient(self, loss: Tensor, parameters: Sequence[Tensor]) -> None:
        """After a few steps without any gradient: report the reason, if the graph of the loss shows it."""
        self.tally.no_gradient_because = why_no_gradient(loss, parameters)
        if self.tally.no_gradient_because:
            self.say(f"step {self._progress.step:,}: {self.tally.no_gradient_because}")

    def close(self) -> None:
        """Write what is kept, close the journal, and write the report of the run. May be called again."""
        self.note_interrupted()
        if self.ended_by is None and (error := _ending_error()) is not None:
            self.ended_by = type(error).__name__
            if words := lost_rank_in_words(error, self.run_dir):
                self.say(words)
        journal, self._journal = self._journal, None
        if journal is not None:
            end = {"step": self._progress.step, "kind": RUN_ENDS, "time": round(time.time(), 3)}
            journal.append(end if self.ended_by is None else {**end, "error": self.ended_by})
            journal.close()
        for listener in self._listeners:
            listener.close()
        wait_for_pages()
        if journal is None or self.run_dir is None or self._rank:
            return
        with contextlib.suppress(OSError):  # the folder may be gone by now
            if journal.path.stat().st_size <= _LARGEST_REPORTED:
                write_run_report(self.run_dir)

    def abandon(self) -> None:
        """This is a copy of the process that records the run: nothing more is written here, only printed."""
        if self._journal is not None:
            self._journal.abandon()
        self._journal, self.run_dir, self._listeners = None, None, ()

    # ---- parts

    def _with_samples(self, incident: Incident, diagnosed: Diagnosed) -> Incident:
        """The dataset's own indices, where the loop told them, and what the list of bad samples says of them."""
        told = self._progress.samples
        if told and incident.samples and not incident.dataset_indices and max(incident.samples) < len(told):
            incident = replace(incident, dataset_indices=tuple(told[index] for index in incident.samples))
        return incident if self.samples is None else self.samples.note(incident, avoidable=diagnosed.avoidable)

    def _position(self) -> dict[str, int]:
        known = {"epoch": self._progress.epoch, "batch": self._progress.batch}
        return {name: value for name, value in known.items() if value is not None}

    def _print(self, incident: Incident, reason: str) -> None:
        """A line, and the whole diagnostic if it looks new. Of many with one cause the first are printed, and those
        that look new; then a line counts them. A rollback and a stop are always printed.
        """
        cause = incident.cause
        key = f"no cause: {incident.phase}" if cause is None else cause.slug
        shown = self._shown.setdefault(key, set())
        looks = fingerprint(incident)
        is_told = incident.same_as is None and bool(incident.op or incident.causes)
        is_new = is_told and looks not in shown and len(shown) < _MOST_SHOWN
        self._printed[key] += 1
        number = self._printed[key]
        if not (is_new or number <= _MOST_LINES or incident.action in (Action.ROLLBACK, Action.STOP)):
            if math.log10(number).is_integer():
                of = "without a known cause" if cause is None else f"with the cause {cause.slug}"
                self.say(f"step {incident.step:,}: {number:,} incidents {of} by now; not all are printed")
            return
        last = "; further ones of this cause are counted" if number == _MOST_LINES else ""
        said_below = is_new and (cause is None or cause.slug != "unknown")  # by the headline of the diagnostic
        line = one_line(incident, reason, alone=not said_below)
        write_line(escaped(f"nantrap: {self.label}", most=LONGEST_LINE) + line + last)
        if is_new:
            write_line(render_incident(incident, color=None, brief=not wants_details()))
            shown.add(looks)  # the next one that looks the same is one line

    def _others(self, first: Incident) -> dict[str, dict[str, int]]:
        """The causes of the step's other incidents, those of further micro-batches, and which of them are guesses."""
        if len(self._unwritten) < 2:
            return {}
        tally = StepTally()
        for incident in self._unwritten:
            if incident is not first:
                tally.note(_short(incident))
        guessed = {"also_guessed": dict(tally.guesses)} if tally.guesses else {}
        return {"also": dict(tally.causes), **guessed}


def _ending_error() -> BaseException | None:
    """The exception that ends the program now; `None` if none does."""
    error = sys.exc_info()[1]
    if error is None and not hasattr(sys, "ps1"):  # an error in a prompt or a notebook does not end the program
        error = getattr(sys, "last_value", None)
    return None if isinstance(error, SystemExit) else error


def _short(incident: Incident) -> dict[str, Any]:
    """What the journal keeps of an incident: place, cause, and the step that a rollback restored."""
    cause = incident.cause
    short: dict[str, Any] = {
        "phase": incident.phase,
        "module": incident.module,
        "op": incident.op,
        "cause": None if cause is None else cause.slug,
    }
    if cause is not None and not cause.proven and cause.slug != "unknown":
        short["guess"] = True
    if incident.during != "training":
        short |= {"during": incident.during, "batch": incident.batch}
    if cause is None and incident.same_as is not None:
        short["same_as"] = incident.same_as
    return short if incident.restored_step is None else {**short, "restored_step": incident.restored_step}
