"""What a healthy step keeps by reference, so that a failed one can be examined: the model's call, and the loss's part.

In the two-line form and under `nantrap run` the loss function cannot be called again, and `backward` frees what its
nodes saved. So the model's call is noted (`RootCall`), and while a step is still healthy references to the small
tensors between the model's output and the loss are taken (`note_loss_part`). Both run in every step.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nantrap.locate.batch import tensors_of
from nantrap.locate.nodes import tensor_names
from nantrap.locate.rng import RngState
from nantrap.locate.source import Place
from nantrap.locate.torch_private import raw_tensor, sequence_of

_COTANGENT_BYTES = 64 * 2**20
_OUTPUT_BYTES = 4 * 2**20
_MOST_CALLS = 32
_NEAR = 32
_MOST_NODES = 64
_LARGEST_BYTES = 4 * 2**20
detached = Tensor.detach
"""PyTorch's own method: under `nantrap run` the name in the class leads to a function that follows the script."""

_NEVER_SINGULAR = frozenset(
    {"NllLossBackward0", "NllLoss2DBackward0", "LogSoftmaxBackward0", "MseLossBackward0", "SmoothL1LossBackward0",
     "HuberLossBackward0", "BinaryCrossEntropyWithLogitsBackward0", "AbsBackward0", "MeanBackward0", "MeanBackward1",
     "SumBackward0", "SumBackward1", "AddBackward0", "SubBackward0", "NegBackward0", "ViewBackward0", "TBackward0",
     "ReshapeAliasBackward0", "UnsafeViewBackward0", "TransposeBackward0", "PermuteBackward0", "SqueezeBackward0",
     "SqueezeBackward1", "UnsqueezeBackward0", "SliceBackward0", "SelectBackward0", "CloneBackward0"}
)  # fmt: skip
"""Nodes whose derivative is finite for every finite input, in any precision the forward pass survived."""


@dataclass(slots=True)
class RootCall:
    """A call of the model (or of a submodule directly) in the two-line form: what is needed to run it again.

    Attributes:
        args: positional arguments, by reference.
        kwargs: keyword arguments, by reference.
        rng: random streams before the call.
        autocast: device and dtype of the autocast region around it.
        nodes: autograd nodes of its outputs: where the model's part of the graph ends.
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
    module: nn.Module | None = None
    previous: RootCall | None = None
    outputs: dict[Any, tuple[Tensor, int]] = field(default_factory=dict)
    running: bool = True
    place: Place | None = None
    loaded: bool = False
    passed: bool = False
    stream: Tensor | None = None
    alive: list[weakref.ref[Tensor]] = field(default_factory=list)
    _arrived: list[tuple[str, int, deque[tuple[Tensor | None, ...]]]] = field(default_factory=list)

    @property
    def cotangents(self) -> dict[str, Tensor]:
        """The gradient that came back to each output, by path."""
        found: dict[str, Tensor] = {}
        for path, number, gradients in self._arrived:
            gradient = gradients[-1][number] if gradients else None
            if gradient is not None:
                found[path] = gradient
        return found

    def watch_output(self, output: Any) -> None:
        """Remember where the model's part of the graph ends, and the gradient that comes back to it."""
        self.running = False
        for path, tensor in (("batch", output),) if isinstance(output, Tensor) else tensors_of(output):
            node = tensor.grad_fn
            if node is not None:
                self.nodes.add(node)
                self.alive.append(weakref.ref(tensor))
                number, size = tensor.output_nr, tensor.nbytes
                if size <= _OUTPUT_BYTES:
                    self.outputs[node] = (detached(tensor), number)
                if size <= _COTANGENT_BYTES:
                    # on the node and not on the tensor, where a hook costs three times as much; and a queue of length
                    # one instead of a function of ours: backward then calls no Python code
                    gradients: deque[tuple[Tensor | None, ...]] = deque(maxlen=1)
                    node.register_prehook(gradients.append)
                    self._arrived.append((path, number, gradients))

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


@dataclass(slots=True)
class LossPart:
    """Nodes from the loss down to the model's outputs, breadth first, and the tensors each of them saved."""

    loss: Tensor
    nodes: list[Any]
    saved: list[tuple[Any, ...] | None]
    boundary: Any = field(default_factory=set)

    def saved_by(self, sequence: int) -> tuple[Tensor, ...]:
        """The tensors that the node with this sequence number saved."""
        for node, saved in zip(self.nodes, self.saved, strict=True):
            if saved is not None and sequence_of(node) == sequence:
                return tuple(tensor for tensor in saved if isinstance(tensor, Tensor))
        return ()


def note_loss_part(loss: Tensor, call: RootCall | None) -> LossPart | None:
    """Hold on to what the nodes between loss and model saved. Runs in every healthy two-line step, so it is short."""
    root = loss.grad_fn
    if root is None:
        return None
    boundary: Any = ()
    if call is not None:
        boundary = call.nodes if call.previous is None else set().union(*(one.nodes for one in call.chain()))
        if not boundary or root in boundary:  # the model computes its own loss, or its outputs cannot be recognised
            return None
    nodes: list[Any] = [root]
    seen = {root}
    singular = False
    for node in nodes:  # grows while it is walked
        singular = singular or type(node).__name__ not in _NEVER_SINGULAR
        for below, _ in node.next_functions:
            if below is not None and below not in seen and below not in boundary and len(nodes) < _MOST_NODES:
                seen.add(below)
                nodes.append(below)
    if not singular:  # the usual losses: the derivative is bounded everywhere, so there is nothing to look for later
        return None
    saved: list[tuple[Any, ...] | None] = []
    for node in nodes:
        names = tensor_names(type(node))
        saved.append(tuple([_reference(node, name) for name in names]) if names else None)
    return LossPart(detached(loss), nodes, saved, boundary)


def _reference(node: Any, name: str) -> Any:
    """What a node saved, unless it is freed or too large to keep."""
    try:
        value = raw_tensor(node, name)
    except (RuntimeError, AttributeError):
        return None
    return None if isinstance(value, Tensor) and value.nbytes > _LARGEST_BYTES else value
