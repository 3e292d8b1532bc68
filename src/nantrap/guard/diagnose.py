"""From a bad step to an incident: what was seen, where it began, why. Runs only after a failure, and never raises."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import nn

from nantrap import finite
from nantrap.guard.bundling import bundle_incident
from nantrap.guard.loss import as_loss
from nantrap.guard.rates import current_rates
from nantrap.incident import Action, Cause, Evidence, Finding, Fix, Incident, Phase
from nantrap.locate import FailedStep, Location, finding, locate

if TYPE_CHECKING:  # the rules are many: imported by the first failure
    from nantrap.causes import Case, Explanation
    from nantrap.guard.guard import Guard
    from nantrap.guard.window import Micro, Window

_MOST_FINDINGS = 20


@dataclass(slots=True)
class Observed:
    """What the guard saw: the micro-batch, its values as read, and what was bad."""

    step: int
    micro: Micro
    values: list[float]
    norm: float
    buffers_bad: bool = False
    update: list[Finding] = field(default_factory=list)
    spike: Finding | None = None
    rank: int = 0
    local: bool = True
    harmless: bool = False
    contested: bool = False
    raised: bool = False


class Diagnosis:
    """Turns observations into incidents. Counts those that look alike, so that a bad night stays fast."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._seen: Counter[tuple[str, ...]] = Counter()
        self._first: dict[tuple[str, ...], Incident] = {}
        self._poisoned_at: int | None = None

    def run(self, observed: Observed, action: Action) -> Incident:
        """The incident of a failed step; the state is as before afterwards."""
        incident = self._diagnosed(observed, action)
        return self._agree_on_rank(incident, observed, action) if observed.contested else incident

    def _agree_on_rank(self, incident: Incident, observed: Observed, action: Action) -> Incident:
        """Averaged gradients are bad everywhere. Each rank has run its own part again: whose was bad is guilty."""
        agreement = self._guard._agreement
        verdict = agreement.decide(origin=incident.op is not None or incident.module is not None)
        if not verdict.bad:  # nobody could tell
            return incident
        if agreement.rank in verdict.bad_ranks:
            return replace(incident, rank=verdict.first_rank)
        elsewhere = replace(observed, rank=verdict.first_rank, local=False)
        return self._diagnosed(elsewhere, action)

    def _diagnosed(self, observed: Observed, action: Action) -> Incident:
        guard = self._guard
        findings = self._findings(observed)
        incident = self._bare(observed, findings, action)
        if observed.spike is not None or not observed.local:
            return replace(incident, notes=() if observed.local else (_elsewhere(observed.rank),))
        if self._poisoned_at is not None and finite.any_nonfinite([p.detach() for p in guard._members.parameters]):
            words = f"the weights are non-finite since step {self._poisoned_at:,}, which was applied as it was"
            return replace(incident, same_as=self._poisoned_at, notes=(words,))
        if guard.policy.on_incident == "observe" and not observed.harmless and self._poisoned_at is None:
            self._poisoned_at = observed.step
        if guard.policy.diagnose == "off":
            return incident
        if guard._agreement.world_size > 1 and _talks_in_forward(guard.model):
            note = "not run again: the model talks to the other ranks in its forward pass, and they have moved on"
            return replace(incident, notes=(note,))
        if (known := guard._known_incident(observed.micro)) is not None:
            return _like(incident, known)
        signature = _signature(incident)
        self._seen[signature] += 1
        if self._seen[signature] > guard.policy.repeat_diagnoses and (known := self._first.get(signature)):
            return _like(incident, known)
        try:
            incident = self._located(incident, observed, findings)
        except Exception as error:  # a diagnosis is worth less than the run
            note = f"the diagnosis failed with {type(error).__name__}: {error}"
            return replace(incident, notes=(*incident.notes, note))
        self._first.setdefault(signature, incident)
        guard._remember_incident(observed.micro, incident)
        return incident

    def finite_at_scale_one(self, micro: Micro) -> bool:
        """Whether a micro-batch whose scaled gradients overflowed has finite ones without the scale."""
        observed = Observed(self._guard._step, micro, micro.values or [], math.nan)
        failed = self.failed_step(observed, "backward", [])
        if not failed.repeatable or failed.forward is None:
            return True
        try:
            with failed.rewound():
                failed.forward(failed.batch).backward()
                return not finite.any_nonfinite([p.grad for p in failed.parameters.values()])
        except Exception:  # a function that cannot be run again proves nothing
            return True

    def bad_batch(self, step: int, findings: list[Finding], action: Action, *, rank: int) -> Incident:
        """A batch that was found bad before the forward pass, here or on another rank."""
        guard = self._guard
        if not findings:
            return Incident(
                step=step,
                rank=rank,
                phase="data",
                module="data",
                action=action,
                lr=current_rates(guard.optimizer),
                notes=(_elsewhere(rank),),
            )
        samples = tuple(sorted({i for f in findings for i in f.samples}))
        first = findings[0]
        described = first.stats.describe() if first.stats else ""
        cause = Cause(
            "bad_input_data",
            proven=True,
            confidence=1.0,
            summary=f"the batch holds non-finite values: {first.name}",
            evidence=(Evidence(f"{first.name}: {described}, before the forward pass"),),
            fix=Fix(text=f"clean or drop the sample where the data set makes {first.name}"),
        )
        return Incident(
            step=step,
            rank=rank,
            phase="data",
            module="data",
            findings=tuple(findings),
            causes=(cause,),
            samples=samples,
            action=action,
            lr=current_rates(guard.optimizer),
        )

    def rank_divergence(self, step: int, checksums: tuple[float, ...]) -> Incident:
        """The ranks hold different parameters. Nothing is run again: the numbers say it all."""
        guard = self._guard
        incident = Incident(
            step=step,
            rank=guard._agreement.rank,
            phase="state",
            action=Action.APPLY,
            lr=current_rates(guard.optimizer),
        )
        failed = FailedStep(
            step=step,
            root=guard._members.root,
            parameters=dict(guard._members.named()),
            optimizer=guard.optimizer,
            symptom="state",
            loss=None,
            loss_value=math.nan,
            gradients={},
            restore_buffers=guard._buffers.restore,
        )
        from nantrap.causes import Case, explain_case

        case = Case(failed, Location(phase="state"), incident, guard.history, checksums=checksums)
        return _with_explanation(incident, explain_case(case, seconds=0.0))

    def dropped_terms(self, step: int, window: Window) -> Incident:
        """A step that was applied without its bad loss terms."""
        guard = self._guard
        return Incident(
            step=step,
            rank=guard._agreement.rank,
            phase="forward",
            module="loss",
            findings=tuple(window.findings),
            action=Action.APPLY,
            loss=window.loss,
            terms=dict(window.terms),
            lr=current_rates(guard.optimizer),
            notes=("the bad terms were dropped, the good ones applied (Policy.bad_terms)",),
        )

    # ---- parts

    def _located(self, incident: Incident, observed: Observed, findings: list[Finding]) -> Incident:
        policy = self._guard.policy
        untouched = self._guard._update.untouched()  # before a replay writes anything
        failed = self.failed_step(observed, incident.phase, findings)
        location = locate(failed, seconds=policy.diagnose_seconds)
        incident = _with_location(incident, location)
        incident = self._guard._name_samples(incident, observed.micro)
        trend = self._guard._headroom.trend(incident.module or "")
        incident = replace(incident, headroom={str(step): round(bits, 2) for step, bits in trend})
        if policy.diagnose == "full":
            from nantrap.causes import explain_case

            case = self._case(failed, location, incident, untouched=untouched)
            explanation = explain_case(case, seconds=policy.diagnose_seconds)
            incident = _with_explanation(incident, explanation)
        if self._guard.run_dir is not None:
            incident = bundle_incident(self._guard.run_dir, incident, failed, location, policy)
        return incident

    def _findings(self, observed: Observed) -> list[Finding]:
        guard = self._guard
        found: list[Finding] = [] if observed.spike is None else [observed.spike]
        found += observed.update
        if observed.values:
            named = observed.micro.loss.named(observed.values[1:])
            found += [Finding("term", n, "forward", value=v) for n, v in named.items() if not math.isfinite(v)]
            if not math.isfinite(observed.values[0]):
                found.append(Finding("loss", "loss", "forward", value=observed.values[0]))
        if not observed.update and not math.isfinite(observed.norm):
            bad = [
                (name, parameter.grad)
                for name, parameter in guard._members.named()
                if parameter.grad is not None and finite.any_nonfinite([parameter.grad])
            ]
            found += [finding("gradient", name, grad, "backward") for name, grad in bad[:_MOST_FINDINGS]]
            if not bad and not found:
                exact = finite.exact_norm(guard._members.gradients())
                note = f"every gradient is finite, their norm is {exact:.4g}, which overflowed to {observed.norm}"
                found.append(Finding("grad_norm", "total gradient norm", "backward", value=observed.norm, note=note))
        if observed.buffers_bad:
            found += [finding("buffer", name, t, "forward") for name, t in guard._buffers.names_of_bad()]
        return found

    def _bare(self, observed: Observed, findings: list[Finding], action: Action) -> Incident:
        guard = self._guard
        kinds = {f.kind for f in findings}
        phase: Phase = "forward"
        if observed.update:
            phase = "optimizer"
        elif not observed.raised and not kinds & {"loss", "term", "buffer", "spike"}:
            phase = "backward"
        named = observed.micro.loss.named(observed.values[1:]) if observed.values else {}
        return Incident(
            step=observed.step,
            rank=observed.rank,
            phase=phase,
            findings=tuple(findings),
            action=action,
            loss=observed.values[0] if observed.values else None,
            terms=named,
            grad_norm=observed.norm,
            lr=current_rates(guard.optimizer),
        )

    def failed_step(self, observed: Observed, phase: Phase, findings: list[Finding]) -> FailedStep:
        guard = self._guard
        micro = observed.micro
        forward = None
        if micro.forward is not None:
            fn = micro.forward
            forward = lambda batch: as_loss(fn(batch)).total  # noqa: E731
        scale = guard._scaling.value()
        snapshot = guard._update.snapshot
        return FailedStep(
            step=observed.step,
            root=guard._members.root,
            parameters=dict(guard._members.known()),
            optimizer=guard.optimizer,
            symptom=phase,
            loss=micro.loss.total,
            loss_value=observed.values[0] if observed.values else math.nan,
            gradients={n: p.grad.detach() for n, p in guard._members.known() if p.grad is not None},
            restore_buffers=guard._buffers.restore_mark,
            loss_factor=micro.factor * (scale or 1.0),
            forward=forward,
            batch=micro.batch,
            batch_versions=micro.versions,
            rng=micro.rng,
            root_call=micro.root_call,
            restore_update=snapshot.restore if observed.update and snapshot is not None else None,
            run_update=guard.optimizer.step if observed.update else None,
            bad_buffers=tuple(f.name for f in findings if f.kind == "buffer"),
            norm_overflowed=any(f.kind == "grad_norm" for f in findings),
            evidence=micro.evidence,
            quiet=lambda: _without_collectives(guard.model),
        )

    def _case(self, failed: FailedStep, location: Location, incident: Incident, *, untouched: bool) -> Case:
        from nantrap.causes import Case

        guard = self._guard
        return Case(
            failed=failed,
            location=location,
            incident=incident,
            history=guard.history,
            scale=guard._scaling.value(),
            max_grad_norm=guard._max_grad_norm,
            anchors=guard._anchors,
            ema_modules=tuple(guard._ema_modules),
            scheduler=guard.scheduler,
            state_untouched=untouched,
        )


def _with_location(incident: Incident, location: Location) -> Incident:
    batch = location.samples.guilty
    if not batch and location.phase == "data":
        batch = tuple(sorted({i for f in location.findings for i in f.samples}))
    return replace(
        incident,
        phase=location.phase,
        module=location.module,
        op=location.op,
        node=location.node,
        source=location.source,
        call=location.call,
        findings=(*location.findings, *incident.findings),
        samples=batch,
        dataset_indices=location.samples.dataset_indices,
        frames=location.frames,
        probes=location.probes,
        exact=location.exact,
        notes=(*incident.notes, *location.notes),
    )


def _with_explanation(incident: Incident, explanation: Explanation) -> Incident:
    return replace(
        incident,
        causes=explanation.causes,
        refuted=explanation.refuted,
        trials=explanation.trials,
        notes=(*incident.notes, *explanation.notes),
    )


def _signature(incident: Incident) -> tuple[str, ...]:
    """What can be told of an incident without running anything: two that agree in it are taken for the same."""
    return (incident.phase, *sorted({f"{f.kind}:{f.name}" for f in incident.findings})[:8])


def _like(incident: Incident, known: Incident) -> Incident:
    """An incident that was seen before: its place and causes are taken over, and it refers back."""
    return replace(
        incident,
        phase=known.phase,
        module=known.module,
        op=known.op,
        node=known.node,
        source=known.source,
        # the summary speaks of another batch's samples and values; the title holds for both
        causes=tuple(replace(cause, proven=False, summary=cause.title) for cause in known.causes),
        same_as=known.step,
        notes=(f"looks like the incident of step {known.step:,} and was not diagnosed anew",),
    )


def _elsewhere(rank: int) -> str:
    return f"it began on rank {rank}; see that rank's incident"


def _talks_in_forward(model: nn.Module) -> bool:
    """Whether a forward pass on one rank alone would wait for the others: synchronised statistics, sharded weights."""
    if any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
        return True
    if any("FullyShardedDataParallel" in type(m).__name__ or "FSDP" in type(m).__name__ for m in model.modules()):
        return True
    return any(hasattr(parameter, "to_local") for parameter in model.parameters())


@contextlib.contextmanager
def _without_collectives(model: Any) -> Iterator[None]:
    """A replay on one rank must not wait for the others: DDP neither averages gradients nor broadcasts buffers."""
    if type(model).__name__ != "DistributedDataParallel":
        yield
        return
    forward_sync = model.require_forward_param_sync
    model.require_forward_param_sync = False
    try:
        with model.no_sync():
            yield
    finally:
        model.require_forward_param_sync = forward_sync
