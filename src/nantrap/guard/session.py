"""The session: what the steps of one run need, made once and passed to every function that makes one."""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer

from nantrap import finite
from nantrap.guard.armed import Armed
from nantrap.guard.judge import Ladder
from nantrap.guard.policy import Diagnosis, Policy
from nantrap.guard.progress import Progress, summary_text
from nantrap.guard.ranks.ranks import Alone, Ranks
from nantrap.guard.recorder import Recorder, RecordTarget
from nantrap.guard.state.copies import Anchors
from nantrap.guard.state.members import Shards, ema_modules
from nantrap.guard.state.protected import Protected
from nantrap.guard.state.recovery import Recovery, Saving, store_for
from nantrap.guard.state.scaling import Scaling
from nantrap.guard.sync import why_at_once
from nantrap.guard.watching.magnitudes import Sampler
from nantrap.guard.watching.ranges import Ranges, SpikeWatch
from nantrap.guard.watching.sample_list import SampleList, as_sample_list
from nantrap.guard.watching.watch import Watch, WatchSpec
from nantrap.guard.window import Micro
from nantrap.incident import Incident
from nantrap.locate import RootCall, is_compiled
from nantrap.record import open_listeners

if TYPE_CHECKING:
    from nantrap.checkpoints import CheckpointStore
    from nantrap.record.alerts import Alerts
    from nantrap.record.exporters import Exporter


class Neighbours(Protocol):
    """What is known outside the guard: the data loader's indices, and the guards of other optimizers."""

    def name_samples(self, incident: Incident, micro: Micro) -> Incident:
        """The incident with the dataset's own indices, where they are known."""

    def place(self, call: RootCall) -> int | None:
        """Note the batch of which a call was made; its number in its data loader, where it is known."""

    def known_incident(self, micro: Micro) -> Incident | None:
        """The incident of another guard that saw the same loss."""

    def remember_incident(self, micro: Micro, incident: Incident) -> None:
        """For another guard that sees the same loss."""

    def note_call(self, model: str, incident: Incident) -> None:
        """A model that was called without gradients gave a bad value."""

    def bad_call(self) -> tuple[str, str]:
        """What such a model gave since the last step, and how that is known; empty words if there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How a model is guarded: the arguments of `Guard`, and what `nantrap run` and the adapters add.

    Attributes:
        policy: what to check and what to do.
        also: further modules that a step may change.
        scheduler: the schedule that the guard advances.
        scaler: the loss scaler.
        ema: an average of the weights.
        max_grad_norm: to what the guard clips.
        run_dir: where the journal and the incidents go.
        watch: values to follow.
        store: where the guard saves.
        save_every: how often it saves.
        quiet: print nothing.
        by: who makes the update: `guard`, or `script`.
        process_group: the ranks that train the model, if that is not seen from it.
        neighbours: what is known outside the guard.
        export: where each line of the journal is sent as well.
        alerts: who is told of incidents.
        bad_samples: the list of samples that led to incidents.
        schedules: gives the schedules that the script steps itself.
        shards: where the optimizer moves shards in place of the model's parameters.
    """

    policy: Policy
    also: Sequence[nn.Module] = ()
    scheduler: Any = None
    scaler: Any = None
    ema: Any = None
    max_grad_norm: float | None = None
    run_dir: str | os.PathLike[str] | None = None
    watch: WatchSpec = ()
    store: CheckpointStore | None = None
    save_every: int = 0
    quiet: bool = False
    by: str = "guard"
    process_group: Any = None
    neighbours: Neighbours | None = None
    export: Iterable[str | Exporter] = ()
    alerts: Alerts | None = None
    bad_samples: str | os.PathLike[str] | SampleList | None = None
    schedules: Callable[[], Sequence[Any]] = tuple
    shards: Shards | None = None


_ALWAYS = 60.0
"""Seconds that the diagnoses of a run have together, however short it is."""
_MOST_OF_A_RUN = 0.25
"""The part of a run's time that its diagnoses may take beyond that: a sick run goes on."""


@dataclass(slots=True)
class Earlier:
    """What the diagnoses of a run leave for later ones, so that a run with many failures stays fast.

    Attributes:
        counts: how often an incident looked like this, by its signature.
        incidents: those that were diagnosed, by signature.
        given: the memory, offset and size of the bad value beside the batch that the last failed step was given.
        poisoned_at: the step since which the weights are non-finite, where a policy only observes.
        began: when the run began, by the clock of its policy.
        took: the seconds that all diagnoses took together.
    """

    began: float

    counts: Counter[tuple[str, ...]] = field(default_factory=Counter)
    incidents: dict[tuple[str, ...], list[Incident]] = field(default_factory=dict)
    given: tuple[StorageWeakRef, int, int] | None = None
    poisoned_at: int | None = None
    took: float = 0.0

    def too_long(self, limits: Diagnosis) -> str:
        """In words, that diagnoses have taken too much of the run; empty if they have not."""
        elapsed = limits.clock() - self.began
        if self.took <= max(limits.seconds, _ALWAYS) or self.took <= _MOST_OF_A_RUN * elapsed:
            return ""
        return f"not run again: diagnoses have taken {self.took:,.0f} s of the {elapsed:,.0f} s of this run"

    def remember(self, signature: tuple[str, ...], incident: Incident) -> None:
        """Keep a diagnosed incident for those that look like it."""
        self.incidents.setdefault(signature, []).append(incident)


last_turn: list[Callable[[], Session | None]] = [lambda: None]
"""The session that made the last step of this process, held weakly."""


class Session:
    """What the steps of one run need: plain members, each of which knows nothing of the guard that holds them.

    Attributes:
        setup: how the model is guarded.
        policy: what to check and what to do.
        progress: where the run is.
        protected: everything a step may change.
        scaling: the loss scale.
        ranks: the ranks that decide together.
        alone: lets this rank run the model without the others.
        watch: watched values, or `None` without any.
        spikes: the statistic of loss and gradient norm, or `None` if the policy does not check it.
        ranges: the usual range of batches, or `None` if the policy does not check it.
        sampler: how large the outputs of modules are, in a few steps.
        ladder: skip, roll back, stop.
        anchors: older states in memory.
        recovery: the way back to an older state or a checkpoint.
        takes_turns: whether another guard moves weights between the steps of this one.
        others: the sessions of guards that did so, held weakly.
        at_once: why each step is read before its update, in words; empty if it is read one step later.
        recorder: journal, messages, tally.
        armed: steps that are traced while they run.
        earlier: what was diagnosed before.
    """

    __slots__ = (
        "__weakref__", "alone", "anchors", "armed", "at_once", "earlier", "ladder", "others", "policy", "progress",
        "protected", "ranges", "ranks", "recorder", "recovery", "sampler", "scaling", "setup", "spikes", "takes_turns",
        "watch",
    )  # fmt: skip

    def __init__(self, model: nn.Module, optimizer: Optimizer, setup: Setup) -> None:
        policy = setup.policy
        self.setup = setup
        self.policy = policy
        self.earlier = Earlier(policy.diagnosis.clock())
        self.progress = Progress()
        self.protected = Protected(
            model,
            optimizer,
            policy=policy,
            also=setup.also,
            averages=ema_modules(setup.ema),
            scheduler=setup.scheduler,
            owned_only=setup.by != "guard",
            shards=setup.shards,
        )
        self.scaling = Scaling(setup.scaler, optimizer, policy)
        self.ranks = Ranks(model, process_group=setup.process_group)
        self.ranks.averaged.allow(policy, self.protected.members.parameters)
        self.at_once = why_at_once(self.protected, setup, self.ranks)
        self.alone = Alone(model, together=self.ranks.together)
        self.watch = Watch(setup.watch, self.protected.root) if setup.watch else None
        self.spikes = None if policy.spikes.action == "off" else SpikeWatch(policy)
        self.ranges = None if policy.batches.unusual == "off" and not policy.batches.ranges else Ranges(policy)
        self.ladder = Ladder(policy)
        self.sampler = Sampler(
            self.protected.root,
            every=0 if policy.diagnose == "off" else policy.sampling.headroom_every or policy.sampling.magnitudes_every,
            warns=bool(policy.sampling.headroom_every),
            compiled=is_compiled(model),
        )
        self.anchors = Anchors(
            self.protected,
            self.scaling,
            ema=setup.ema,
            every=policy.rollback.anchor_every,
            limit_bytes=policy.rollback.anchor_bytes,
        )
        target = RecordTarget(setup.run_dir, setup.quiet, setup.by, rank=self.ranks.rank, prints=self.ranks.prints)
        self.recorder = Recorder(
            self.progress,
            target,
            policy=policy,
            watch=self.watch,
            samples=as_sample_list(setup.bad_samples),
            ranges=self.ranges,
        )
        store = store_for(setup.store, every=setup.save_every, run_dir=self.recorder.run_dir)
        self.recovery = Recovery(
            self.protected,
            self.anchors,
            Saving(model, setup.ema, store, setup.save_every, setup.schedules),
            policy=policy,
            ranks=self.ranks,
            progress=self.progress,
            tally=self.recorder.tally,
        )
        self.armed = Armed(
            self.protected.members,
            policy,
            alone=not self.ranks.together,
            compiled=is_compiled(model),
            has_policy=setup.by != "script",
        )
        self.takes_turns = False
        self.others: weakref.WeakSet[Session] = weakref.WeakSet()
        self._introduce()

    def take_turn(self) -> None:
        """Another guard made the last step of this process. Where that happens in the middle of a run, two optimizers
        take turns (a GAN), and a step that was run again later would meet other weights: each is read at once."""
        before, last_turn[0] = last_turn[0](), weakref.ref(self)
        if before is not None:
            self.others.add(before)
        if before is None or not self.recorder.tally.attempted:
            return
        for session in (before, self):
            if not (session.takes_turns or session.at_once):
                session.recorder.note_read_at_once("several optimizers take turns")
            session.takes_turns = True

    def _introduce(self) -> None:
        """Write what is known of the run, and let those who follow it listen."""
        facts = _facts(self)
        self.recorder.describe_run(facts)
        if self.ranks.prints:
            setup = self.setup
            listeners = open_listeners(export=setup.export, alerts=setup.alerts, run_dir=setup.run_dir, facts=facts)
            self.recorder.listen(listeners)
        self.ranks.say = self.recorder.say
        waits = any(parameter.device.type != "cpu" for parameter in self.protected.members.parameters)
        if self.at_once and (self.policy.sync == "late" or (self.policy.sync == "auto" and waits)):
            self.recorder.note_read_at_once(self.at_once)
        self.ranks.run_dir = self.recorder.run_dir

    @property
    def drops_micro_batches(self) -> bool:
        """Whether a bad micro-batch is dropped alone; other ranks could not know which one this rank drops."""
        policy = self.policy
        return (
            policy.accumulation.bad == "drop"
            and policy.on_incident == "skip"
            and bool(self.at_once)
            and not self.ranks.together
        )

    @property
    def writes_bundles(self) -> bool:
        """Whether incidents are written to disk."""
        return self.setup.run_dir is not None and self.policy.bundle.kind != "off"


def _facts(session: Session) -> dict[str, Any]:
    """What `run.json` stores about this run: an allow-list."""
    protected, policy, watched = session.protected, session.policy, session.watch
    parameters = protected.members.parameters
    return {
        "model": type(protected.root).__name__,
        "parameters": sum(p.numel() for p in parameters),
        "optimizer": type(protected.optimizer).__name__,
        "precision": sorted({finite.dtype_name(p.dtype) for p in parameters}),
        "devices": sorted({str(p.device) for p in parameters}),
        "world_size": session.ranks.size,
        "max_grad_norm": session.setup.max_grad_norm,
        "loss_scaler": session.scaling.enabled,
        "policy": policy.as_written(),
        "read": f"at once: {session.at_once}" if session.at_once else "one step later",
        **({"watch": watched.limits()} if watched is not None and watched.limits() else {}),
    }


def summary_of(recorder: Recorder, recovery: Recovery, notes: Sequence[str] = ()) -> str:
    """What was applied, what was skipped and why, which samples are bad, and where a restart begins."""
    more = [*notes, recorder.samples.summary() if recorder.samples is not None else "", recovery.where_to_restart()]
    return "\n".join([summary_text(recorder.tally, run_dir=recorder.run_dir), *filter(None, more)])


def end_run(recorder: Recorder, recovery: Recovery, notes: Sequence[str] = ()) -> None:
    """The end of a run, also if its guard was never closed: journal, report, and a summary if anything happened."""
    recorder.close()
    tally = recorder.tally
    if tally.incidents or tally.dropped_micro_batches or tally.outside or tally.evaluations:
        recorder.say(*summary_of(recorder, recovery, notes).split("\n"))
