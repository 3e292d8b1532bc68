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
and `records` holds the records and finds module and line.

Storages are identified by `Memory`, whose numbers are never used twice: a tensor may appear without an operation of
its own (from NumPy, out of a kernel), at the address of one that was freed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

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
from nantrap.locate.trace.records import (
    Capture,
    Made,
    Op,
    Registered,
    Whereabouts,
    before_writing,
    frozen,
    frozen_arguments,
)
from nantrap.locate.trace.storage import extremes, has_memory, nonfinite_count, numbers_in, tensors_in

_MAX_CAPTURES = 64
_FLOATS = ("float", "bfloat", "complex")
_COPIES = ("aten._to_copy", "aten.clone")
_time = attrgetter("index")


class Given(NamedTuple):
    """An operation and what it was given, read before it runs.

    Attributes:
        func: the operation.
        name: its name.
        mutable: it writes into its arguments.
        args: its arguments.
        kwargs: those with names.
        kept: `args` with the values that they had before it.
        read: the arguments whose values it reads.
        nan: one of these is NaN.
        inf: one of these is Inf.
        origins: of their bad values.
    """

    func: Any
    name: str
    mutable: bool
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    kept: tuple[Any, ...]
    read: Any
    nan: bool
    inf: bool
    origins: Origins


class _Written(NamedTuple):
    """A tensor that an operation wrote: its memory, whether that is new, and what it holds."""

    tensor: Tensor
    key: int
    fresh: bool
    nan: bool
    inf: bool
    absmax: float | None


class _Summary(NamedTuple):
    """What all tensors together hold that an operation wrote: the last fields of `Op`."""

    nan: bool
    inf: bool
    absmax: float | None
    dtype: str
    bad: int
    values: int


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
        self.flow = Flow(registered, self.ops)
        self.externals = self.flow.externals
        self._where = Whereabouts(root, self.ops, optimizer=optimizer)
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

    # ---- one operation: read, run, judge, record

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = self.before(func, args, kwargs or {})
        result = func(*args, **given.kwargs)
        self.after(given, result)
        return result

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given:
        """Read what an operation is given, just before it runs."""
        name = op_name(func)
        mutable = schema_of(func).is_mutable
        read = _read_by(func, name, args, kwargs)
        nan, inf, origins = self.flow.read(read, reads=not is_view(func))
        if name == TAKES_OUT and origins:
            self.flow.taken_out(args[0], origins)
        elif name in ARITHMETIC and (nan or inf):
            origins |= self.flow.origins_of_numbers((args, kwargs))
        if origins:
            self.recent = origins
        kept = before_writing(args) if mutable else args
        return Given(func, name, mutable, args, kwargs, kept, read, nan, inf, origins)

    def after(self, given: Given, result: Any) -> None:
        """Judge what an operation gave, and record it. Called by the dispatch itself."""
        if given.name == ADOPTS:  # other memory under the same tensor, as when a file is read: nothing was computed
            return
        index = len(self.ops)
        arguments = (given.args, given.kwargs)
        inputs = [self.flow.key(tensor) for tensor in tensors_in(arguments)]
        sources = tuple([self._writer.get(key, -1) for key in inputs])
        scalars = tuple(numbers_in(arguments))
        outputs, silent = _outputs_of(given, result)
        keys = [self.flow.key(output) for output in outputs]
        if given.name in EMPTY or not all(map(has_memory, outputs)):
            for key in keys:
                self.flow.allocated(key, index)
                self._writer[key] = index
            self.ops.append(Op(index, given.name, *self._where.describe(index), sources, scalars))
            return
        known = set(inputs)
        computes = any(output.is_floating_point() or output.is_complex() for output in outputs)
        self._note_readings(index, given, known, fresh=not outputs or (computes and not known.issuperset(keys)))
        written = [
            _examined(output, key, fresh=key not in known)
            for position, (output, key) in enumerate(zip(outputs, keys, strict=True))
            if key not in known or given.mutable or position >= silent  # else a view: nothing was written
        ]
        found = _summary(written)
        made, origins = self._judge(index, given, outputs, written, found)
        op = Op(index, given.name, *self._where.describe(index), sources, scalars, made, *found)
        self.ops.append(op)
        self._keep(op, given, outputs)
        self._pass_on(op, given, written, origins)

    def _note_readings(self, index: int, given: Given, inputs: set[int], *, fresh: bool) -> None:
        """Remember that an operation was given named tensors, and that it is the first to compute with bad ones."""
        if named := inputs & self.flow.named.keys():
            self._reads[index] = named
        if (given.mutable or fresh) and not reads_only_shape(given.name):
            self.flow.read_first_by(index, inputs)

    def _judge(
        self, index: int, given: Given, outputs: tuple[Tensor, ...], written: list[_Written], found: _Summary
    ) -> tuple[Made, Origins]:
        """What an operation made of inputs that were finite (rules 1 and 6), and the origins of its bad results."""
        nan, inf, origins = given.nan, given.inf, given.origins
        made = _made(found, nan, inf)
        if made is not None:
            own = {each.key for each in written}
            unseen_nan, unseen_inf, unseen = self.flow.unseen_writes(given.read, index, own)
            nan, inf, origins = nan or unseen_nan, inf or unseen_inf, origins | unseen
            made = _made(found, nan, inf)
        if self.flow.erased_any or (origins and (nan or inf)):
            arguments = (given.args, given.kwargs)
            vanished = self.flow.follow_erased(given.name, arguments, outputs, made=made is not None)
            if vanished:
                made, origins = None, origins | vanished
        return made, origins | {index} if made else origins

    def _keep(self, op: Op, given: Given, outputs: tuple[Tensor, ...]) -> None:
        """Keep the operands of an operation that is wanted, guilty, or a witness."""
        if op.index in self._wanted:
            self.kept[op.index] = _captured(op, given, outputs)
        if op.made and len(self.captures) < _MAX_CAPTURES:
            self.captures[op.index] = _captured(op, given, outputs)
        if op.name.startswith(WITNESSES) and len(self.witnesses) < _MAX_CAPTURES:
            self.witnesses[op.index] = Capture(op, given.func, given.kept, given.kwargs, outputs)

    def _pass_on(self, op: Op, given: Given, written: list[_Written], origins: Origins) -> None:
        """The origins flow into what the operation wrote."""
        outs = outs_of(given.func)
        for each in written:
            bad = each.nan or each.inf
            self._writer[each.key] = op.index
            if bad and (op.name in OVERWRITE or op.name in OVERWRITE_PART):
                self._overwriters[each.key] = op.index
            if bad and not origins and self.flow.is_overwritten(each.key, op.name):
                origins = self.flow.overwritten(each.key, op.index)
            self.flow.wrote(each.tensor, each.key, bad=bad, fresh=each.fresh, origins=origins)
            if outs:  # a part of a buffer that is passed for a result will be read
                self.flow.will_be_read(each.key)

    def revise(self, change: Callable[[Op], Op], *, since: int = 0) -> None:
        """Change the records of operations that the diagnosis ran in place of the program.

        Args:
            change: gives the new record of an operation.
            since: the first operation that is changed, by index.
        """
        self.ops[since:] = map(change, self.ops[since:])
        for captures in (self.captures, self.witnesses, self.kept):
            for index, capture in captures.items():
                captures[index] = replace(capture, op=self.ops[index])

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

    def reads_directly(self, op: Op, tensor: Tensor, *, most: int = 64) -> bool:
        """Whether an operation was given a named tensor, or what was computed from it without a parameter."""
        key = self.flow.key(tensor)
        near = self.behind([op.index], lambda each: not self.reads_parameter(each), most=most)
        return any(key in self._reads.get(each.index, ()) for each in near)

    def is_given_to_a_layer(self, tensor: Tensor) -> bool:
        """Whether an operation of the forward pass that reads a parameter is given a named tensor, or a copy of it."""
        key = self.flow.key(tensor)
        for op in self.ops:
            near = [op, *(self.ops[i] for i in op.sources if i >= 0 and self.ops[i].name in _COPIES)]
            given = op.phase == "forward" and any(key in self._reads.get(each.index, ()) for each in near)
            if given and any(map(self.reads_parameter, near)):
                return True
        return False

    def reads_parameter(self, op: Op) -> bool:
        """Whether an operation was given a parameter by itself."""
        return any(self.flow.named[key][0] == "parameter" for key in self._reads.get(op.index, ()))

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


def _read_by(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The arguments whose values an operation reads."""
    if outs := outs_of(func):  # `out=`: written to, and not read
        return args, {key: value for key, value in kwargs.items() if key not in outs}
    return (args[1:] if name in OVERWRITE else args), kwargs


def _outputs_of(given: Given, result: Any) -> tuple[tuple[Tensor, ...], int]:
    """The tensors that an operation gave, and where those begin that it wrote though its schema does not show it."""
    outputs = tuple(tensors_in(given.args[:1] if given.mutable and result is None else result))
    if given.name not in SILENT_WRITERS:
        return outputs, len(outputs)
    statistics = [tensor for tensor in tensors_in(given.args[3:5]) if tensor.is_floating_point()]
    return (*outputs, *statistics), len(outputs)


def _examined(output: Tensor, key: int, *, fresh: bool) -> _Written:
    """What a tensor holds that an operation wrote."""
    return _Written(output, key, fresh, *extremes(output))


def _summary(written: list[_Written]) -> _Summary:
    """What all of these tensors together hold. The dtype is that of the largest finite value, or else the first."""
    nan = inf = False
    absmax: float | None = None
    dtype = ""
    bad = values = 0
    for each in written:
        if each.nan or each.inf:
            nan, inf = nan or each.nan, inf or each.inf
            bad, values = bad + nonfinite_count(each.tensor), values + each.tensor.numel()
        if each.absmax is not None and (absmax is None or each.absmax > absmax):
            absmax, dtype = each.absmax, dtype_name(each.tensor.dtype)
        elif not dtype and each.tensor.is_floating_point():
            dtype = dtype_name(each.tensor.dtype)
    return _Summary(nan, inf, absmax, dtype, bad, values)


def _made(found: _Summary, nan: bool, inf: bool) -> Made:
    """What results that hold NaN or Inf show of an operation whose inputs hold `nan` and `inf` (rule 1)."""
    if found.nan and not nan:
        return "nan"
    return "inf" if found.inf and not (nan or inf) else None


def _captured(op: Op, given: Given, outputs: tuple[Tensor, ...]) -> Capture:
    """The operation with copies of what it was given and what it gave."""
    return Capture(op, given.func, frozen_arguments(given.kept), given.kwargs, frozen(outputs))


def earliest(origins: frozenset[int] | Sequence[int], trace: Trace) -> int | None:
    """The origin that began it: tensors bad before the step first, then operations in order of time."""
    if not origins:
        return None
    outside = [index for index in origins if index < 0]
    if outside:
        rank = {"parameter": 0, "optimizer_state": 1, "buffer": 2, "batch": 3, "overwritten": 4, "constant": 5}
        return min(outside, key=lambda index: rank[trace.externals[index].kind])
    return min(origins)
