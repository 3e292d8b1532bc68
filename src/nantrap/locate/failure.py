"""`Failure`: everything that is known of a step that failed, and how to run it again.

It is frozen: what is found out later, such as a way to compute the loss again, makes another one (`repeated_by`).
Everything is held by reference. `rewound` restores everything to just before the step, and afterwards to just after it:
parameters, buffers, optimizer state, gradients, random streams, and the generators and attributes of the program end as
they were found, whatever happened between. A hook may append what it sees to a list of its module (the activations of
which per-sample gradients are made), or put something on a parameter: afterwards each list holds what it held before,
and what is new is gone. What the user's code prints was printed when the step ran, and is not printed again. `fn` may
have side effects of other kinds (an iterator that it advances, a file); those happen again.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nantrap.incident import During, Phase
from nantrap.locate.nodes import leaves_below
from nantrap.locate.replay.program import schedules_in
from nantrap.locate.replay.rng import RngState
from nantrap.locate.replay.root_call import RootCall
from nantrap.locate.torch_private import post_hooks_of, without_post_hooks
from nantrap.locate.wrapping import layers_of
from nantrap.record import History

P = ParamSpec("P")
R = TypeVar("R")

_replays: list[int] = []
_OWN = frozenset(vars(nn.Module()))
_COLLECTS = (list, dict, set, deque)


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


class Beside(NamedTuple):
    """Another network of the same training: another guard of this process makes its steps, between those of this one.

    Attributes:
        parameters: those that its optimizer updates.
        rate: its highest learning rate.
        step: of its oldest state that is kept.
        value_of: the copy of a parameter in that state.
        updates: how many updates were made since then.
    """

    parameters: tuple[Tensor, ...]
    rate: float
    step: int
    value_of: Callable[[Tensor], Tensor | None]
    updates: int


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of the run around a step that failed.

    Attributes:
        history: the last steps.
        scale: the loss scale, if there is one.
        max_grad_norm: to what the guard clips.
        anchors: older states, from which trials run the steps since then again.
        beside: other networks of the same training, as far as an older state of them is kept.
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
    beside: tuple[Beside, ...] = ()
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
        undone: the update made the non-finite values, and was undone.
        evaluated: the optimizer evaluated the loss itself in its update, which is made with the loss computed again.
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
        during: what it was a part of; only a training step has gradients.
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
    undone: bool = False
    evaluated: bool = False
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
    during: During = "training"

    @property
    def repeatable(self) -> bool:
        """Whether the whole step, loss included, can be run again."""
        return self.forward is not None and self.rng is not None

    @property
    def calls(self) -> list[RootCall]:
        """The calls of the model that were seen, oldest first."""
        return [] if self.root_call is None else self.root_call.chain()

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

    def backward(self, roots: Tensor | Sequence[Tensor], gradients: Sequence[Tensor] | None = None) -> None:
        """The backward pass of a replay. The program may hold a part of the graph (what another network computed): that
        part is not freed, and the gradients of other parameters stay as they are.

        Args:
            roots: where it begins.
            gradients: those of the roots; 1 for a scalar if not given.
        """
        roots = [roots] if isinstance(roots, Tensor) else roots
        own = set(map(id, self.parameters.values()))
        others = [(leaf, leaf.grad) for leaf in leaves_below(*roots) if id(leaf) not in own]
        for leaf, _ in others:
            leaf.grad = None  # what is there would be added to in place
        try:
            torch.autograd.backward(roots, gradients, retain_graph=True)
        finally:
            for leaf, gradient in others:
                leaf.grad = gradient

    @property
    def can_update(self) -> bool:
        """Whether the update was at fault and can be made again."""
        return self.undone and (self.repeatable or not self.evaluated)

    def update(self, computes: Callable[[Any], Tensor] | None = None, batch: Any = None) -> None:
        """The optimizer's update, on the gradients that are there; where it evaluates the loss itself, on a batch.

        Args:
            computes: the loss of another step.
            batch: the batch of that step.
        """
        if not self.evaluated:
            self.optimizer.step()
            return
        if computes is None:
            assert self.forward is not None
            assert self.rng is not None
            computes, batch = self.forward, self.batch
            self.rng.restore()

        def evaluate() -> Tensor:
            for parameter in self.parameters.values():
                parameter.grad = None
            with torch.enable_grad():
                loss = computes(batch)
                self.backward(loss)
            return loss.detach()

        step: Any = self.optimizer.step
        step(evaluate)

    @contextlib.contextmanager
    def rewound(self) -> Iterator[None]:
        """Everything as just before the step; restored afterwards as it was found."""
        state = self.rng or (self.root_call.rng if self.root_call else None)
        found = RngState.capture() if state is None else state.now()
        modes = [(module, module.training) for module in self.root.modules()]
        gradients = [(parameter, parameter.grad) for parameter in self.parameters.values()]
        with contextlib.ExitStack() as undo:  # the last one first, and each of them even if another one fails
            undo.callback(_replays.pop)
            _replays.append(self.step)
            undo.callback(found.restore)
            undo.callback(_set_all, "training", modes)
            undo.callback(_set_all, "grad", gradients)
            if self.restore_update is not None:
                undo.callback(self.restore_update)
            undo.callback(self.restore_buffers)
            self.restore_buffers()
            if self.restore_update is not None:
                self.restore_update()
            for parameter in self.parameters.values():
                parameter.grad = None
            if state is not None:
                state.restore()
            # where the update itself failed, a hook after it may have made it fail: an average, say
            unseen = () if self.symptom == "optimizer" else layers_of(self.optimizer)
            with (
                self.quiet(), _silently(), without_post_hooks(unseen), _schedules_as_found(layers_of(self.optimizer)),
                _as_found(self.root.modules(), self.parameters.values()),
            ):  # fmt: skip
                yield


def _set_all(name: str, values: Iterable[tuple[Any, Any]]) -> None:
    """An attribute of many objects, each with its value."""
    for owner, value in values:
        setattr(owner, name, value)


# ---- what the program must not notice of a replay


@contextlib.contextmanager
def _as_found(modules: Iterable[nn.Module], tensors: Iterable[Tensor]) -> Iterator[None]:
    """Afterwards the attributes of these modules and tensors are as they were, and so is what their containers hold."""
    owners = [module for module in modules if not type(module).__module__.startswith("torch.distributed.")]
    plain = [tensor for tensor in tensors if type(tensor) in (nn.Parameter, Tensor)]  # shards have a life of their own
    kept = [(vars(owner), _attributes(owner)) for owner in (*owners, *plain)]
    try:
        yield
    finally:
        for attributes, before in kept:
            for name in [name for name in attributes if name not in before and name not in _OWN]:
                del attributes[name]
            for name, (value, content) in before.items():
                attributes[name] = value
                if content is not None:
                    _refill(value, content)


@contextlib.contextmanager
def _schedules_as_found(optimizers: Iterable[Optimizer]) -> Iterator[None]:
    """Afterwards the schedules that hooks of these optimizers advance are where they were."""
    hooks = [hook for optimizer in optimizers for hook in post_hooks_of(optimizer).values()]
    kept = [(vars(schedule), dict(vars(schedule))) for schedule in schedules_in(hooks)]
    try:
        yield
    finally:
        for attributes, before in kept:
            attributes.update(before)


def _attributes(owner: Any) -> dict[str, tuple[Any, Any]]:
    """The attributes of the program by name, each with a copy of its content if it is a container."""
    return {
        name: (value, value.copy() if type(value) in _COLLECTS else None)
        for name, value in vars(owner).items()
        if name not in _OWN
    }


def _refill(container: Any, content: Any) -> None:
    container.clear()
    if isinstance(container, (dict, set)):
        container.update(content)
    else:
        container.extend(content)


class _Muted:
    """A stream without what one thread writes; everything else is that of the stream below."""

    def __init__(self, below: Any) -> None:
        self._below = below
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        """Write the text, unless it comes from the thread of the replay."""
        if threading.get_ident() == self._thread:
            return len(text)
        written: int = self._below.write(text)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)


@contextlib.contextmanager
def _silently() -> Iterator[None]:
    """No warning, and nothing on stdout from this thread. A sample that is run alone makes torch warn of its size."""
    below = sys.stdout
    if isinstance(below, _Muted) or below is None:
        yield
        return
    muted: Any = _Muted(below)
    sys.stdout = muted
    try:
        with without_warnings():
            yield
    finally:
        if sys.stdout is muted:
            sys.stdout = below


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """No warning is shown, and Python does not forget which ones it has shown already.

    `warnings.catch_warnings` makes it forget all of them, when it is entered and when it is left: a warning that
    PyTorch gives once for a line would come again after every replay. So the filter is put into the list as it is.
    """
    filters: list[Any] = cast("list[Any]", warnings.filters)
    ignore = ("ignore", None, Warning, None, 0)
    always = torch.is_warn_always_enabled()
    filters.insert(0, ignore)
    torch.set_warn_always(True)  # what torch says only once is not used up
    try:
        yield
    finally:
        torch.set_warn_always(always)
        with contextlib.suppress(ValueError):  # the program has emptied the list meanwhile
            filters.remove(ignore)


class _Called(torch.autograd.Function):
    """Calls a function from inside of torch, which thereby hands the warnings of its operations to Python."""

    @staticmethod
    def forward(_ctx: Any, call: Callable[[], None]) -> None:
        """Call it. Autograd has switched gradients off; the call may switch them on."""
        call()


def without_printed_warnings(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose operations print no warnings.

    A warning of an operation that Python calls by itself (`torch.ops.aten.std`), as trials and rules do with recorded
    ones, does not become one of Python: torch writes it to stderr. It does become one while a method of torch is
    running further up the stack.
    """

    @functools.wraps(function)
    def quiet(*args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function from inside of torch, with gradients as they are outside."""
        found: list[R] = []
        enabled = torch.is_grad_enabled()

        def call() -> None:
            with torch.set_grad_enabled(enabled):
                found.append(function(*args, **kwargs))

        with without_warnings():
            _Called.apply(call)  # type: ignore[no-untyped-call]
        return found[0]

    return quiet
