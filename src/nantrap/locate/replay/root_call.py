"""What a healthy step keeps by reference, so that a failed one can be examined: the model's call, and the loss's part.

In the two-line form and under `nantrap run` the loss function cannot be called again, and `backward` frees what its
nodes saved. So the model's call is noted (`RootCall`), and while a step is still healthy references to the small
tensors between the model's output and the loss are taken (`note_loss_part`). Both run in every step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import setitem
from types import CodeType, FrameType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from nantrap.finite import size_in_bytes
from nantrap.locate.batch import tensors_of
from nantrap.locate.nodes import tensor_names
from nantrap.locate.replay.rng import RngState
from nantrap.locate.source import Place, place_of
from nantrap.locate.torch_private import carry_hooks, has_hooks, hook_adder, raw_tensor, sequence_of
from nantrap.locate.twoline.caller import FrameworkCall

_COTANGENT_BYTES = 64 * 2**20
_OUTPUT_BYTES = 4 * 2**20
MOST_CALLS = 32
_NEAR = 32
_MOST_NODES = 64
_LARGEST_BYTES = 4 * 2**20
_COMPREHENSIONS = ("<listcomp>", "<genexpr>")
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


class Output(NamedTuple):
    """One tensor that a call gave, with what is kept of it.

    Attributes:
        path: where it is in the call's result.
        node: its autograd node: the model's part of the graph ends here.
        number: which of the node's outputs it is.
        value: its values; `None` if they are too large to keep.
        alive: whether the tensor is still in use.
        gradient: one place, for the gradient that comes back to it, or for those of all outputs of its node.
    """

    path: str
    node: Any
    number: int
    value: Tensor | None
    alive: weakref.ref[Tensor]
    gradient: list[Tensor | tuple[Tensor | None, ...] | None]


class Factor(NamedTuple):
    """One number that a loss was divided or multiplied by; `None` where it is not known any more."""

    divides: bool
    number: float | None

    def apply(self, loss: Tensor) -> Tensor:
        """The loss after it."""
        assert self.number is not None
        return loss / self.number if self.divides else loss * self.number


class Origin(Protocol):
    """A batch as a data loader gave it."""

    def given(self) -> list[Tensor]:
        """Its tensors with one row per sample, in order; empty if one of them is gone."""

    def sample_of(self, tensor: Tensor) -> int | None:
        """The number of the sample that a tensor is a part of, where the batch is a list with one entry per sample."""

    def whole(self) -> Any:
        """The batch, targets and all; `None` if it is gone, or if the program has written into it since."""


@dataclass(slots=True)
class RootCall:
    """A call of the model (or of a submodule directly) in the two-line form: what is needed to run it again.

    Attributes:
        args: positional arguments, by reference.
        kwargs: keyword arguments, by reference.
        rng: random streams before the call.
        autocast: device and dtype of the autocast region around it.
        module: the module that was called; `None` for the root.
        function: what was called in place of a module: a function of the program that calls it, without its first
            argument if that is the module.
        called_at: the user's code that made the call, and the instruction in it.
        frames: the frame that made the call and its caller, until the backward pass: a loss may be dropped before it.
        redirected: what stood in place of the root's `forward` in this call: Lightning and Fabric send a method through
            the wrapper of `DistributedDataParallel` that way.
        stream: torch's random stream on the CPU when the step before ended.
        previous: an earlier call of the same step.
        incomplete: earlier calls were left out: of a validation loop, or of this step (`critic(x).mean()`).
        running: the forward pass has not ended yet.
        loaded: its inputs are a batch as a data loader gave it.
        origin: the batch of a data loader that its inputs are, or were made of.
        made_from_finite: its inputs were made of a batch of a data loader, and that batch is finite.
        passed: the program's loop has moved on, so its variables belong to a later batch.
        watched: its outputs that have a graph.
        nodes: their autograd nodes: where the model's part of the graph ends.
        factors: by what a bad loss was divided or multiplied at its end, read while its graph was alive.
        entry: the call of a framework in which a bad loss was computed.
        before: the arguments of the calls in the last good steps, oldest first that are floating-point tensors.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rng: RngState
    autocast: tuple[str, torch.dtype] | None
    module: nn.Module | None = None
    called_at: tuple[CodeType, int] | None = None
    stream: Tensor | None = None
    redirected: Any = None
    previous: RootCall | None = None
    incomplete: bool = False
    running: bool = True
    loaded: bool = False
    origin: Origin | None = None
    made_from_finite: bool = False
    passed: bool = False
    watched: list[Output] = field(default_factory=list)
    nodes: set[Any] = field(default_factory=set)
    before: Sequence[list[Tensor]] = ()
    factors: tuple[Factor, ...] = ()
    entry: FrameworkCall | None = None
    frames: tuple[FrameType | None, ...] = ()
    function: Callable[..., Any] | None = None

    @property
    def place(self) -> Place | None:
        """The user's line that made the call."""
        return None if self.called_at is None else place_of(*self.called_at)

    @property
    def outputs(self) -> dict[Any, tuple[Tensor, int]]:
        """The output values by node, with the node's output number; large ones are not kept."""
        return {each.node: (each.value, each.number) for each in self.watched if each.value is not None}

    @property
    def cotangents(self) -> dict[str, Tensor]:
        """The gradient that came back to each output, by path.

        A hook of the program on an output may change its gradient after it was noted here: such an output is left out.
        """
        found: dict[str, Tensor] = {}
        for output in self.watched:
            gradient = output.gradient[0]
            if isinstance(gradient, tuple):
                gradient = gradient[output.number]
            elif has_hooks(output.alive()):
                continue
            if gradient is not None:
                found[output.path] = gradient
        return found

    def kept_bytes(self) -> int:
        """The memory that is held for it: inputs, outputs, and their gradients."""
        held: list[Any] = [self.args, self.kwargs, *((each.value, each.gradient) for each in self.watched)]
        return sum(size_in_bytes(tensor) for _, tensor in tensors_of(held))

    def watch_output(self, output: Any) -> None:
        """Remember where the model's part of the graph ends, and the gradient that comes back to it."""
        self.running = False
        for path, tensor in (("batch", output),) if isinstance(output, Tensor) else tensors_of(output):
            node = tensor.grad_fn
            if node is None:
                continue
            number = tensor.output_nr
            size = tensor.nbytes if tensor.layout is torch.strided else size_in_bytes(tensor)
            value = detached(tensor)
            gradient: list[Any] = [None]
            if size <= _COTANGENT_BYTES:
                hook = partial(setitem, gradient, 0)  # C functions only: backward calls no Python code
                if number or value.__class__ is not Tensor:
                    node.register_prehook(hook)
                else:  # four times as fast. The values without a graph carry the hook; the output stays as it is
                    carry_hooks(value, {0: hook})
                    hook_adder(node)(value)
            kept = value if size <= _OUTPUT_BYTES else None
            self.nodes.add(node)
            self.watched.append(Output(path, node, number, kept, weakref.ref(tensor), gradient))

    def after(self, previous: RootCall | None) -> None:
        """Join the earlier calls whose outputs are still in use: those of this step, not of a validation loop.

        In use means that something still references the output, or that this call's inputs were computed from it. The
        graph alone may hold what was made of an output: of a call that the same function made further up, with the
        random streams where they are now, the inputs are kept, and not the graph.
        """
        feeding = _nodes_above(self.args, self.kwargs) if previous is not None else set()
        kept: list[RootCall] = []
        while previous is not None and len(kept) < MOST_CALLS:
            if any(output.alive() is not None for output in previous.watched) or not feeding.isdisjoint(previous.nodes):
                kept.append(previous)
                feeding |= _nodes_above(previous.args, previous.kwargs)
            elif self._comes_after(previous):
                kept.append(dataclasses.replace(previous, watched=[], nodes=set()))
            else:
                self.incomplete = True
            self.incomplete = self.incomplete or previous.incomplete
            previous = previous.previous
        later = self
        for call in kept:
            later.previous = call
            later = call
        later.previous = None

    def _comes_after(self, earlier: RootCall) -> bool:
        """Whether the same function called the same module further up, or the same comprehension did for the element
        before, drew no random number since, and gave it little."""
        if self.called_at is None or earlier.called_at is None or self.module is not earlier.module:
            return False
        (code, here), (other, there) = self.called_at, earlier.called_at
        if code is not other or code.co_name == "<module>" or here < there:
            return False
        if here == there and code.co_name not in _COMPREHENSIONS:
            return False
        if sum(tensor.nbytes for _, tensor in tensors_of((earlier.args, earlier.kwargs))) > _LARGEST_BYTES:
            return False
        now, then = self.rng, earlier.rng
        return torch.equal(now.torch_cpu, then.torch_cpu) and all(
            map(torch.equal, now.torch_devices, then.torch_devices)
        )

    @contextlib.contextmanager
    def as_made(self, root: nn.Module) -> Iterator[None]:
        """The root's `forward` is what it was in this call, and afterwards what it is now."""
        if self.redirected is None:
            yield
            return
        own = root.__dict__
        replaced = {"forward": self.redirected}
        # such a method belongs to Lightning, and what it logs in a replay is no value of the run
        replaced |= {name: _nothing for name in ("log", "log_dict") if callable(getattr(root, name, None))}
        before = {name: own[name] for name in replaced if name in own}
        own.update(replaced)
        try:
            yield
        finally:
            for name in replaced:
                own.pop(name, None)
            own.update(before)

    def inputs(self) -> list[Tensor]:
        """The floating-point tensors that the model was called with, in the order in which `before` keeps them."""
        return [v for v in (*self.args, *self.kwargs.values()) if isinstance(v, Tensor) and v.is_floating_point()]

    def chain(self) -> list[RootCall]:
        """The calls of the step, oldest first."""
        calls = [self]
        while (earlier := calls[-1].previous) is not None:
            calls.append(earlier)
        return calls[::-1]


def _nothing(*_: Any, **__: Any) -> None:
    """Left out."""


def _nodes_above(args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[Any]:
    """The last few nodes that made a call's inputs."""
    nodes = [t.grad_fn for _, t in tensors_of((args, kwargs)) if t.grad_fn is not None]
    for node in nodes:  # grows while it is walked
        if len(nodes) >= _NEAR:
            break
        nodes += [below for below, _ in node.next_functions if below is not None]
    return set(nodes)


@dataclass(frozen=True, slots=True)
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
    if not singular:  # the usual losses: the derivative is bounded, so there is nothing to search for after a failure
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
    return None if isinstance(value, Tensor) and size_in_bytes(value) > _LARGEST_BYTES else value
