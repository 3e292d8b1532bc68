"""What one step is: its micro-batches, and the values of its one host read as plain numbers (`Reading`).

The gradients of a micro-batch are kept apart until it is known to be good.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nantrap.guard.diagnosed import Diagnosed
from nantrap.guard.loss import Loss
from nantrap.guard.torch_private import add_all
from nantrap.incident import Finding
from nantrap.locate import RngState, RootCall
from nantrap.locate.twoline.caller import Frame, seen_from

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
