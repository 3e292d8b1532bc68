"""A failed step in the forms that others take: an `Incident`, a `FailedStep` for `locate`, a `Case` for the rules."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from nantrap.guard.diagnosis.armed import Armed
from nantrap.guard.drafts import build_incident
from nantrap.guard.loss import as_loss
from nantrap.guard.observation import Observation
from nantrap.guard.policy import Policy
from nantrap.guard.progress import Progress
from nantrap.guard.ranks.alone import Alone
from nantrap.guard.ranks.ranks import Ranks
from nantrap.guard.state.anchors import Anchors
from nantrap.guard.state.protected import Protected
from nantrap.guard.state.rates import current_rates
from nantrap.guard.state.scaling import Scaling
from nantrap.guard.watching.magnitudes import Sampler
from nantrap.guard.watching.ranges import inputs_of
from nantrap.guard.window import Micro
from nantrap.incident import Incident
from nantrap.locate import FailedStep, Location
from nantrap.locate.twoline.terms import terms_of
from nantrap.record import History

if TYPE_CHECKING:  # the rules are many: imported by the first failure
    from nantrap.causes import Case


class Neighbours(Protocol):
    """What is known outside the guard: the data loader's indices, and the guards of other optimizers."""

    def name_samples(self, incident: Incident, micro: Micro) -> Incident:
        """The incident with the dataset's own indices, where they are known."""

    def known_incident(self, micro: Micro) -> Incident | None:
        """The incident of another guard that saw the same loss."""

    def remember_incident(self, micro: Micro, incident: Incident) -> None:
        """For another guard that sees the same loss."""


class Describer:
    """Describes a failed step from everything that is known of the run. Runs nothing and changes nothing.

    Args:
        protected: the state of the run.
        policy: how much to find out.
        ranks: the ranks that train this model.
        alone: lets this rank run the model without the others.
        progress: where the run is.
        scaling: the loss scale.
        history: the last steps.
        sampler: how large the outputs of modules were.
        anchors: older states, for trials.
        scheduler: the guard's scheduler, or `None`.
        max_grad_norm: to what the guard clips.
        armed: steps that are traced while they run.
        neighbours: what is known outside the guard.
    """

    def __init__(
        self,
        protected: Protected,
        *,
        policy: Policy,
        ranks: Ranks,
        alone: Alone,
        progress: Progress,
        scaling: Scaling,
        history: Callable[[], History],
        sampler: Sampler,
        anchors: Anchors,
        scheduler: Any,
        max_grad_norm: float | None,
        armed: Armed,
        neighbours: Neighbours | None,
    ) -> None:
        self._protected = protected
        self._policy = policy
        self._ranks = ranks
        self._alone = alone
        self._progress = progress
        self._scaling = scaling
        self._history = history
        self._sampler = sampler
        self._anchors = anchors
        self._scheduler = scheduler
        self._max_grad_norm = max_grad_norm
        self._armed = armed
        self._neighbours = neighbours

    def incident(self, observation: Observation) -> Incident:
        """The incident as it was observed: nothing was run again."""
        values = observation.values
        return build_incident(
            self._progress,
            rank=self._ranks.rank,
            verdict=observation.verdict,
            phase=observation.phase,
            findings=observation.findings,
            loss=values[0] if values else None,
            terms=self._terms(observation),
            norm=observation.norm,
            rates=current_rates(self._protected.optimizer),
            inputs=inputs_of(observation.micro),
        )

    def _terms(self, observation: Observation) -> dict[str, float]:
        """The loss terms as the program named them, or as a statement of the program adds them up."""
        values, loss = observation.values, observation.micro.loss
        if loss.terms or observation.micro.forward is not None or not values:
            return loss.named(list(values[1:])) if values else {}
        return terms_of(loss.total)

    def with_run_facts(self, incident: Incident, observation: Observation) -> Incident:
        """The incident with the dataset's own indices, where the loop knows them, and with the suspect's magnitudes."""
        sampled = self._sampler.of(incident.module, incident.phase)
        if sampled is not None:
            incident = replace(incident, magnitudes=(sampled,))
        if self._policy.headroom_every and incident.module:
            trend = self._sampler.trend(incident.module)
            incident = replace(incident, headroom={str(step): round(bits, 2) for step, bits in trend})
        return incident if self._neighbours is None else self._neighbours.name_samples(incident, observation.micro)

    def failed_step(self, observation: Observation) -> FailedStep:
        """Everything by which the failed step can be run again, as `locate` takes it."""
        protected, micro = self._protected, observation.micro
        forward = None
        if micro.forward is not None:
            fn = micro.forward
            forward = lambda batch: as_loss(fn(batch)).total  # noqa: E731
        return FailedStep(
            step=self._progress.step,
            root=protected.root,
            parameters=dict(protected.members.known()),
            optimizer=protected.optimizer,
            symptom=observation.phase,
            loss=micro.loss.total,
            loss_value=observation.values[0] if observation.values else math.nan,
            gradients=observation.gradients,
            restore_buffers=protected.ledger.restore_mark,
            loss_factor=micro.factor * (self._scaling.value() or 1.0),
            forward=forward,
            batch=micro.batch,
            batch_versions=micro.versions or {},
            rng=micro.rng,
            root_call=micro.root_call,
            restore_update=protected.restore_for_replay(undone=observation.update),
            run_update=protected.optimizer.step if observation.update else None,
            deliberate=tuple(protected.ledger.exempt_names()),
            bad_buffers=tuple(
                f.name
                for f in observation.findings
                if f.kind == "buffer" or (f.kind, f.phase) == ("parameter", "forward")
            ),
            written_between=tuple(f.name for f in observation.findings if (f.kind, f.phase) == ("parameter", "state")),
            norm_overflowed=any(f.kind == "grad_norm" for f in observation.findings),
            evidence=micro.evidence,
            quiet=self._alone.running,
            tape=self._armed.last,
            averaged=self._ranks.together and self._ranks.replicated,
        )

    def case(self, failed: FailedStep, location: Location, incident: Incident, *, untouched: bool) -> Case:
        """The failed step with its place and the history of the run, as the rules take it."""
        from nantrap.causes import Case

        return Case(
            failed=failed,
            location=location,
            incident=incident,
            history=self._history(),
            scale=self._scaling.value(),
            max_grad_norm=self._max_grad_norm,
            anchors=self._anchors,
            ema_modules=tuple(self._protected.averages),
            scheduler=self._scheduler,
            state_untouched=untouched,
            loaded=self._progress.loaded,
            bad_before=self._protected.bad_before,
        )
