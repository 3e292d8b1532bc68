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
6.  Before an operation is taken for an origin its inputs are read again: memory may have been written by no operation
    (through NumPy, or by a kernel of the user's), and the next operation that reads it is not guilty of that.

`operations` says what an operation reads and writes by its name, `flow` follows the bad values from memory to memory,
`whereabouts` finds module and line, and `records` holds the records.

Storages are identified by `Memory`, whose numbers are never used twice: a tensor may appear without an operation of
its own (from NumPy, out of a kernel), at the address of one that was freed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

from nantrap.finite import dtype_name
from nantrap.locate.torch_private import DispatchMode, schema_of
from nantrap.locate.trace.flow import Flow, Origins
from nantrap.locate.trace.operations import (
    ADOPTS,
    ARITHMETIC,
    EMPTY,
    OVERWRITE,
    OVERWRITE_PART,
    SILENT_WRITERS,
    TAKES_OUT,
    WITNESSES,
    is_view,
    op_name,
    outs_of,
    reads_only_shape,
)
from nantrap.locate.trace.records import Capture, Op, Registered, before_writing, frozen, frozen_arguments
from nantrap.locate.trace.storage import extremes, nonfinite_count, numbers_in, tensors_in
from nantrap.locate.trace.whereabouts import Whereabouts

_MAX_CAPTURES = 64
_FLOATS = ("float", "bfloat", "complex")
_time = attrgetter("index")


class Trace(DispatchMode):
    """Runs around forward, backward or an update, and records. Holds small records of all operations, and the tensors
    of the first origins only.

    Args:
        root: the model, whose modules have names.
        registered: the tensors known by name when the step begins.
        optimizer: an update is traced.
        wanted: operations, by index, whose operands are kept.
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
        self.witnesses: dict[int, Capture] = {}
        self.recent: Origins = frozenset()
        """The origins of the bad values that were read last: the cause of an exception."""
        self.kept: dict[int, Capture] = {}
        """Operations that were requested by index, guilty or not."""
        self.flow = Flow(registered)
        self.externals = self.flow.externals
        self._where = Whereabouts(root, optimizer=optimizer)
        self._wanted = wanted
        self._writer: dict[int, int] = {}
        self._reads: dict[int, set[int]] = {}  # operations that were given a named tensor by itself
        self._overwriters: dict[int, int] = {}  # what wrote bad values over memory, without reading it

    def __enter__(self) -> Trace:
        self._where.watch()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._where.unwatch()

    # ---- one operation

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        flow = self.flow
        name = op_name(func)
        mutable = schema_of(func).is_mutable
        arguments = (args, kwargs)
        read_from = (args[1:], kwargs) if name in OVERWRITE else arguments
        if outs := outs_of(func):  # `out=`: written to, and not read
            read_from = (args, {key: value for key, value in kwargs.items() if key not in outs})
        input_nan, input_inf, inherited = flow.read(read_from, reads=not is_view(func))
        if name == TAKES_OUT and inherited:
            flow.taken_out(args[0], inherited)
        elif name in ARITHMETIC and (input_nan or input_inf):
            inherited |= flow.origins_of_numbers(arguments)
        kept = before_writing(args) if mutable else args
        if inherited:
            self.recent = inherited
        result = func(*args, **kwargs)
        if name == ADOPTS:  # other memory under the same tensor, as when a file is read: nothing was computed
            return result
        op = self._where.describe(len(self.ops), name)
        self.ops.append(op)
        op.sources = tuple(self._writer.get(flow.key(tensor), -1) for tensor in tensors_in(arguments))
        op.scalars = tuple(numbers_in(arguments))
        outputs = tuple(tensors_in(args[:1] if mutable and result is None else result))
        written = frozenset[int]()
        if name in SILENT_WRITERS:
            statistics = [t for t in tensors_in(args[3:5]) if t.is_floating_point()]
            outputs, written = (*outputs, *statistics), frozenset(map(flow.key, statistics))
        if name in EMPTY:
            for key in map(flow.key, outputs):
                flow.allocated(key, op)
                self._writer[key] = op.index
            return result
        input_keys = {flow.key(tensor) for tensor in tensors_in(arguments)}
        if named := input_keys & flow.named.keys():
            self._reads[op.index] = named
        fresh_output = any(flow.key(output) not in input_keys for output in outputs)
        if (mutable or not outputs or fresh_output) and not reads_only_shape(name):
            flow.read_first_by(op, input_keys)
        checked: list[tuple[Tensor, int, bool, bool, bool]] = []
        for output in outputs:
            key = flow.key(output)
            fresh = key not in input_keys
            if not fresh and not mutable and key not in written:
                continue  # a view: nothing was written
            nan, inf, absmax = extremes(output)
            checked.append((output, key, fresh, nan, inf))
            self._writer[key] = op.index
            if (nan or inf) and (name in OVERWRITE or name in OVERWRITE_PART):
                self._overwriters[key] = op.index
            op.nan, op.inf = op.nan or nan, op.inf or inf
            if nan or inf:
                op.bad, op.values = op.bad + nonfinite_count(output), op.values + output.numel()
            if absmax is not None and (op.absmax is None or absmax > op.absmax):
                op.absmax, op.dtype = absmax, dtype_name(output.dtype)
            elif not op.dtype and output.is_floating_point():
                op.dtype = dtype_name(output.dtype)
        if (op.nan and not input_nan) or (op.inf and not (input_nan or input_inf)):
            own = {key for _, key, *_ in checked}
            written_nan, written_inf, unseen = flow.unseen_writes(read_from, op, own)
            input_nan, input_inf, inherited = input_nan or written_nan, input_inf or written_inf, inherited | unseen
        if op.nan and not input_nan:
            op.made = "nan"
        elif op.inf and not (input_nan or input_inf):
            op.made = "inf"
        if flow.erased_any or (inherited and (input_nan or input_inf)):
            vanished = flow.follow_erased(name, arguments, outputs, made=op.made is not None)
            if vanished:
                op.made, inherited = None, inherited | vanished
        if op.index in self._wanted:
            self.kept[op.index] = Capture(op, func, frozen_arguments(kept), kwargs, frozen(outputs))
        if op.made and len(self.captures) < _MAX_CAPTURES:
            self.captures[op.index] = Capture(op, func, frozen_arguments(kept), kwargs, frozen(outputs))
        if name.startswith(WITNESSES) and len(self.witnesses) < _MAX_CAPTURES:
            self.witnesses[op.index] = Capture(op, func, kept, kwargs, outputs)
        origins = inherited | {op.index} if op.made else inherited
        for output, key, fresh, nan, inf in checked:
            if (nan or inf) and not origins and flow.is_overwritten(key, name):
                origins = flow.overwritten(key, op)
            flow.wrote(output, key, bad=nan or inf, fresh=fresh, origins=origins)
            if outs:  # a part of a buffer that is passed for a result will be read
                flow.will_be_read(key)
        return result

    # ---- answers

    def wrote(self, tensor: Tensor) -> bool:
        """Whether an operation of the trace wrote the tensor's memory."""
        return self.flow.key(tensor) in self._writer

    def writer_of(self, tensor: Tensor) -> Op | None:
        """The operation that wrote the tensor's memory last; `None` if none of the trace did."""
        index = self._writer.get(self.flow.key(tensor), -1)
        return self.ops[index] if index >= 0 else None

    def overwriter_of(self, tensor: Tensor) -> Op | None:
        """The operation that wrote bad values over (a part of) the tensor: a copy, a fill; `None` if none did."""
        index = self._overwriters.get(self.flow.key(tensor))
        return None if index is None else self.ops[index]

    def behind(self, starts: Iterable[int], through: Callable[[Op], bool], *, most: int | None = None) -> Iterator[Op]:
        """The operations that lead to others, these first, then their sources: the nearest first.

        Args:
            starts: where to begin, by index; negative ones, which no operation of the trace made, are left out.
            through: whether an operation belongs to it. Where it does not, its sources are not followed.
            most: how many are given at most.
        """
        queue, seen = deque(starts), set[int]()
        while queue and (most is None or len(seen) < most):
            index = queue.popleft()
            if index >= 0 and index not in seen and through(self.ops[index]):
                seen.add(index)
                yield self.ops[index]
                queue += self.ops[index].sources

    def computes_from(self, writer: Op, tensor: Tensor, *, most: int = 64) -> bool:
        """Whether what `writer` wrote was computed from a named tensor itself, through floating-point operations."""
        key = self.flow.key(tensor)
        return any(
            key in self._reads.get(op.index, ()) and not (op is writer and op.name in OVERWRITE)
            for op in self.behind([writer.index], lambda op: op is writer or op.dtype.startswith(_FLOATS), most=most)
        )

    def op_of_node(self, sequence: int) -> Op | None:
        """The forward operation that made the autograd node with this sequence number."""
        return self._where.maker_of_node(sequence)

    def bad_ancestors(self, tensor: Tensor) -> list[Op]:
        """The operations with bad results that lead to `tensor`, in order of time."""
        writer = self._writer.get(self.flow.key(tensor), -1)
        return sorted(self.behind([writer], lambda op: op.nan or op.inf), key=_time)

    def bad_between(self, start: Op, end: Op | None) -> list[Op]:
        """The operations after `start` that carried its bad values on, in order of time.

        Args:
            start: the origin, or the first reader of a tensor that was bad before.
            end: the operation that wrote the loss. Where it is known and in the same phase, only those that lead to it.
        """
        later = {start.index}
        for op in self.ops[start.index + 1 :]:
            if (op.nan or op.inf) and op.phase == start.phase and not later.isdisjoint(op.sources):
                later.add(op.index)
        if end is not None and end.index in later:
            later = {op.index for op in self.behind([end.index], lambda op: op.index in later)}
        return [self.ops[index] for index in sorted(later - {start.index})]

    def origins_of(self, tensor: Tensor) -> Origins:
        """The origins whose non-finite values are in `tensor` now; empty if it is finite."""
        return self.flow.origins_of(tensor)


def earliest(origins: frozenset[int] | Sequence[int], trace: Trace) -> int | None:
    """The origin that began it: tensors bad before the step first, then operations in order of time."""
    if not origins:
        return None
    outside = [index for index in origins if index < 0]
    if outside:
        rank = {"parameter": 0, "optimizer_state": 1, "buffer": 2, "batch": 3, "overwritten": 4, "constant": 5}
        return min(outside, key=lambda index: rank[trace.externals[index].kind])
    return min(origins)
