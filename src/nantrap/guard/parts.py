"""The collaborators of a step, made once and passed to every function that makes one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from nantrap import finite
from nantrap.guard.diagnosis.armed import Armed
from nantrap.guard.diagnosis.describe import Describer, Neighbours
from nantrap.guard.diagnosis.diagnosis import Diagnosis
from nantrap.guard.ladder import Ladder
from nantrap.guard.policy import Policy
from nantrap.guard.progress import Progress
from nantrap.guard.ranks.alone import Alone
from nantrap.guard.ranks.ranks import Ranks
from nantrap.guard.recorder import Recorder
from nantrap.guard.state.anchors import Anchors
from nantrap.guard.state.ema import ema_modules
from nantrap.guard.state.protected import Protected
from nantrap.guard.state.recovery import Recovery
from nantrap.guard.state.scaling import Scaling
from nantrap.guard.watching.magnitudes import Sampler
from nantrap.guard.watching.ranges import Ranges
from nantrap.guard.watching.sample_list import SampleList, as_sample_list
from nantrap.guard.watching.spikes import Spikes
from nantrap.guard.watching.watch import Watch, WatchSpec
from nantrap.locate import is_compiled
from nantrap.record import open_listeners

if TYPE_CHECKING:
    from nantrap.checkpoints import CheckpointStore
    from nantrap.record.alerts import Alerts
    from nantrap.record.exporters import Exporter


@dataclass(frozen=True, slots=True)
class Parts:
    """What a step needs. Each part has public methods and knows nothing of the guard that holds it.

    Attributes:
        policy: what to check and what to do.
        progress: where the run is.
        protected: everything a step may change.
        scaling: the loss scale.
        ranks: the ranks that decide together.
        watch: watched values, or `None` without any.
        spikes: the statistic of loss and gradient norm, or `None` if the policy does not check it.
        ranges: the usual range of batches, or `None` if the policy does not check it.
        sampler: how large the outputs of modules are, in a few steps.
        ladder: skip, roll back, stop.
        recovery: older states and checkpoints.
        diagnosis: where and why.
        recorder: journal, messages, tally.
        armed: steps that are traced while they run.
    """

    policy: Policy
    progress: Progress
    protected: Protected
    scaling: Scaling
    ranks: Ranks
    watch: Watch | None
    spikes: Spikes | None
    ranges: Ranges | None
    sampler: Sampler
    ladder: Ladder
    recovery: Recovery
    diagnosis: Diagnosis
    recorder: Recorder
    armed: Armed

    @property
    def drops_micro_batches(self) -> bool:
        """Whether a bad micro-batch is dropped alone; other ranks could not know which one this rank drops."""
        policy = self.policy
        return (
            policy.micro_batches == "drop"
            and policy.on_incident == "skip"
            and policy.sync == "step"
            and not self.ranks.together
        )


def make_parts(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    policy: Policy,
    also: Sequence[nn.Module] = (),
    scheduler: Any = None,
    scaler: Any = None,
    ema: Any = None,
    max_grad_norm: float | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    watch: WatchSpec = (),
    store: CheckpointStore | None = None,
    save_every: int = 0,
    quiet: bool = False,
    by: str = "guard",
    process_group: Any = None,
    neighbours: Neighbours | None = None,
    export: Iterable[str | Exporter] = (),
    alerts: Alerts | None = None,
    bad_samples: str | os.PathLike[str] | SampleList | None = None,
    schedules: Callable[[], Sequence[Any]] = tuple,
) -> Parts:
    """The parts of a guard for one model and one optimizer; see `Guard` and `Recovery` for the arguments."""
    drives = by == "guard"
    protected = Protected(
        model,
        optimizer,
        policy=policy,
        also=also,
        averages=ema_modules(ema),
        scheduler=scheduler,
        owned_only=not drives,
    )
    progress = Progress()
    scaling = Scaling(scaler, optimizer, policy)
    ranks = Ranks(model, process_group=process_group)
    ranks.averaged.allow(policy, protected.members.parameters)
    watched = Watch(watch, protected.root) if watch else None
    sampler = Sampler(
        protected.root,
        every=0 if policy.diagnose == "off" else policy.headroom_every or policy.magnitudes_every,
        warns=bool(policy.headroom_every),
        compiled=is_compiled(model),
    )
    anchors = Anchors(
        protected.members.parameters,
        optimizer,
        protected.modules,
        scheduler=scheduler,
        scaling=scaling,
        ema=ema,
        ledger=protected.ledger,
        every=policy.anchor_every if policy.sync == "step" else 0,
        limit_bytes=policy.anchor_bytes,
    )
    ranges = None if policy.batch_range == "off" and not policy.batch_ranges else Ranges(policy)
    recorder = Recorder(
        progress,
        policy=policy,
        run_dir=run_dir,
        rank=ranks.rank,
        prints=ranks.prints,
        quiet=quiet,
        by=by,
        watch=watched,
        samples=as_sample_list(bad_samples),
        ranges=ranges,
    )
    recovery = Recovery(
        model,
        protected,
        anchors,
        policy=policy,
        ranks=ranks,
        progress=progress,
        tally=recorder.tally,
        scaling=scaling,
        average=ema,
        store=store,
        save_every=save_every,
        run_dir=recorder.run_dir,
        schedules=schedules,
    )
    armed = Armed(
        protected.members, policy, alone=not ranks.together, compiled=is_compiled(model), has_policy=by != "script"
    )
    alone = Alone(model, together=ranks.together)
    describer = Describer(
        protected,
        policy=policy,
        ranks=ranks,
        alone=alone,
        progress=progress,
        scaling=scaling,
        history=recorder.history,
        sampler=sampler,
        anchors=anchors,
        scheduler=scheduler,
        max_grad_norm=max_grad_norm,
        armed=armed,
        neighbours=neighbours,
    )
    diagnosis = Diagnosis(
        describer,
        protected,
        policy=policy,
        ranks=ranks,
        alone=alone,
        progress=progress,
        sampler=sampler,
        keeps_bundles=run_dir is not None,
        begin=recorder.begin_incident,
        neighbours=neighbours,
        armed=armed,
    )
    facts = _facts(protected, policy, ranks, scaling, max_grad_norm, watched)
    recorder.describe_run(facts)
    if ranks.prints:
        recorder.listen(open_listeners(export=export, alerts=alerts, run_dir=run_dir, facts=facts))
    ranks.say = recorder.say
    ranks.run_dir = recorder.run_dir
    return Parts(
        policy,
        progress,
        protected,
        scaling,
        ranks,
        watched,
        None if policy.spikes == "off" else Spikes(policy),
        ranges,
        sampler,
        Ladder(policy),
        recovery,
        diagnosis,
        recorder,
        armed,
    )


def _facts(
    protected: Protected,
    policy: Policy,
    ranks: Ranks,
    scaling: Scaling,
    max_grad_norm: float | None,
    watched: Watch | None,
) -> dict[str, Any]:
    """What `run.json` stores about this run: an allow-list."""
    parameters = protected.members.parameters
    return {
        "model": type(protected.root).__name__,
        "parameters": sum(p.numel() for p in parameters),
        "optimizer": type(protected.optimizer).__name__,
        "precision": sorted({finite.dtype_name(p.dtype) for p in parameters}),
        "devices": sorted({str(p.device) for p in parameters}),
        "world_size": ranks.size,
        "max_grad_norm": max_grad_norm,
        "loss_scaler": scaling.enabled,
        "policy": {name: getattr(policy, name) for name in policy.__slots__},
        **({"watch": watched.limits()} if watched is not None and watched.limits() else {}),
    }
