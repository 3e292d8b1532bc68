"""The failed step run again by all ranks together, for models that communicate with other ranks while they run.

Sharded weights are gathered in the forward pass, their gradients scattered in the backward pass; a loss may gather the
features of all ranks. One rank alone would never end. So every rank runs its part of the same step again under a
trace, with the same collectives in the same order. Three things differ from a replay by one rank:

*   A collective is never an origin. A bad value that this rank sent keeps its origins; one that came from another rank
    has no origin here, because the other rank finds it.
*   A bad value that enters a collective is a sink, even if all of it goes to another rank's shard.
*   An error in the trace itself must not end the replay on one rank while the others continue: the trace then stops
    recording, and the step runs to its end.

A rank whose part ends early must not leave the others waiting in a collective. So the ranks run in lockstep: before
each collective of the step they exchange which one comes next, and where one of them has another, or has failed,
all of them stop.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from nantrap.errors import NantrapError
from nantrap.locate.batch import tensors_of
from nantrap.locate.failure import Failure
from nantrap.locate.replay.replay import (
    autocast_like,
    backward_from,
    bad_gradients,
    eagerly,
    fails_alike,
    registered,
)
from nantrap.locate.replay.root_call import RootCall
from nantrap.locate.source import is_boundary
from nantrap.locate.torch_private import DispatchMode, schema_of
from nantrap.locate.trace import Trace
from nantrap.locate.trace.origin import Replay, Sink, judge, left_sinks
from nantrap.locate.trace.storage import extremes, tensors_in
from nantrap.locate.twoline.rerun import compute_again

T = TypeVar("T")
_NAMESPACES = ("c10d", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd")
_WAITS = "wait_tensor"
_COPIES = "fsdp"
"""The namespace of operations that only bring tensors into the order in which they are sent, and back."""
_TARGETS = ("out", "all_gather_output")
"""How the arguments that a collective or a copy writes are called, or begin."""
_DONE, _FAILED = 0, 1
"""What a rank sends to the others instead of its next collective."""


class OutOfStepError(NantrapError):
    """The parts of a step that several ranks run do not have the same collectives."""


class Lockstep(DispatchMode):
    """Before each collective all ranks say which one comes next. Holds whether they went on together until now.

    Enter it before any other mode, so that it sees what is really sent.

    Args:
        same: called by all ranks with a number; whether all of them gave the same one.
    """

    def __init__(self, same: Callable[[int], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._same = same
        self.broken = False
        """The ranks were not in step any more, so that all of them have stopped."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if holds_parts(types):
            return NotImplemented
        sends = is_collective(func) and not schema_of(func).name.endswith(_WAITS)
        if sends and (self.broken or not self._same(_mark(func, args, kwargs or {}))):
            self.broken = True
            raise OutOfStepError(f"another rank does not come to {schema_of(func).name}")
        return func(*args, **(kwargs or {}))

    def end(self, *, failed: bool) -> None:
        """This rank's part has ended. Each rank calls it once, after it has left the mode."""
        if not self.broken and not self._same(_FAILED if failed else _DONE):
            self.broken = True


def _mark(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """A number for a collective: its name, and the shapes and types of what is sent."""
    tensors = [tensor for value in (*args, *kwargs.values()) for tensor in tensors_in(value)]
    text = repr((schema_of(func).name, [(tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors]))
    return zlib.crc32(text.encode()) + 2


def holds_parts(types: Any) -> bool:
    """Whether a tensor is spread over ranks, or not there yet: its operations on local tensors come afterwards."""
    names = {each.__name__ for each in types}
    return "DTensor" in names or "AsyncCollectiveTensor" in names


def is_collective(func: Any) -> bool:
    """Whether an operation communicates with other ranks."""
    return getattr(func, "namespace", "") in _NAMESPACES


def can_run_together(failed: Failure) -> str:
    """Why this rank's part of the step cannot be run again; empty if it can."""
    if failed.symptom == "optimizer":
        return "the update made it, and updates are not run again by all ranks"
    if failed.repeatable:
        return ""
    if failed.root_call is None:
        return "no call of the model was recorded"
    if not all(call.cotangents for call in failed.root_call.chain()):
        return "the gradients that came back to the model's outputs were not kept"
    return ""


def compute_again_together(failed: Failure, same: Callable[[int], bool]) -> Failure:
    """In the two-line form: the step with a way to compute this rank's loss again from its source. Every rank calls it.

    Where there is no such way, the step is returned as it is. Where ranks try different statements, all of them stop.
    """
    lockstep = Lockstep(same)
    again = None
    with lockstep:
        if not failed.repeatable:
            again = compute_again(failed)
    _reset_sharded(failed)
    lockstep.end(failed=again is None and not failed.repeatable)
    return failed if again is None else failed.repeated_by(again.forward, again.batch, again.rng)


def replay_together(failed: Failure, same: Callable[[int], bool]) -> tuple[Replay, str]:
    """Run forward and backward again. Every rank calls it at the same time, each with its own part of the step.

    The backward pass is run whatever the loss is: it took part in the failed step, and it leaves sharded weights as
    the next step expects them.

    Args:
        failed: this rank's part of the step.
        same: see `Lockstep`.

    Returns:
        What this rank's trace shows, and what went wrong in the trace itself, in words.
    """
    lockstep = Lockstep(same)
    with failed.rewound(), resharded(failed):
        trace = SharedTrace(failed.root, registered(failed))
        loss: Tensor | None = None
        error: BaseException | None = None
        sinks: list[Sink] = []
        with eagerly(), lockstep, trace:
            try:
                if failed.forward is not None:
                    loss = failed.forward(failed.batch)
                    failed.backward(loss if failed.loss_factor == 1.0 else loss * failed.loss_factor)
                else:
                    outputs = _called_again(failed)
                    backward_from(failed, outputs)
            except Exception as exception:
                error = exception
        if error is not None:
            _reset_sharded(failed)
        lockstep.end(failed=error is not None)
        if failed.forward is None and error is None:
            sinks += [Sink("the model's output", "value", trace.origins_of(tensor)) for _, _, tensor in outputs]
        sinks += left_sinks(failed, trace, loss)
        sinks.append(Sink("what was sent to the other ranks", "gradient", trace.sent))
        replay = replace(judge(trace, sinks), error=None if isinstance(error, OutOfStepError) else error)
        if loss is not None:
            value = float(loss.detach())
            replay = replace(replay, loss=value, alike=fails_alike(failed, value, bad_gradients(failed)))
        trouble = "another rank could not run its part" if lockstep.broken and error is None else trace.trouble
        return replay, str(error) if isinstance(error, OutOfStepError) else trouble


@is_boundary
def _called_again(failed: Failure) -> list[tuple[RootCall, str, Tensor]]:
    """The model's calls of the step, and their outputs."""
    assert failed.root_call is not None
    outputs: list[tuple[RootCall, str, Tensor]] = []
    for call in failed.root_call.chain():
        call.rng.restore()
        with autocast_like(call.autocast), call.as_made(failed.root):
            output = (call.module or failed.root)(*call.args, **call.kwargs)
        outputs += [(call, path, tensor) for path, tensor in tensors_of(output)]
    return outputs


@contextlib.contextmanager
def resharded(failed: Failure) -> Iterator[None]:
    """Whatever happens, sharded modules do not keep gathered weights: the next forward pass gathers the new ones."""
    try:
        yield
    except BaseException:
        _reset_sharded(failed)
        raise
    finally:
        for module in _sharded(failed):
            module.reshard()


def _sharded(failed: Failure) -> list[Any]:
    """The modules of FSDP2, the outermost first."""
    modules: list[Any] = list(failed.root.modules())
    return [
        each
        for each in modules
        if callable(getattr(each, "reshard", None)) and callable(getattr(each, "unshard", None))
    ]


def can_end_early(failed: Failure) -> bool:
    """Whether a part that ended early leaves the model as the next step needs it; FSDP2 has that since torch 2.13."""
    return all(hasattr(module, "reset_iter_state") for module in _sharded(failed))


def _reset_sharded(failed: Failure) -> None:
    """A pass ended in the middle: sharded modules forget it."""
    for module in _sharded(failed):
        with contextlib.suppress(RuntimeError):  # only the outermost one can do it, and it does it for all
            if hasattr(module, "reset_iter_state"):
                module.reset_iter_state()
                return


class SharedTrace(Trace):
    """A trace on each of several ranks. Holds also the origins of what was sent to the others, and its own trouble."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sent: frozenset[int] = frozenset()
        """The origins of bad values that went into a collective."""
        self.trouble = ""
        """Why the trace stopped recording; empty if it did not."""
        self._pending: dict[int, frozenset[int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if holds_parts(types):
            return NotImplemented
        if self.trouble or any(each.__name__ == "FakeTensor" for each in types):
            return func(*args, **kwargs)
        passes = is_collective(func) or getattr(func, "namespace", "") == _COPIES
        given = self._noting(self._before_passing if passes else self.before, func, args, kwargs)
        result = func(*args, **kwargs)
        if given is not None:
            self._noting(self._after_passing if passes else self.after, given, result)
        return result

    def _noting(self, note: Callable[..., T], *args: Any) -> T | None:
        """Let a part of the trace read an operation. An error in it ends the recording, and not the step."""
        try:
            return note(*args)
        except Exception as error:
            self.trouble = f"{type(error).__name__}: {error}"
            return None

    def _before_passing(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Passing:
        """Read what a collective is given, or a copy for one: values pass through it, and nothing begins in it."""
        schema = schema_of(func)
        named = dict(zip((each.name for each in schema.arguments), args, strict=False)) | kwargs
        tensors = {name: list(tensors_in(value)) for name, value in named.items()}
        splits = func.namespace == _COPIES and "split" in schema.name  # reads what was gathered
        written = {each.name for each in schema.arguments if each.alias_info is not None and each.alias_info.is_write}
        targets = {n for n in tensors if n in written or (n.startswith(_TARGETS) and not splits)}
        inputs = [tensor for name, found in tensors.items() if name not in targets for tensor in found]
        outputs = [tensor for name in targets for tensor in tensors[name]]
        waits = schema.name.endswith(_WAITS)
        _, _, origins = self.flow.read(inputs, reads=not waits)
        if waits:
            origins = origins.union(*(self._pending.pop(self.flow.key(t), frozenset()) for t in inputs))
        return _Passing(func, inputs, outputs, bool(targets), waits, origins)

    def _after_passing(self, given: _Passing, result: Any) -> None:
        """Note where the values went that a collective sent, or a copy for one."""
        copies = given.func.namespace == _COPIES
        at_once = given.func.namespace == "c10d"
        outputs = given.outputs
        if at_once:
            outputs = outputs or given.inputs  # in place, as in an all-reduce
            _wait(result)
        elif not given.into:
            outputs = list(tensors_in(result))
        if not copies:
            self.sent |= given.origins
        for output in outputs:
            key = self.flow.key(output)
            if not (at_once or copies or given.waits):  # not there yet: read when it is waited for
                self._pending[key] = given.origins
                self.flow.pending(key)
                continue
            nan, inf, _ = extremes(output)
            self.flow.wrote(output, key, bad=nan or inf, fresh=True, origins=given.origins)


class _Passing(NamedTuple):
    """A collective, or a copy for one, and what it was given.

    `into`: it was given the tensors that it writes (`outputs`); `waits`: it only waits for what was sent before.
    """

    func: Any
    inputs: list[Tensor]
    outputs: list[Tensor]
    into: bool
    waits: bool
    origins: frozenset[int]


def _wait(result: Any) -> None:
    """Wait until a collective is done, so that its result can be read."""
    for part in result if isinstance(result, (list, tuple)) else (result,):
        wait = getattr(part, "wait", None)
        if not isinstance(part, Tensor) and callable(wait):
            wait()
