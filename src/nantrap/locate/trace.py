"""An operation-level trace of a step that follows non-finite values along the data.

Program order alone blames the wrong operation: a deliberate `masked_fill(-inf)` comes first in every attention layer.
So each storage carries the set of *origins* whose badness has flowed into it:

1.  An operation is an origin when its result holds NaN though no input does, or Inf though every input, scalars
    included, is finite.
2.  A bad result inherits the origins of its bad inputs; a finite result inherits nothing. What ReLU, a mask or an
    index erased is thereby forgotten, without a walk back. What arithmetic erased (x / inf = 0) is remembered place
    by place: if an operation fails at exactly those places (log of that 0), it inherits the origins of what vanished.
3.  The answer is read at the sinks: the origins carried by the bad loss, gradient, parameter or buffer.
4.  Tensors that were bad before the step (batch, parameters, buffers) are origins of their own. A constant of the
    program is not: a `float("-inf")` in the code is intended.
5.  Results of `empty*` are not checked before an operation reads them.
6.  Before an operation is convicted its inputs are read again: a write that no operation made (through NumPy, or by a
    kernel of the user's) would otherwise put the blame on the next operation that reads it.

Storages are identified by `Memory`, whose numbers are never used twice: a tensor may appear without an operation of
its own (from NumPy, out of a kernel), at the address of one that was freed.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from nantrap.finite import dtype_name
from nantrap.incident import Phase
from nantrap.locate.source import Place, user_place
from nantrap.locate.storage import Memory, covers_storage, extremes, looks_like_mask, map_leaves, numbers_in, tensors_in
from nantrap.locate.torch_private import (
    DispatchMode,
    current_node,
    is_in_backward,
    next_sequence,
    schema_of,
    sequence_of,
)

OUTSIDE = "loss"
"""The module name of code that runs outside every named submodule."""

_MAX_CAPTURES = 64
_WITNESSES = (
    "aten.binary_cross_entropy", "aten.nll_loss", "aten.kl_div", "aten._linalg", "aten.linalg_", "aten._ctc_loss",
    "aten.soft_margin_loss", "aten.xlogy", "aten._softmax",
)  # fmt: skip
"""Operations whose arguments a rule may need even when they are not the origin: targets, spectra."""
_CLONE_LIMIT = 1 << 22
_ENGINE = "_engine_run_backward"  # the function of torch below which the backward pass runs
_CHECKPOINT_FILE = os.path.join("torch", "utils", "checkpoint.py")

_EMPTY = frozenset(
    {
        "aten.empty",
        "aten.empty_like",
        "aten.new_empty",
        "aten.empty_strided",
        "aten.new_empty_strided",
    }
)
_ADOPTS = "aten.set_"
_FLOATS = ("float", "bfloat", "complex")
_OVERWRITE = frozenset(
    {"aten.copy_", "aten.fill_", "aten.zero_", "aten.normal_", "aten.uniform_", "aten.bernoulli_",
     "aten.random_", "aten.exponential_", "aten.set_", "aten._foreach_zero_", "aten._foreach_copy_"}
)  # fmt: skip

_SELECTS = frozenset(
    {"aten.where", "aten.masked_fill", "aten.masked_fill_", "aten.nan_to_num", "aten.nan_to_num_", "aten.clamp",
     "aten.clamp_", "aten.clamp_min", "aten.clamp_max", "aten.minimum", "aten.maximum", "aten.relu", "aten.relu_",
     "aten.threshold", "aten.hardtanh", "aten.masked_scatter", "aten.index_put", "aten.index_put_", "aten.copy_",
     "aten.isfinite", "aten.isnan", "aten.isinf"}
)  # fmt: skip
"""They drop a value on purpose: what they erased does not come back."""
_SILENT_WRITERS = frozenset({"aten.native_batch_norm", "aten.cudnn_batch_norm", "aten.miopen_batch_norm"})
"""They update the running statistics among their arguments, and their schema does not show it."""


@dataclass(slots=True)
class Op:
    """One operation of the traced step.

    `sources` are the operations that last wrote its input tensors, in order (-1: none of this step), through views;
    `scalars` its plain numbers; `inside`: whether any module was running.
    """

    index: int
    name: str
    phase: Phase
    module: str
    call: int
    node: str | None
    sequence: int
    place: Place | None
    dtype: str = ""
    absmax: float | None = None
    nan: bool = False
    inf: bool = False
    made: Literal["nan", "inf", "uninitialised"] | None = None
    inside: bool = False
    sources: tuple[int, ...] = ()
    scalars: tuple[float, ...] = ()


@dataclass(slots=True)
class Capture:
    """An origin with what it was given and what it gave: the material of the rules.

    `assumed` names operands that were not recorded and are assumed to be finite.
    """

    op: Op
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Tensor, ...]
    assumed: tuple[str, ...] = ()

    def inputs(self) -> list[Tensor]:
        """The input tensors, in order."""
        return list(tensors_in((self.args, self.kwargs)))


@dataclass(slots=True)
class External:
    """A tensor that was bad before the step began. `first_reader` is the first operation that computed with it.

    `during` marks one that was finite when the step began and was written since, by no operation that the trace saw.
    """

    kind: Literal["parameter", "buffer", "batch", "optimizer_state", "constant", "overwritten"]
    name: str
    tensor: Tensor
    mask: bool = False
    first_reader: int | None = None
    during: bool = False


@dataclass(slots=True)
class _Bad:
    origins: frozenset[int]


@dataclass(slots=True)
class Registered:
    """The tensors known by name when the step begins."""

    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    batch: Mapping[str, Tensor] = field(default_factory=dict)
    optimizer_state: Mapping[str, Tensor] = field(default_factory=dict)


class Trace(DispatchMode):
    """Runs around forward, backward or an update, and records. Holds small records of all operations, and the tensors
    of the first origins only.
    """

    def __init__(
        self,
        root: nn.Module,
        registered: Registered,
        *,
        optimizer: bool = False,
        wanted: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[Op] = []
        self.captures: dict[int, Capture] = {}
        self.externals: dict[int, External] = {}
        self.witnesses: dict[int, Capture] = {}
        self.recent: frozenset[int] = (
            frozenset()
        )  # origins of the bad values that were read last: the cause of an exception
        self.kept: dict[int, Capture] = {}  # operations that were requested by index, guilty or not
        self._wanted = wanted
        self._memory = Memory()
        self._writer: dict[int, int] = {}
        self._names = {id(module): name for name, module in root.named_modules()}
        self._calls: dict[int, int] = {}
        self._stack: list[tuple[str, int]] = []
        self._optimizer = optimizer
        self._bad: dict[int, _Bad] = {}
        self._known: set[int] = set()
        self._uninitialised: dict[int, int] = {}
        self._unread: dict[int, External] = {}
        self._by_sequence: dict[int, Op] = {}
        self._handles: list[Any] = []
        self._named: dict[int, tuple[Any, str]] = {}
        self._tensors_named: dict[int, Tensor] = {}
        self._reads: dict[int, set[int]] = {}  # operations that were given one of those by itself
        self._overwriters: dict[int, int] = {}  # what wrote bad values over memory, without reading it
        self._erased: dict[int, tuple[Tensor, frozenset[int]]] = {}
        for kind in ("optimizer_state", "batch", "buffers", "parameters"):
            for name, tensor in getattr(registered, kind).items():
                key = self._memory.key(tensor)
                self._named[key] = (kind.removesuffix("s") if kind != "batch" else kind, name)
                self._tensors_named[key] = tensor

    # ---- life of the trace

    def __enter__(self) -> Trace:
        self._handles = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        for handle in self._handles:
            handle.remove()

    def _enter_module(self, module: nn.Module, _: Any) -> None:
        name = self._names.get(id(module))
        if name:  # the root itself and modules outside it are `loss`, unless a named one is around them
            count = self._calls.get(id(module), 0)
            self._calls[id(module)] = count + 1
            self._stack.append((name, count))
        else:
            self._stack.append(self._stack[-1] if self._stack else (OUTSIDE, 0))

    def _leave_module(self, module: nn.Module, _: Any, __: Any) -> None:
        if self._stack:
            self._stack.pop()

    # ---- one operation

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = _op_name(func)
        mutable = schema_of(func).is_mutable
        arguments = (args, kwargs)
        read_from = (args[1:], kwargs) if name in _OVERWRITE else arguments
        if outs := _outs(func):  # `out=`: written to, and not read
            read_from = (args, {key: value for key, value in kwargs.items() if key not in outs})
        input_nan, input_inf, inherited = self._inputs(read_from, reads=not _is_view(func))
        kept = _kept(args) if mutable else args
        if inherited:
            self.recent = inherited
        result = func(*args, **kwargs)
        if name == _ADOPTS:  # other memory under the same tensor, as when a file is read: nothing was computed
            return result
        op = self._record(name)
        op.sources = tuple(self._writer.get(self._memory.key(tensor), -1) for tensor in tensors_in(arguments))
        op.scalars = tuple(numbers_in(arguments))
        outputs = tuple(tensors_in(args[:1] if mutable and result is None else result))
        written = frozenset[int]()
        if name in _SILENT_WRITERS:
            statistics = [t for t in tensors_in(args[3:5]) if t.is_floating_point()]
            outputs, written = (*outputs, *statistics), frozenset(map(self._memory.key, statistics))
        if name in _EMPTY:
            for output in outputs:
                key = self._memory.key(output)
                self._known.add(key)
                self._bad.pop(key, None)
                self._uninitialised[key] = op.index
                self._writer[key] = op.index
            return result
        input_keys = {self._memory.key(tensor) for tensor in tensors_in(arguments)}
        if named := input_keys & self._named.keys():
            self._reads[op.index] = named
        views = not mutable
        fresh_output = any(self._memory.key(output) not in input_keys for output in outputs)
        if self._unread and (mutable or not outputs or fresh_output):
            reads = not name.endswith("_like") and not name.startswith("aten.new_")  # those read only the shape
            for key in input_keys & self._unread.keys() if reads else ():
                self._unread.pop(key).first_reader = op.index
        checked: list[tuple[Tensor, int, bool, bool, bool]] = []
        for output in outputs:
            key = self._memory.key(output)
            fresh = key not in input_keys
            if not fresh and views and key not in written:
                continue  # a view: nothing was written
            nan, inf, absmax = extremes(output)
            checked.append((output, key, fresh, nan, inf))
            self._writer[key] = op.index
            if (nan or inf) and name in _OVERWRITE:
                self._overwriters[key] = op.index
            op.nan, op.inf = op.nan or nan, op.inf or inf
            if absmax is not None and (op.absmax is None or absmax > op.absmax):
                op.absmax, op.dtype = absmax, dtype_name(output.dtype)
            elif not op.dtype and output.is_floating_point():
                op.dtype = dtype_name(output.dtype)
        if (op.nan and not input_nan) or (op.inf and not (input_nan or input_inf)):
            own = {key for _, key, *_ in checked}
            written_nan, written_inf, unseen = self._unseen_writes(read_from, op, own)
            input_nan, input_inf, inherited = input_nan or written_nan, input_inf or written_inf, inherited | unseen
        if op.nan and not input_nan:
            op.made = "nan"
        elif op.inf and not (input_nan or input_inf):
            op.made = "inf"
        if self._erased or (inherited and (input_nan or input_inf)):
            vanished = self._follow_erased(name, arguments, outputs, made=op.made is not None)
            if vanished:
                op.made, inherited = None, inherited | vanished
        if op.index in self._wanted:
            self.kept[op.index] = Capture(op, func, _frozen_arguments(kept), kwargs, _frozen(outputs))
        if op.made and len(self.captures) < _MAX_CAPTURES:
            self.captures[op.index] = Capture(op, func, _frozen_arguments(kept), kwargs, _frozen(outputs))
        if name.startswith(_WITNESSES) and len(self.witnesses) < _MAX_CAPTURES:
            self.witnesses[op.index] = Capture(op, func, kept, kwargs, outputs)
        origins = inherited | {op.index} if op.made else inherited
        for output, key, fresh, nan, inf in checked:
            if (nan or inf) and not origins and name in _OVERWRITE and key in self._named:
                origins = self._meet_written(key, op)
            self._write(output, key, bad=nan or inf, fresh=fresh, origins=origins)
            if outs:  # a part of a buffer that is passed for a result will be read
                self._uninitialised.pop(key, None)
        return result

    def _record(self, name: str) -> Op:
        phase: Phase = "optimizer" if self._optimizer else "forward"
        module, call = self._stack[-1] if self._stack else (OUTSIDE, 0)
        sequence = next_sequence() - 1
        node_name: str | None = None
        place: Place | None = None
        in_backward = is_in_backward()
        if in_backward and recomputing(sys._getframe(2)):
            in_backward = False
            around = self._by_sequence.get(sequence_of(current_node()))
            if around is not None and not self._stack:
                module, call = around.module, around.call
        if in_backward and not self._stack:  # a running module inside backward is a recomputed forward
            node = current_node()
            phase = "backward"
            if node is not None:
                node_name = node.name()
                sequence = sequence_of(node)
                made_by = self._by_sequence.get(sequence)
                if made_by is not None:
                    module, call, place = made_by.module, made_by.call, made_by.place
                # the `backward` of a custom function, or a hook: the user's own code inside the backward pass
                place = user_place(sys._getframe(2), inside=_ENGINE) or place
        elif not self._optimizer:
            place = user_place(sys._getframe(2))
        elif self._optimizer:
            module = "optimizer"
            place = user_place(sys._getframe(2))
        op = Op(len(self.ops), name, phase, module, call, node_name, sequence, place, inside=bool(self._stack))
        self.ops.append(op)
        if phase != "backward" and sequence not in self._by_sequence:
            self._by_sequence[sequence] = op
        return op

    def _inputs(self, arguments: Any, *, reads: bool) -> tuple[bool, bool, frozenset[int]]:
        """Whether any input holds NaN, or Inf, and the origins that flowed into the bad ones.

        Args:
            arguments: of the operation.
            reads: whether it reads values; a view of empty memory does not.
        """
        any_nan = any_inf = False
        origins: frozenset[int] = frozenset()
        for tensor in tensors_in(arguments):
            key = self._memory.key(tensor)
            uninitialised = key in self._uninitialised
            if uninitialised and not reads and key not in self._bad:
                continue
            if key in self._known and key not in self._bad and not uninitialised:
                continue
            nan, inf, _ = extremes(tensor)
            if key not in self._known:
                self._known.add(key)
                if nan or inf:
                    self._meet(tensor, key)
            if not (nan or inf):
                continue
            if uninitialised and key not in self._bad:
                index = self._uninitialised[key]
                self.ops[index].made = "uninitialised"
                self._bad[key] = _Bad(frozenset({index}))
            any_nan, any_inf = any_nan or nan, any_inf or inf
            bad = self._bad.get(key)
            if bad is not None:
                origins |= bad.origins
        for number in numbers_in(arguments):
            any_nan, any_inf = any_nan or math.isnan(number), any_inf or math.isinf(number)
        return any_nan, any_inf, origins

    def _unseen_writes(self, arguments: Any, op: Op, own: set[int]) -> tuple[bool, bool, frozenset[int]]:
        """Inputs that were finite when they were last looked at and are not now: written, but by no operation.

        Args:
            arguments: what the operation read.
            op: the operation.
            own: the memory that it wrote itself.
        """
        any_nan = any_inf = False
        origins: frozenset[int] = frozenset()
        for tensor in tensors_in(arguments):
            key = self._memory.key(tensor)
            if key in self._bad or key in self._uninitialised or key in own:
                continue
            nan, inf, _ = extremes(tensor)
            if nan or inf:
                self._meet(tensor, key, during=True)
                self._unread.pop(key).first_reader = op.index
                any_nan, any_inf, origins = any_nan or nan, any_inf or inf, origins | self._bad[key].origins
        return any_nan, any_inf, origins

    def _follow_erased(self, name: str, arguments: Any, outputs: tuple[Tensor, ...], *, made: bool) -> frozenset[int]:
        """Note the places at which arithmetic erased a bad value, and the origins if the operation fails just there."""
        result = outputs[0] if len(outputs) == 1 else None
        if result is None or not result.is_floating_point() or result.numel() > _CLONE_LIMIT or name in _SELECTS:
            return frozenset()
        gone: Tensor | None = None  # places at which a value had vanished before
        places: Tensor | None = None  # those, and places at which an input is bad now
        origins: frozenset[int] = frozenset()
        for tensor in tensors_in(arguments):
            if tensor.dim() > result.dim() or not _broadcasts(tensor.shape, result.shape):
                continue
            key = self._memory.key(tensor)
            known, bad = self._erased.get(key), self._bad.get(key)
            if known is not None and known[0].numel() == tensor.numel():
                found = known[0].reshape(tensor.shape).expand(result.shape)
                gone, origins = found if gone is None else gone | found, origins | known[1]
            if bad is not None and bad.origins and tensor.is_floating_point():
                found = (~tensor.detach().isfinite()).expand(result.shape)
                places, origins = found if places is None else places | found, origins | bad.origins
        finite = result.detach().isfinite()
        if made and gone is not None and not bool((~finite & ~gone).any()):
            return origins
        either = gone if places is None else places if gone is None else gone | places
        if either is not None and bool((either & finite).any()):
            self._erased[self._memory.key(result)] = (either & finite, origins)
        return frozenset()

    def _meet(self, tensor: Tensor, key: int, *, during: bool = False) -> None:
        """A bad tensor from outside the trace: an origin of its own if it has a name and is not a mask."""
        kind, name = self._named.get(key, ("overwritten" if during else "constant", ""))
        external = External(kind, name, tensor, mask=looks_like_mask(tensor) and not during, during=during)
        index = -1 - len(self.externals)
        self.externals[index] = external
        origins = frozenset() if kind == "constant" or external.mask else frozenset({index})
        self._bad[key] = _Bad(origins)
        self._unread[key] = external

    def _meet_written(self, key: int, op: Op) -> frozenset[int]:
        """A constant of the program was written over a parameter or buffer: that is where it began."""
        kind, name = self._named[key]
        tensor = self._tensors_named[key]
        index = -1 - len(self.externals)
        self.externals[index] = External(kind, name, tensor, first_reader=op.index, during=True)
        return frozenset({index})

    def _write(self, output: Tensor, key: int, *, bad: bool, fresh: bool, origins: frozenset[int]) -> None:
        self._known.add(key)
        whole = fresh or covers_storage(output)
        if whole:
            self._uninitialised.pop(key, None)
        if not bad:
            if whole:
                self._bad.pop(key, None)
            return
        before = self._bad.get(key)
        if not whole and before is not None:
            origins = origins | before.origins
        self._bad[key] = _Bad(origins)

    # ---- answers

    def wrote(self, tensor: Tensor) -> bool:
        """Whether an operation of the trace wrote the tensor's memory."""
        return self._memory.key(tensor) in self._writer

    def writer_of(self, tensor: Tensor) -> Op | None:
        """The operation that wrote the tensor's memory last; `None` if none of the trace did."""
        index = self._writer.get(self._memory.key(tensor), -1)
        return self.ops[index] if index >= 0 else None

    def overwriter_of(self, tensor: Tensor) -> Op | None:
        """The operation that wrote bad values over (a part of) the tensor: a copy, a fill; `None` if none did."""
        index = self._overwriters.get(self._memory.key(tensor))
        return None if index is None else self.ops[index]

    def computes_from(self, writer: Op, tensor: Tensor, *, most: int = 64) -> bool:
        """Whether what `writer` wrote was computed from a named tensor itself, through floating-point operations."""
        key = self._memory.key(tensor)
        seen, queue = {writer.index}, [writer]
        while queue:
            op = queue.pop()
            if key in self._reads.get(op.index, ()) and not (op is writer and op.name in _OVERWRITE):
                return True
            for index in op.sources:
                if index >= 0 and index not in seen and len(seen) < most and self.ops[index].dtype.startswith(_FLOATS):
                    seen.add(index)
                    queue.append(self.ops[index])
        return False

    def op_of_node(self, sequence: int) -> Op | None:
        """The forward operation that made the autograd node with this sequence number."""
        return self._by_sequence.get(sequence)

    def bad_ancestors(self, tensor: Tensor) -> list[Op]:
        """The operations with bad results that lead to `tensor`, in order of time."""
        queue, seen = [self._writer.get(self._memory.key(tensor), -1)], set[int]()
        while queue:
            index = queue.pop()
            if index < 0 or index in seen or not (self.ops[index].nan or self.ops[index].inf):
                continue
            seen.add(index)
            queue += self.ops[index].sources
        return [self.ops[index] for index in sorted(seen)]

    def origins_of(self, tensor: Tensor) -> frozenset[int]:
        """The origins whose non-finite values are in `tensor` now; empty if it is finite."""
        key = self._memory.key(tensor)
        nan, inf, _ = extremes(tensor)
        if not (nan or inf):
            return frozenset()
        if key not in self._known:
            self._known.add(key)
            self._meet(tensor, key)
        bad = self._bad.get(key)
        return bad.origins if bad is not None else frozenset()


def recomputing(frame: FrameType | None) -> bool:
    """Whether activation checkpointing is running a forward pass again inside the backward pass."""
    if not torch.is_grad_enabled():
        return False
    while frame is not None and frame.f_code.co_name != _ENGINE:
        if frame.f_code.co_filename.endswith(_CHECKPOINT_FILE):
            return True
        frame = frame.f_back
    return False


@functools.cache
def _is_view(func: Any) -> bool:
    """Whether an operation only gives another view of its input."""
    schema = schema_of(func)
    return not schema.is_mutable and any(each.alias_info is not None for each in schema.returns)


@functools.cache
def _outs(func: Any) -> frozenset[str]:
    """The names of an operation's arguments that only take its result."""
    return frozenset(argument.name for argument in schema_of(func).arguments if argument.is_out)


def _op_name(func: Any) -> str:
    """`aten.log` for `aten.log.default`."""
    return str(func).rsplit(".", 1)[0] if str(func).count(".") > 1 else str(func)


def _frozen(outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Copies: a parameter written by an update is put back after the replay, an activation may be written again."""
    return tuple(t.detach().clone() if t.numel() <= _CLONE_LIMIT else t.detach() for t in outputs)


def _broadcasts(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether a tensor of one shape can be expanded to another."""
    return all(a in (1, b) for a, b in zip(reversed(shape), reversed(wanted), strict=False))


def _frozen_arguments(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with copies of their tensors: recorded operands keep their values, whatever is written later."""

    def keep(value: Any) -> Any:
        small = isinstance(value, Tensor) and value.layout == torch.strided and value.numel() <= _CLONE_LIMIT
        return value.detach().clone() if small else value

    return tuple(map_leaves(list(args), keep))


def _kept(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of an in-place operation as they were before it: only afterwards it is known to be guilty."""

    def keep(value: Any) -> Any:
        if isinstance(value, Tensor) and value.layout == torch.strided and value.numel() <= _CLONE_LIMIT:
            return value.detach().clone()
        return value

    return tuple(
        [keep(item) for item in arg] if isinstance(arg, (list, tuple)) else keep(arg) for arg in args[:1]
    ) + tuple(args[1:])


def earliest(origins: frozenset[int] | Sequence[int], trace: Trace) -> int | None:
    """The origin that began it: tensors bad before the step first, then operations in order of time."""
    if not origins:
        return None
    outside = [index for index in origins if index < 0]
    if outside:
        rank = {"parameter": 0, "optimizer_state": 1, "buffer": 2, "batch": 3, "overwritten": 4, "constant": 5}
        return min(outside, key=lambda index: rank[trace.externals[index].kind])
    return min(origins)
