"""`Failure`: everything that is known of a step that failed, and how to run it again.

It is frozen: what is found out later, such as a way to compute the loss again, makes another one (`repeated_by`).
Everything is held by reference. `rewound` restores everything to just before the step, and afterwards to just after it:
parameters, buffers, optimizer state, gradients, random streams, and the generators and attributes of the program end as
they were found, whatever happened between. `fn` may have side effects of other kinds (a log line, an iterator that it
advances); those happen again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from nantrap.incident import Phase
from nantrap.locate.replay.rng import RngState
from nantrap.locate.replay.root_call import RootCall
from nantrap.locate.replay.undisturbed import as_found, silently
from nantrap.record import History

_replays: list[int] = []


active_replays = _replays
"""Empty unless a failed step is being run again: what `is_replaying` reads, for code that runs in every step."""


def is_replaying() -> bool:
    """Whether a failed step is being run again: hooks of guards, this one's and others', then do nothing."""
    return bool(_replays)


class Part(NamedTuple):
    """What a run of a step gave: of one rank, or of all of them together.

    Attributes:
        finite: loss, gradients, buffers and, after an update, parameters and optimizer state.
        loss: the loss, if it was computed; that of this rank.
        bad: the parameters whose gradients are non-finite, on any rank.
    """

    finite: bool
    loss: float | None = None
    bad: tuple[str, ...] = ()


class Crew(Protocol):
    """The other ranks, which run their parts of the step at the same time as this one."""

    def step(
        self,
        described: tuple[Any, ...],
        around: contextlib.AbstractContextManager[Any] | None,
        *,
        batch: Any = None,
        seed: float | None = None,
    ) -> Part:
        """The step once more by all ranks.

        Args:
            described: what is changed on all of them, as plain data.
            around: the same, as a context for this rank.
            batch: another batch for this rank, in a tuple of one; `None` for its own.
            seed: the factor of the loss on all ranks, if it is changed.
        """

    def steps(self, since: int, rates: Mapping[int, tuple[float, ...]]) -> Part:
        """The steps since an older state, and the failed one, by all ranks with these learning rates."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of the run around a step that failed.

    Attributes:
        history: the last steps.
        scale: the loss scale, if there is one.
        max_grad_norm: to what the guard clips.
        anchors: older states, from which trials run the steps since then again.
        ema_modules: averages of the weights.
        scheduler: the guard's scheduler, or `None`.
        untouched: whether parameters and optimizer state are those that the last step left; `None` if not known.
        loaded: what was not finite when `load_state_dict` ended, since the last step.
        bad_before: what has been non-finite for longer and takes no part in the steps, with the step it was seen at.
        checksums: of the parameters on each rank, where they differ.
    """

    history: History = field(default_factory=History)
    scale: float | None = None
    max_grad_norm: float | None = None
    anchors: Any = None
    ema_modules: tuple[nn.Module, ...] = ()
    scheduler: Any = None
    untouched: bool | None = None
    loaded: frozenset[str] | None = None
    bad_before: Mapping[str, int] = field(default_factory=dict)
    checksums: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """A step that went wrong, with the means to run it again.

    Attributes:
        step: number of the step.
        root: the user's model, unwrapped.
        parameters: every guarded parameter by name.
        optimizer: the optimizer.
        symptom: the phase in which the guard noticed it.
        loss: the loss tensor of the failed pass.
        loss_value: the loss as it was read.
        loss_factor: what the loss was multiplied by before backward (loss scale, 1/micro-batches).
        gradients: the gradients as the failed pass left them, by parameter name.
        forward: computes the loss of a batch again; `None` in the two-line form.
        batch: the failing micro-batch.
        batch_versions: version counters of the batch's tensors before the step, by path.
        rng: random streams just before the forward pass.
        root_call: the root module's call, in the two-line form.
        restore_buffers: puts the buffers as before the step.
        restore_update: puts parameters and optimizer state as before the update; set where an update was undone.
        run_update: the update itself, on the gradients of the failed step.
        bad_buffers: names of buffers, and of parameters without a gradient, that the forward pass made non-finite.
        written_between: names of parameters without a gradient that were finite after the last good step and that the
            program wrote since with non-finite values.
        deliberate: names of buffers that were non-finite before the first step and are left so.
        norm_overflowed: every gradient is finite, but their norm is not.
        evidence: findings of a walk through the live graph, in the two-line form.
        quiet: context in which a re-run must not communicate with other ranks.
        averaged: the gradients are averages over several ranks, which one of them alone does not get again.
        crew: the other ranks, where the step is run again by all of them.
        tape: the trace of the step itself, if it ran under one.
        run: what is known of the run around it.
    """

    step: int
    root: nn.Module
    parameters: Mapping[str, nn.Parameter]
    optimizer: Optimizer
    symptom: Phase
    loss: Tensor | None
    loss_value: float
    gradients: Mapping[str, Tensor]
    restore_buffers: Callable[[], None]
    loss_factor: float = 1.0
    forward: Callable[[Any], Tensor] | None = None
    batch: Any = None
    batch_versions: Mapping[str, int] = field(default_factory=dict)
    rng: RngState | None = None
    root_call: RootCall | None = None
    restore_update: Callable[[], None] | None = None
    run_update: Callable[[], None] | None = None
    bad_buffers: tuple[str, ...] = ()
    written_between: tuple[str, ...] = ()
    deliberate: tuple[str, ...] = ()
    norm_overflowed: bool = False
    evidence: Any = None
    quiet: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    tape: Any = None
    averaged: bool = False
    crew: Crew | None = None
    run: RunFacts = field(default_factory=RunFacts)

    @property
    def repeatable(self) -> bool:
        """Whether the whole step, loss included, can be run again."""
        return self.forward is not None and self.rng is not None

    def repeated_by(self, forward: Callable[[Any], Tensor], batch: Any, rng: RngState) -> Failure:
        """This step with a way to run it again.

        Args:
            forward: computes the loss of a batch.
            batch: the batch of the step.
            rng: the random streams at which `forward` begins.
        """
        return replace(self, forward=forward, batch=batch, rng=rng)

    def bad_state(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors of `bad_buffers` as they are now, each with its kind and name: `buffer norm.running_var`."""
        wanted = set(self.bad_buffers)
        yield from ((f"buffer {name}", b) for name, b in self.root.named_buffers() if name in wanted)
        yield from ((f"parameter {name}", p) for name, p in self.root.named_parameters() if name in wanted)

    @contextlib.contextmanager
    def rewound(self) -> Iterator[None]:
        """Everything as just before the step; restored afterwards as it was found."""
        state = self.rng or (self.root_call.rng if self.root_call else None)
        found = RngState.capture() if state is None else state.now()
        modes = [(module, module.training) for module in self.root.modules()]
        gradients = [(parameter, parameter.grad) for parameter in self.parameters.values()]
        _replays.append(self.step)
        try:
            self.restore_buffers()
            if self.restore_update is not None:
                self.restore_update()
            for parameter in self.parameters.values():
                parameter.grad = None
            if state is not None:
                state.restore()
            with self.quiet(), silently(), as_found(self.root.modules(), self.parameters.values()):
                yield
        finally:
            self.restore_buffers()
            if self.restore_update is not None:
                self.restore_update()
            for parameter, gradient in gradients:
                parameter.grad = gradient
            for module, training in modes:
                module.training = training
            found.restore()
            _replays.pop()
