"""`FailedStep`: what the guard passes on when a step has failed, and how to run it again.

Everything is held by reference. `rewound` restores everything to just before the step, and afterwards to just after it:
parameters, buffers, optimizer state, gradients, random streams, and the generators and attributes of the program end as
they were found, whatever happened between. `fn` may have side effects of other kinds (a log line, an iterator that it
advances); those happen again.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nantrap.incident import Phase
from nantrap.locate.batch import tensors_of
from nantrap.locate.rng import RngState
from nantrap.locate.source import Place

_COTANGENT_BYTES = 64 * 2**20
_OUTPUT_BYTES = 4 * 2**20
_MOST_CALLS = 32
_NEAR = 32


_replays: list[int] = []


active_replays = _replays
"""Empty unless a failed step is being run again: what `is_replaying` reads, for code that runs in every step."""


def is_replaying() -> bool:
    """Whether a failed step is being run again: hooks of guards, this one's and others', then do nothing."""
    return bool(_replays)


@dataclass(slots=True)
class RootCall:
    """A call of the model (or of a submodule directly) in the two-line form: what is needed to run it again.

    Attributes:
        args: positional arguments, by reference.
        kwargs: keyword arguments, by reference.
        rng: random streams before the call.
        autocast: device and dtype of the autocast region around it.
        nodes: autograd nodes of its outputs: where the model's part of the graph ends.
        cotangents: the gradient that came back to each output, by path.
        module: the module that was called; `None` for the root.
        previous: an earlier call of the same step.
        outputs: the output values by node, with the node's output number; large ones are not kept.
        running: the forward pass has not ended yet.
        place: the user's line that made the call.
        loaded: its inputs are a batch as a data loader gave it.
        passed: the program's loop has moved on, so its variables belong to a later batch.
        alive: weak references to the outputs: whether any of them is still in use.
        stream: torch's random stream on the CPU when the step before ended.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rng: RngState
    autocast: tuple[str, torch.dtype] | None
    nodes: set[Any] = field(default_factory=set)
    cotangents: dict[str, Tensor] = field(default_factory=dict)
    module: nn.Module | None = None
    previous: RootCall | None = None
    outputs: dict[Any, tuple[Tensor, int]] = field(default_factory=dict)
    running: bool = True
    place: Place | None = None
    loaded: bool = False
    passed: bool = False
    stream: Tensor | None = None
    alive: list[weakref.ref[Tensor]] = field(default_factory=list)

    def watch_output(self, output: Any) -> None:
        """Remember where the model's part of the graph ends, and the gradient that comes back to it."""
        self.running = False
        for path, tensor in (("batch", output),) if isinstance(output, Tensor) else tensors_of(output):
            node = tensor.grad_fn
            if node is not None:
                self.nodes.add(node)
                self.alive.append(weakref.ref(tensor))
                if tensor.nbytes <= _OUTPUT_BYTES:
                    self.outputs[node] = (tensor.detach(), tensor.output_nr)
                if tensor.nbytes <= _COTANGENT_BYTES:
                    # on the node and not on the tensor: a tensor's hook costs three times as much
                    node.register_prehook(functools.partial(_keep, self.cotangents, path, tensor.output_nr))

    def after(self, previous: RootCall | None) -> None:
        """Join the earlier calls whose outputs are still in use: those of this step, not of a validation loop.

        In use means that something still references the output, or that this call's inputs were computed from it.
        """
        feeding = _nodes_above(self.args, self.kwargs) if previous is not None else set()
        kept: list[RootCall] = []
        while previous is not None and len(kept) < _MOST_CALLS:
            if any(ref() is not None for ref in previous.alive) or not feeding.isdisjoint(previous.nodes):
                kept.append(previous)
                feeding |= _nodes_above(previous.args, previous.kwargs)
            previous = previous.previous
        later = self
        for call in kept:
            later.previous = call
            later = call
        later.previous = None

    def chain(self) -> list[RootCall]:
        """The calls of the step, oldest first."""
        calls = [self]
        while (earlier := calls[-1].previous) is not None:
            calls.append(earlier)
        return calls[::-1]


def _nodes_above(args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[Any]:
    """The last few nodes that made a call's inputs."""
    nodes = [t.grad_fn for _, t in tensors_of((args, kwargs)) if t.grad_fn is not None]
    for node in nodes:  # grows while it is walked
        if len(nodes) >= _NEAR:
            break
        nodes += [below for below, _ in node.next_functions if below is not None]
    return set(nodes)


def _keep(cotangents: dict[str, Tensor], path: str, number: int, gradients: tuple[Tensor | None, ...]) -> None:
    """Note the gradient that reaches one output of a node."""
    gradient = gradients[number]
    if gradient is not None:
        cotangents[path] = gradient


@dataclass(slots=True)
class FailedStep:
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
        norm_overflowed: every gradient is finite, but their norm is not.
        evidence: findings of a walk through the live graph, in the two-line form.
        quiet: context in which a re-run must not communicate with other ranks.
        tape: the trace of the step itself, if it ran under one.
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
    norm_overflowed: bool = False
    evidence: Any = None
    quiet: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    tape: Any = None

    @property
    def repeatable(self) -> bool:
        """Whether the whole step, loss included, can be run again."""
        return self.forward is not None and self.rng is not None

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
            with self.quiet():
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
