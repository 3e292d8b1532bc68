"""The summary of a guarded run, as text and as JSON."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nantrap.guard.progress import Tally, most_skipped, scaler_words
from nantrap.guard.script_events import EventKind
from nantrap.incident.wording import counted, escaped, some_of, typed_path
from nantrap.launch.attach import Attachment
from nantrap.launch.registry import OptimizerRegistry, incident_folders
from nantrap.launch.settings import RunSettings
from nantrap.record import StepTally, apart_lines, cause_lines
from nantrap.report import write_line

SCHEMA = "nantrap.summary/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The result of a run.

    Attributes:
        steps: optimizer steps the script asked for.
        applied: those that were taken.
        skipped: those that were refused.
        scaler_probes: those that a GradScaler skipped while it searched its scale.
        given_up: of those, the ones that the script itself did not make.
        left_out: bad losses that the script left out of steps it made.
        cleaned_inputs: batches that the script passed through `nan_to_num` and that were not finite.
        notes: what else was found wrong with the training, such as steps without any gradient.
        spikes: finite losses and gradient norms far outside their range.
        loose_values: values that were not finite in a script without an optimizer.
        checkpoint: with `--save-every`, the last good checkpoint, in words.
        dropped_micro_batches: parts of a step that were left out.
        rollbacks: how often the run was rolled back to an older state.
        incidents: how many there were.
        causes: how often each cause was named.
        guesses: how often each of these was not proven.
        evaluations: incidents of evaluations, by cause.
        inferences: incidents of models that no optimizer trains, by cause.
        calls: calls, without gradients, of models that no optimizer trains.
        stopped: the guard ended the run.
        state_finite: every guarded parameter and buffer is finite at the end.
        bad: names of some that are not.
        run_dir: where journal and incidents are.
        reports: the folders of the incidents.
        optimizers: how many were guarded.
        own_guards: how many optimizers the script guards itself.
        in_children: processes were started that guard themselves.
        rank: of this process.
        ranks: how many processes train together.
        own_models: models whose incidents this rank alone knows: no other one trains them, or none tells the others.
        own_weights: weights of this rank alone: its own models, or its shards of a common one.
        injected: injected faults that happened in this process, by kind.
        untrained: that most steps of an optimizer were skipped, in words, for each of those.
        unguarded_processes: new interpreters that the script started by `multiprocessing` and that were not guarded.
        children_stopped: processes that the script started and whose guard stopped them.
        children_failed: those that ended with non-finite weights, or skipped most of their steps.
        unguarded: optimizers that could not be guarded, and why.
    """

    steps: int = 0
    applied: int = 0
    skipped: int = 0
    scaler_probes: int = 0
    dropped_micro_batches: int = 0
    rollbacks: int = 0
    incidents: int = 0
    causes: dict[str, int] = field(default_factory=dict)
    stopped: bool = False
    state_finite: bool = True
    bad: tuple[str, ...] = ()
    run_dir: str | None = None
    reports: tuple[str, ...] = ()
    optimizers: int = 0
    in_children: bool = False
    rank: int = 0
    ranks: int = 1
    own_models: int = 0
    own_weights: bool = False
    injected: dict[str, int] = field(default_factory=dict)
    given_up: int = 0
    left_out: int = 0
    cleaned_inputs: int = 0
    notes: tuple[str, ...] = ()
    checkpoint: str = ""
    loose_values: int = 0
    spikes: int = 0
    own_guards: int = 0
    guesses: dict[str, int] = field(default_factory=dict)
    untrained: tuple[str, ...] = ()
    unguarded_processes: int = 0
    children_stopped: int = 0
    children_failed: int = 0
    unguarded: tuple[str, ...] = ()
    evaluations: dict[str, int] = field(default_factory=dict)
    inferences: dict[str, int] = field(default_factory=dict)
    calls: int = 0

    @classmethod
    def of(cls, attachment: Attachment) -> RunSummary:
        """The summary of all guards."""
        loops = list(attachment.registry)
        dropped = attachment.registry.ended
        tallies = [*(each.tally for each in dropped), *(loop.tally for loop in loops)]
        apart = [session.recorder.tally for session in attachment.registry.inference.sessions]
        whole = StepTally()
        for tally in (*tallies, *apart):
            whole.add(tally)
        bad = [*(name for each in dropped for name in each.bad), *attachment.bad_state()]
        reports = attachment.registry.reports.read()
        guarded = {each["process"] for each in reports if each.get("guarded")}
        ended = [each for each in reports if each.get("trained")]
        run_dir = attachment.registry.run_dir
        return cls(
            steps=whole.attempted,
            applied=whole.applied,
            skipped=whole.skipped,
            scaler_probes=whole.scaler_probes,
            dropped_micro_batches=whole.dropped_micro_batches,
            rollbacks=whole.rollbacks,
            incidents=whole.incidents,
            causes=dict(whole.causes.most_common()),
            guesses=dict(whole.guesses.most_common()),
            evaluations=dict(whole.evaluations.most_common()),
            inferences=dict(whole.inferences.most_common()),
            calls=attachment.registry.inference.evaluations.calls,
            given_up=whole.given_up,
            left_out=sum(t.left_out for t in tallies),
            cleaned_inputs=attachment.registry.events.count(EventKind.DATA_CLEANED),
            spikes=sum(t.spikes for t in tallies),
            notes=tuple(_notes(attachment.registry)),
            stopped=any(loop.stopped is not None for loop in loops),
            state_finite=not bad,
            bad=tuple(bad),
            run_dir=None if run_dir is None else typed_path(run_dir),
            reports=_reports(attachment.registry),
            loose_values=attachment.registry.loose_values.seen,
            checkpoint=next(
                (_relative(text) for loop in loops if (text := loop.session.recovery.where_to_restart())), ""
            ),
            optimizers=len(loops) + len(dropped),
            own_guards=attachment.registry.own_guards,
            untrained=tuple(
                words
                for tally, label in (
                    *((each.tally, each.label) for each in dropped),
                    *((loop.tally, loop.session.recorder.label) for loop in loops),
                )
                if (words := _untrained(tally, label))
            ),
            in_children=attachment.registry.has_children or bool(ended),
            unguarded_processes=max(0, attachment.registry.started_processes - len(guarded)),
            children_stopped=sum(each["stopped"] for each in ended),
            children_failed=sum(each["failed"] and not each["stopped"] for each in ended),
            unguarded=tuple(attachment.registry.unguarded),
            rank=loops[0].session.ranks.rank if loops else 0,
            ranks=max([loop.session.ranks.processes for loop in loops], default=1),
            own_models=sum(not loop.session.ranks.acquainted for loop in loops),
            own_weights=not all(loop.session.ranks.replicated for loop in loops),
            injected=dict(Counter(each.kind for each in attachment.injected)),
        )

    def lines(self, code: int) -> list[str]:
        """For people."""
        if not self.optimizers or (self.in_children and not self.steps):
            return self._without_optimizer()
        others = [f"NOT GUARDED: {words}" for words in self.unguarded]
        found = [*self._of_steps(), *self.notes, *others, *self._processes()]
        if not self.state_finite:
            found.append(self._bad_end())
        found += () if self.stopped else self.untrained
        if self.stopped:
            found.append(f"the guard stopped the run (exit code {code})")
        if self.checkpoint:
            found.append(self.checkpoint)
        return found + self._where()

    def _without_optimizer(self) -> list[str]:
        """What is said of a run in which nothing was guarded."""
        if self.in_children:
            said = "the training ran in other processes, each of which prints its own summary"
            return [said, *self._processes(), *([] if self.state_finite else [self._bad_end()])]
        if self.own_guards:
            itself = "its optimizer" if self.own_guards == 1 else f"its {self.own_guards:,} optimizers"
            return [f"the script guards {itself} itself, and nothing was added"]
        found = ["no optimizer made a step, so nothing was guarded"]
        if self.calls:
            found = [f"no optimizer made a step; {counted(self.calls, 'call')} of models without gradients watched"]
        if self.unguarded:
            found = [f"NOT GUARDED: {words}" for words in self.unguarded]
        elif self.unguarded_processes:
            found = ["no optimizer made a step in this process, so nothing was guarded", *self._processes()]
        if self.loose_values:
            were = "was" if self.loose_values == 1 else "were"
            found.append(f"{counted(self.loose_values, 'value')} that the script used {were} not finite")
        found += [*apart_lines(self), *self.notes]
        if self.loose_values or self.inferences:
            found += [f"report: {report}" for report in self.reports[:1]]
        if not self.state_finite:
            found.append(f"the run ends with NON-FINITE values in {some_of(self.bad)}; the run failed")
        return found

    def _of_steps(self) -> list[str]:
        """How many steps were made, and what became of the others."""
        share = f" ({100.0 * self.applied / self.steps:.1f} %)" if self.steps else ""
        made = f"{counted(self.steps, 'step')}, {self.applied:,} applied{share}"
        found = [f"{made}, {counted(self.incidents, 'incident')}"]
        if self.skipped or self.rollbacks:
            by_script = f" ({self.given_up:,} by the script itself)" if self.given_up else ""
            found.append(f"{counted(self.skipped, 'step')} skipped{by_script}, {counted(self.rollbacks, 'rollback')}")
        if self.left_out:
            found.append(f"{counted(self.left_out, 'applied step')} with non-finite values that the script left out")
        found += [f"  {line}" for line in cause_lines(self.causes, self.guesses)]
        found += apart_lines(self)
        if self.injected:
            found.append(("on rank 0: " if self.ranks > 1 else "") + self._injected())
        if self.dropped_micro_batches:
            found.append(f"{counted(self.dropped_micro_batches, 'micro-batch', 'micro-batches')} left out")
        if self.scaler_probes:
            found.append(scaler_words(self.scaler_probes, self.steps))
        if self.spikes:
            found.append(f"{counted(self.spikes, 'spike')} of loss or gradient norm")
        return found

    def _where(self) -> list[str]:
        """Where the report is, one for each optimizer; without one, the first incident or the journal."""
        report = None if self.run_dir is None else Path(self.run_dir) / "report.html"
        if report is not None and report.exists():
            folders = dict.fromkeys(Path(each).parent.parent for each in self.reports)
            others = [each / "report.html" for each in folders if each.resolve() != report.parent.resolve()]
            return [f"report: {typed_path(report)}", *(f"report: {each}" for each in others if each.exists())]
        if self.reports:
            return [f"report: {self.reports[0]}"]
        return [] if self.run_dir is None else [f"journal: {self.run_dir}"]

    def own_lines(self) -> list[str]:
        """For people, of a rank other than 0: what the summary of rank 0 cannot know."""
        found = []
        if self.own_models and self.incidents:
            causes = ", ".join(cause_lines(self.causes, self.guesses))
            found.append(
                f"{counted(self.steps, 'step')}, {self.applied:,} applied, "
                f"{counted(self.incidents, 'incident')}: {causes}"
            )
        if self.injected:
            found.append(self._injected())
        if not self.state_finite and self.own_weights:
            found.append(self._bad_end())
        return [f"on rank {self.rank}: {line}" for line in found]

    def _injected(self) -> str:
        kinds = ", ".join(f"{count:,} × {kind}" for kind, count in self.injected.items())
        return f"faults injected on purpose: {kinds}"

    def _processes(self) -> list[str]:
        """What is to be said of the processes that the script started."""
        found = []
        if self.unguarded_processes:
            which = counted(self.unguarded_processes, "process", "processes")
            found.append(
                f"NOT GUARDED: {which} that the script started by multiprocessing (spawn). If they train, nothing "
                "checks their steps"
            )
        if self.children_stopped:
            were = "was" if self.children_stopped == 1 else "were"
            found.append(f"{counted(self.children_stopped, 'process', 'processes')} {were} stopped by the guard")
        if self.children_failed:
            found.append(f"{counted(self.children_failed, 'process', 'processes')} failed: see the summary of each")
        return found

    def fails_on(self, wanted: str) -> bool:
        """Whether there was an incident of a kind that makes the run fail: `evaluation,inference`."""
        return bool((self.evaluations and "evaluation" in wanted) or (self.inferences and "inference" in wanted))

    @property
    def failed(self) -> bool:
        """Whether the run did not train, or destroyed what it trained: its exit code must not be 0."""
        return not self.state_finite or bool(self.untrained) or bool(self.children_failed)

    def _bad_end(self) -> str:
        return f"the run ends with NON-FINITE weights: {some_of(self.bad)}; the run failed"

    def to_dict(self, code: int) -> dict[str, Any]:
        """For programs."""
        return {"schema": SCHEMA, "exit_code": code, **asdict(self)}


def print_summary(summary: RunSummary, code: int, settings: RunSettings) -> None:
    """Words on stderr, data on stdout. A quiet run still reports that it failed.

    Rank 0 speaks for all; another rank adds what happened to it alone.
    """
    if settings.json and not summary.rank:
        print(json.dumps(summary.to_dict(code)), flush=True)  # noqa: T201
    bad = summary.stopped or summary.failed
    lines = summary.own_lines() if summary.rank else summary.lines(code)
    if lines and (not settings.quiet or bad):
        write_line("\n".join(escaped(f"nantrap: {line}", most=4000) for line in lines), sys.stderr)


def _untrained(tally: Tally, label: str) -> str:
    """Words for an optimizer most of whose steps were skipped; empty if they were not."""
    words = most_skipped(tally)
    return f"{label}{words}; the run failed" if words else ""


def _notes(registry: OptimizerRegistry) -> list[str]:
    """What else was found in the training as a whole."""
    own = [line for lines in registry.notes for line in lines()]
    of_loops = [note for each in registry.ended for note in each.notes]
    of_loops += [note for loop in registry for note in loop.notes()]
    of_loops += registry.inference.evaluations.lines()
    return [*registry.events.lines(), *of_loops, *registry.replicas.notes(), *own]


def _reports(registry: OptimizerRegistry) -> tuple[str, ...]:
    """The incidents of this run, not those of an earlier one in the same folder."""
    if registry.run_dir is None:
        return ()
    return tuple(
        typed_path(path) for path in incident_folders(registry.run_dir) if path not in registry.earlier_incidents
    )


def _relative(text: str) -> str:
    """A text with paths as one would type them here."""
    return text.replace(f"{Path.cwd()}{os.sep}", "")
