"""What one step is made of, and what it ends with. Data, and the few things that data can say of themselves.

Loss       as the user gives it: a scalar tensor, or a dict of named terms whose sum is the loss
Micro      one backward pass: its loss, and by what it can be run again
Window     the micro-batches of the step. The gradients of each are kept apart until it is known to be good
Reading    the values of the one host read of the step, as plain numbers
Diagnosed  the incident of a failed step, before it is known what is done with it: nothing of it is written, printed or
           counted yet. `Diagnosed.finish` makes the final incident, by adding what had to wait for the action
Outcome    the result of the step
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nantrap.errors import UsageError
from nantrap.guard.torch_private import add_all
from nantrap.incident import Action, Decider, Finding, Incident
from nantrap.locate import RngState, RootCall
from nantrap.locate.source import with_cell_name
from nantrap.locate.twoline.caller import Frame, seen_from
from nantrap.record import Material

LossLike = Tensor | Mapping[str, "Tensor | float"]


NO_TERMS: dict[str, Tensor] = {}


@dataclass(slots=True)
class Loss:
    """The total with its graph, and each term's values without one."""

    total: Tensor
    terms: dict[str, Tensor]

    def scalars(self) -> list[Tensor]:
        """The total, then every value of every term, as detached scalars in a fixed order."""
        flat = [self.total.detach().reshape(())]
        for term in self.terms.values():
            flat += [term] if term.dim() == 0 else list(term.reshape(-1).unbind())
        return flat

    def named(self, values: list[float]) -> dict[str, float]:
        """Term values as read (without the total), by name; entries of a vector term are `heads[3]`."""
        names: list[str] = []
        for name, term in self.terms.items():
            names += [name] if term.dim() == 0 else [f"{name}[{i}]" for i in range(term.numel())]
        return dict(zip(names, values, strict=True))


def as_loss(given: LossLike) -> Loss:
    """Check what was given and add up the terms, in order, as the user would have written it."""
    if isinstance(given, Tensor):
        loss = Loss(given, {})
    elif isinstance(given, Mapping) and not hasattr(given, "loss"):  # the outputs of a model are a dict with that too
        loss = _from_terms(given)
    else:
        raise UsageError(
            f"the loss must be a scalar tensor or a dict of named terms, got {type(given).__name__}. {_remedy(given)}"
        )
    total = loss.total
    if total.numel() != 1:
        raise UsageError(
            f"the loss has shape {tuple(total.shape)}; backward needs a scalar. Reduce it, e.g. loss.mean(), or give a "
            "dict of named terms"
        )
    if not total.requires_grad:
        raise UsageError(
            "the loss has no graph, so nothing can learn from it. This happens when it was computed under "
            "torch.no_grad() or inference_mode, when .detach(), .item() or a new torch.tensor(...) cut it off, when "
            "every parameter it depends on is frozen, or when a batch contributes no term at all (e.g. no masked "
            "token); skip such a batch before the guard"
        )
    return loss


def _remedy(given: object) -> str:
    """What to do about a loss that is neither a tensor nor a dict."""
    if given is None:
        return "Does the function that computes it end with `return loss`?"
    if isinstance(given, (tuple, list)):
        return "Give the loss alone, without the outputs of the model"
    if hasattr(given, "loss"):
        return "Give its .loss"
    return "If it is a float: .item() or float() cut it off from the graph"


def _from_terms(terms: Mapping[str, Tensor | float]) -> Loss:
    """The sum of named terms; a vector counts as the sum of its heads."""
    if not terms:
        raise UsageError("the loss is an empty dict; give at least one named term")
    tensors: dict[str, Tensor] = {}
    summands: list[Tensor] = []
    for name, term in terms.items():
        if not isinstance(term, (Tensor, int, float)):
            raise UsageError(
                f"loss term {name!r} is a {type(term).__name__}; a term is a scalar tensor or a number"
                + (": leave it out" if term is None else "")
            )
        tensor = term if isinstance(term, Tensor) else torch.tensor(float(term))
        if tensor.dim() > 1:
            raise UsageError(
                f"loss term {name!r} has shape {tuple(tensor.shape)}; a term is a scalar, or one value per head"
            )
        summands.append(tensor if tensor.dim() == 0 else tensor.sum())
        tensors[str(name)] = tensor.detach()
    return Loss(functools.reduce(operator.add, summands), tensors)


def without_terms(given: Mapping[str, Tensor | float], bad: set[str]) -> dict[str, Tensor | float]:
    """The terms that are left when the bad ones are dropped; a vector term keeps its good heads under their names."""
    kept: dict[str, Tensor | float] = {}
    for name, term in given.items():
        if name in bad:
            continue
        heads = [f"{name}[{i}]" for i in range(term.numel())] if isinstance(term, Tensor) and term.dim() == 1 else []
        if isinstance(term, Tensor) and bad.intersection(heads):
            kept.update({head: term[i] for i, head in enumerate(heads) if head not in bad})
        else:
            kept[name] = term
    return kept


MOST_WHOLE = 16
"""So many micro-batches of a step are kept with all that a replay needs."""
_SMALL = 256 * 2**10
_MOST_SMALL = 1024


@dataclass(slots=True)
class Micro:
    """One backward pass: its loss, and by what it can be run again.

    Attributes:
        loss: the loss with its graph, and its terms.
        factor: what the loss is multiplied by before backward.
        batch: the micro-batch, in `attempt`.
        forward: computes the loss of a batch, in `attempt`.
        rng: the random streams before the forward pass, in `attempt`.
        root_call: the model's call, in the two-line form and under `nantrap run`.
        versions: how often the tensors of the batch had been written before the forward pass.
        values: the loss and its terms as read; `None` before they were read, empty if there was no loss.
        evidence: what a walk through the live graph found, or what the loss's own nodes saved.
        given: the loss terms with their graphs, where these are kept until the step is judged.
        absent: the terms that were left out because their values are bad.
        position: epoch and batch of the data loader, under `nantrap run` and in frameworks.
        frames: where the program ran its backward pass, where its loss is read later than that.
    """

    loss: Loss
    factor: float = 1.0
    batch: Any = None
    forward: Any = None
    rng: RngState | None = None
    root_call: RootCall | None = None
    versions: dict[str, int] | None = None
    values: list[float] | None = None
    evidence: Any = None
    given: Mapping[str, Tensor | float] | None = None
    absent: frozenset[str] = frozenset()
    position: tuple[int | None, int | None] | None = None
    frames: Sequence[Frame] = ()

    def seen_from_there(self) -> AbstractContextManager[None]:
        """The program appears to be where it ran the backward pass of this micro-batch."""
        return seen_from(self.frames) if self.frames else contextlib.nullcontext()

    def terms(self, values: Sequence[float]) -> dict[str, float]:
        """The named terms of the loss as they enter the step, from the values of the loss and its terms."""
        return {name: value * self.factor for name, value in self.loss.named(list(values[1:])).items()}

    @property
    def bad(self) -> bool:
        """Whether its loss or one of its terms was read and is non-finite."""
        return self.values is not None and not all(map(math.isfinite, self.values))


@dataclass(slots=True)
class Window:
    """The micro-batches of the step that is being made.

    Attributes:
        started: when, by `time.perf_counter`.
        whole: the gradients add up in the parameters, as in the plain loop, and are never kept apart.
        micros: the micro-batches.
        judged: how many of them were judged one by one.
        buffers_unjudged: the buffers of a judged micro-batch could not be judged with it.
        good: how many of them are in `loss`.
        dropped: how many take no part in the step.
        left_by_script: how many of these the script itself left out.
        loss: the sum of the good losses.
        terms: the sum of their terms by name.
        accumulated: the gradients of the judged ones.
        diagnosed: the incidents of the dropped ones, and what was done, in words.
        findings: loss terms whose values are bad, and which were left out.
        left_out: the names of all loss terms that were left out.
        given_up: the script itself did not make this step.
        probes_scale: a GradScaler left the step out while it searches its scale.
        repeated: the script makes the last update once more; the journal has a line for it already.
        bad_before_repair: what was seen when the script tested a gradient that was not finite.
        bad_left_out: bad losses and gradients that the script itself left out of this step.
        without_gradient: the script gave the step up before its backward pass, so there is no gradient norm.
    """

    started: float
    whole: bool = False
    micros: list[Micro] = field(default_factory=list)
    judged: int = 0
    buffers_unjudged: bool = False
    good: int = 0
    dropped: int = 0
    left_by_script: int = 0
    loss: float = 0.0
    terms: dict[str, float] = field(default_factory=dict)
    accumulated: list[Tensor | None] | None = None
    diagnosed: list[tuple[Diagnosed, str]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    given_up: bool = False
    probes_scale: bool = False
    repeated: bool = False
    without_gradient: bool = False
    bad_before_repair: Any = None
    bad_left_out: int = 0

    @property
    def has_unjudged(self) -> bool:
        """Whether its last micro-batch was not judged yet."""
        return self.judged < len(self.micros)

    @property
    def separate(self) -> bool:
        """Whether the gradients of its micro-batches were kept apart, so that a bad one could be dropped."""
        return not self.whole and bool(self.judged or self.dropped)

    def release_earlier(self) -> None:
        """Let go of what an earlier good micro-batch would be replayed with, unless that is small: a program may add
        up many, or never make the step. Call it once for each micro-batch beyond `MOST_WHOLE`."""
        micro = self.micros[-MOST_WHOLE - 1]
        if micro.bad:
            return
        micro.evidence = micro.given = None
        micro.loss = Loss(micro.loss.total.detach(), micro.loss.terms)
        micro.frames = ()
        call = micro.root_call
        if call is not None and (len(self.micros) > _MOST_SMALL or sum(c.kept_bytes() for c in call.chain()) > _SMALL):
            micro.root_call = None

    def count(self, micro: Micro) -> None:
        """A micro-batch whose loss and terms enter those of the step."""
        assert micro.values is not None
        self.good += 1
        if not micro.values:  # its loss was not seen
            self.loss = math.nan
            return
        self.loss += micro.values[0] * micro.factor
        for name, value in micro.terms(micro.values).items():
            self.terms[name] = self.terms.get(name, 0.0) + value

    def stash(self, parameters: list[nn.Parameter]) -> None:
        """Add the gradients that are in the parameters to those kept aside, and clear them."""
        fresh = [p.grad for p in parameters]
        for parameter in parameters:
            parameter.grad = None
        if self.accumulated is None:
            self.accumulated = list(fresh)
            return
        targets, sources = [], []
        for i, gradient in enumerate(fresh):
            kept = self.accumulated[i]
            if gradient is None:
                continue
            if kept is None:
                self.accumulated[i] = gradient
            elif kept.is_sparse or gradient.is_sparse:
                self.accumulated[i] = kept + gradient
            else:
                targets.append(kept)
                sources.append(gradient)
        if targets:
            with torch.no_grad():
                add_all(targets, sources)

    def unstash(self, parameters: list[nn.Parameter], *, scale: float) -> None:
        """Put the kept gradients back, multiplied by `scale` where micro-batches were dropped."""
        if self.accumulated is None:
            return
        for parameter, gradient in zip(parameters, self.accumulated, strict=True):
            if gradient is not None and scale != 1.0:
                gradient = gradient * scale
            parameter.grad = gradient
        self.accumulated = None


NOTHING: Mapping[str, float] = {}


class Reading(NamedTuple):
    """What was read of a step.

    Attributes:
        norm: the total gradient norm, unscaled, before clipping.
        loss: the loss of the step; of a bad step, that of the micro-batch at fault.
        terms: its named terms.
        rates: the learning rates in force.
        watch: watched values by name.
        scale: the loss scale, or `None`.
        buffers_bad: whether the forward pass made buffers non-finite.
        guilty: the first micro-batch whose loss is bad.
    """

    norm: float = math.nan
    loss: float = math.nan
    terms: Mapping[str, float] = NOTHING
    rates: tuple[float, ...] = ()
    watch: Mapping[str, float] = NOTHING
    scale: float | None = None
    buffers_bad: bool = False
    guilty: Micro | None = None


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """An incident whose action is not known yet, and what its bundle needs to run the step again.

    Attributes:
        incident: where the failure began, why, and what was tried.
        material: what a bundle needs to run the step again.
        worth_a_bundle: whether there is anything to write.
        avoidable: the step was run again without the guilty samples, and was finite.
        same_value: the step was given the very value of the program that spoiled the one before it.
        notes: what is said after the incident's own notes.
    """

    incident: Incident
    material: Material | None = None
    worth_a_bundle: bool = False
    avoidable: bool = False
    same_value: bool = False
    notes: tuple[str, ...] = ()

    def noting(self, *words: str) -> Diagnosed:
        """Adds notes at the end."""
        return replace(self, notes=(*self.notes, *words))

    def noting_first(self, words: str) -> Diagnosed:
        """Adds a note at the beginning."""
        return self.with_incident(replace(self.incident, notes=(words, *self.incident.notes)))

    def with_incident(self, incident: Incident) -> Diagnosed:
        """Replaces the incident."""
        return replace(self, incident=incident)

    def finish(
        self, action: Action, *, decided_by: Decider = "nantrap", restored: Sequence[str] | None = None
    ) -> Incident:
        """The final incident.

        Args:
            action: what was done with the step.
            decided_by: who decided that.
            restored: what is not as before the step; empty if everything was checked to be, `None` if that was not
                the aim.
        """
        notes = self.incident.notes
        if restored:
            notes = (f"not restored to the values before the step: {', '.join(restored)}", *notes)
        return replace(
            self.incident,
            action=action,
            decided_by=decided_by,
            source=with_cell_name(self.incident.source),
            restored=None if restored is None else not restored,
            notes=(*notes, *self.notes),
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one step.

    Where steps are read late (`Policy(sync=...)`), this step has not been read yet: `applied` and `action` say what was
    launched, and `loss`, `grad_norm`, `terms` and `incident` are those of the step before: `loss_step` says which.

    Attributes:
        applied: whether the weights moved.
        action: `apply`, `skip`, `rollback` or `stop`.
        step: 0-based count of attempted steps.
        loss: the mean loss of the step's micro-batches, as given to the guard; a float.
        grad_norm: the total gradient norm before clipping; a float.
        incident: what went wrong (`incident.cause` says why), or `None`. A `GradScaler` probing its scale skips without
            an incident.
        terms: the named loss terms, if the loss was given as a dict.
        loss_step: the step that `loss`, `grad_norm` and `terms` belong to.
    """

    applied: bool
    action: Action
    step: int
    loss: float
    grad_norm: float
    incident: Incident | None = None
    terms: Mapping[str, float] = field(default_factory=dict)
    loss_step: int = 0
