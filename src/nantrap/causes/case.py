"""`Case`: the facts of one failure, as the rules read them. Imports no torch: tensors are only passed through."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from nantrap.causes.claim import Remedy
from nantrap.incident import Cause, Evidence
from nantrap.thresholds import has_grown

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.references import Compared
    from nantrap.causes.trials import Laboratory
    from nantrap.incident import Incident, Phase, Trial
    from nantrap.locate import Failure, Location, RunFacts
    from nantrap.locate.trace import Capture, External, Op, Trace

HALF = ("float16", "bfloat16")
RECENT = 64
"""How many of the last steps are searched for growth."""
_MEASURES = {"linalg_vector_norm": "norm", "norm": "norm", "sum": "sum", "mean": "mean", "amax": "largest value",
             "max": "largest value", "dot": "product", "vdot": "product"}  # fmt: skip


@dataclass
class Case:
    """One failure as the rules read it: the step, where it began, and the runner of trials."""

    failure: Failure
    location: Location
    incident: Incident
    lab: Laboratory = field(init=False)
    refuted: list[Cause] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What rules saw that is worth a sentence, though it is no cause."""
    _kept: dict[int, Capture | None] = field(default_factory=dict)

    @property
    def run(self) -> RunFacts:
        """What is known of the run around the step."""
        return self.failure.run

    # ---- the origin

    @property
    def phase(self) -> Phase:
        """The phase in which it began."""
        return self.location.phase

    @property
    def op(self) -> str:
        """The guilty operation in its plainest form: `div` for `aten.div_` and `aten._foreach_div`."""
        name = (self.location.op or "").removeprefix("aten.")
        return name.removeprefix("_foreach_").rstrip("_").lstrip("_") if name else ""

    @property
    def place(self) -> str:
        """The guilty module in a sentence: its name, the loss, or the model's own code. `0` is called `module 0`."""
        module = self.location.module
        if module is None:
            return "the step"
        if module == "loss":
            inside = self.capture is not None and self.capture.op.inside
            if self.failure.during != "training" and not inside:
                return "the program's own code"
            return "the model's own code" if inside else "the loss"
        return f"module {module}" if str(module)[0].isdigit() else str(module)

    @property
    def node(self) -> str:
        """The autograd node, or an empty string."""
        return self.location.node or ""

    @property
    def decomposes(self) -> bool:
        """Whether the autograd node belongs to a matrix decomposition."""
        words = ("Linalg", "Svd", "Eigh", "Cholesky", "Qr", "Eig")
        return any(word in self.node for word in words) and "VectorNorm" not in self.node

    @property
    def derivative(self) -> str:
        """`derivative`, or `second derivative` where the program itself took one (a force, a gradient penalty)."""
        order = 1 if self.capture is None else self.capture.op.order
        return ("", "second ", "third ")[min(max(order, 1), 3) - 1] + "derivative"

    @property
    def capture(self) -> Capture | None:
        """The guilty operation with its inputs and outputs, if it is one and was replayed."""
        return self.location.capture

    @property
    def external(self) -> External | None:
        """The tensor that was bad before the step, if that is how it began."""
        return self.location.external

    @property
    def trace(self) -> Trace | None:
        """The trace of the replay."""
        return self.location.replay.trace if self.location.replay is not None else None

    @functools.cached_property
    def inputs(self) -> list[Tensor]:
        """The floating-point input tensors of the guilty operation, dense and with arithmetic.

        Of an operation on counts alone (`1 / counts`, `log(counts)`) they are the counts.
        """
        from nantrap.finite import as_dense

        given = [] if self.capture is None else self.capture.inputs()
        dense = [as_dense(tensor) for tensor in given if tensor.is_floating_point() or tensor.is_complex()]
        return [tensor for tensor in dense if tensor is not None] if dense else [tensor.double() for tensor in given]

    @functools.cached_property
    def output(self) -> Tensor | None:
        """The first bad output of the guilty operation, dense and with arithmetic."""
        from nantrap.finite import as_dense

        return None if self.capture is None or self.position is None else as_dense(self.capture.outputs[self.position])

    @functools.cached_property
    def position(self) -> int | None:
        """Which output of the guilty operation is the first bad one."""
        from nantrap.finite import bad_places

        outputs = () if self.capture is None else self.capture.outputs
        return next((i for i, tensor in enumerate(outputs) if bool(bad_places(tensor).any())), None)

    @functools.cached_property
    def kernels(self) -> list[Compared]:
        """The operators of the step that have a plain form, each beside it."""
        from nantrap.causes.references import compare_kernels

        return [] if self.location.unwritten else compare_kernels(self)

    @property
    def wrong_kernel(self) -> Compared | None:
        """The first of them that differs from its plain form."""
        return next((each for each in self.kernels if each.differs is not None), None)

    @property
    def dtype(self) -> str:
        """The dtype of the bad output: `float16`."""
        if self.capture is None or self.position is None:
            return ""
        return str(self.capture.outputs[self.position].dtype).removeprefix("torch.")

    @property
    def half(self) -> bool:
        """Whether the guilty operation gave half precision."""
        return self.dtype in HALF

    @functools.cached_property
    def any_half(self) -> bool:
        """Whether half precision occurs anywhere in the step."""
        return self.trace is not None and any(op.dtype in HALF for op in self.trace.ops)

    @property
    def fails_in_float32(self) -> bool:
        """Whether the step was run again with every operation in float32 and failed as well: not a matter of range."""
        return self.lab.single_precision().finite is False

    @property
    def made(self) -> str:
        """`nan` or `inf`: what the guilty operation made out of better inputs."""
        return "" if self.capture is None else (self.capture.op.made or "")

    def source_ops(self, op: Op, argument: int) -> list[Op]:
        """The operations behind one input of `op`, nearest first, along its first inputs."""
        trace = self.trace
        chain: list[Op] = []
        if trace is None or argument >= len(op.sources):
            return chain
        index = op.sources[argument]
        while index >= 0 and len(chain) < 16:
            current = trace.ops[index]
            chain.append(current)
            index = next((source for source in current.sources if 0 <= source < current.index), -1)
        return chain

    @functools.cached_property
    def divisor_measures(self) -> str:
        """`norm`, `sum`: what the divisor of the guilty division measures of a tensor, and that is 0; else empty."""
        sources = () if self.capture is None else self.capture.op.sources
        for op in self.source_ops(self.capture.op, len(sources) - 1)[:3] if self.capture is not None else ():
            found = _MEASURES.get(op.name.removeprefix("aten.").removeprefix("_foreach_"))
            if found is not None:  # what is 0 after it only (a factor of 0) is another matter
                return found if not op.absmax else ""
        return ""

    def was_given(self, tensor: Tensor) -> Literal["loader", "argument", ""]:
        """Where a tensor came from: what the data loader gave, an argument of the model, or made on the way.

        What is passed to `guard.attempt` is the batch. In the two-line form only the names that the caller's loop
        assigns from its iterable are: a tensor that the loop's own code made is an argument of the model at most.
        """
        from nantrap.locate import tensors_of
        from nantrap.locate.trace.storage import share_memory
        from nantrap.locate.twoline.caller import given_by_loop, replaced_by_loop

        given = [t for _, t in tensors_of(self.failure.batch)]
        if not self.failure.repeatable or not given:  # a closure reads its batch itself
            given += given_by_loop()
        replaced = replaced_by_loop() if self.failure.root_call is not None else []
        if any(share_memory(t, tensor) for t in given) and not any(share_memory(t, tensor) for t in replaced):
            return "loader"
        for call in self.failure.calls:
            if any(share_memory(t, tensor) for _, t in tensors_of((call.args, call.kwargs))):
                return "loader" if call.loaded else "argument"
        return ""

    def bad_model_inputs(self) -> list[tuple[str, Tensor]]:
        """The inputs of the model that hold NaN or +Inf and were not made of finite data: their names and themselves.

        -Inf alone is mostly a mask; where there is nothing else, it masks nothing.
        """
        from nantrap.finite import readable
        from nantrap.locate import tensors_of
        from nantrap.locate.replay.replay import given_to

        found = []
        for call in self.failure.calls:
            for path, tensor in () if call.made_from_finite else tensors_of(given_to(call, self.failure)):
                if tensor.grad_fn is not None or not tensor.is_floating_point():
                    continue
                values = readable(tensor)  # those that a sparse one holds
                if values is None:
                    continue
                if bool((values.isnan() | values.isposinf()).any()) or bool(values.isneginf().all()):
                    found.append((path, tensor))
        return found

    def made_from_finite(self, tensor: Tensor) -> bool:
        """Whether a tensor is an input of the model that the program made of a batch whose values are finite."""
        from nantrap.locate import tensors_of
        from nantrap.locate.trace.storage import share_memory

        calls = [call for call in self.failure.calls if call.made_from_finite]
        return any(share_memory(t, tensor) for call in calls for _, t in tensors_of((call.args, call.kwargs)))

    @property
    def loop_is_finite(self) -> bool:
        """Whether the caller's loop holds tensors that it took from its iterable, and all of them are finite."""
        from nantrap.finite import any_nonfinite
        from nantrap.locate.twoline.caller import given_by_loop

        call = self.failure.root_call
        tensors = [] if self.failure.repeatable or (call is not None and call.passed) else given_by_loop()
        return bool(tensors) and not any_nonfinite(tensors)

    @functools.cached_property
    def faithful(self) -> bool:
        """Whether what was measured belongs to the failed step: read from its own graph, or in a replay that failed
        in the same way."""
        replay = self.location.replay
        if replay is None or self.external is not None:
            return True
        own = self.capture is not None and replay.trace.captures.get(self.capture.op.index) is not self.capture
        return own or replay.alike is not False

    @property
    def has_all_operands(self) -> bool:
        """Whether every operand of the guilty operation was recorded as a copy, rather than by reference."""
        from nantrap.locate.trace.records import CLONE_LIMIT

        capture = self.capture
        return capture is not None and not capture.assumed and all(t.numel() <= CLONE_LIMIT for t in capture.inputs())

    @property
    def in_users_backward(self) -> bool:
        """Whether it began in a backward pass that the user wrote: of a custom function, or a hook."""
        if self.phase != "backward" or self.capture is None:
            return False
        from nantrap.locate.nodes import operation_name

        own = bool(self.node) and (operation_name(self.node) is None or not self.node[-1].isdigit())
        return own and self.capture.op.place is not None  # PyTorch's nodes end with a number: AbsBackward0

    @functools.cached_property
    def feeds_a_logarithm(self) -> bool:
        """Whether a logarithm is taken of what the guilty operation gave, directly or with something added."""
        if self.trace is None or self.capture is None:
            return False
        reached = {self.capture.op.index}
        for op in self.trace.ops[self.capture.op.index + 1 :]:
            if op.phase == "forward" and reached & set(op.sources):
                if op.name.rstrip("_") in ("aten.log", "aten.log1p"):
                    return True
                if op.name.rstrip("_") in ("aten.add", "aten.view", "aten.index", "aten.gather", "aten.squeeze"):
                    reached.add(op.index)
        return False

    def operands_of(self, index: int) -> Capture | None:
        """An operation of the replay with its operands: the replay is run once more to keep them."""
        replay = self.location.replay
        if replay is None or replay.again is None:
            return None
        if index in replay.trace.captures:
            return replay.trace.captures[index]
        if index not in self._kept:
            kept = replay.again(frozenset({index})).kept.get(index)
            same = kept is not None and kept.op.name == replay.trace.ops[index].name
            self._kept[index] = kept if same else None
        return self._kept[index]

    def is_updated_in_forward(self, external: External) -> bool:
        """Whether a buffer is one that a forward pass writes, as seen in the replay."""
        return external.kind == "buffer" and self.trace is not None and self.trace.wrote(external.tensor)

    @functools.cached_property
    def bad_number(self) -> float | None:
        """A plain number, no tensor, that is NaN or Inf and was given to the operation in arithmetic."""
        from nantrap.locate.trace.operations import ARITHMETIC  # knows torch; the texts of the causes open without it

        op = None if self.location.replay is None else self.location.replay.op
        if op is None or op.name not in ARITHMETIC:
            return None
        return next((number for number in op.scalars if not math.isfinite(number)), None)

    def try_replacement(self, family: str) -> Trial | None:
        """Write the guilty call in another form at its own line, if line and step can be run again."""
        source = self.location.source
        if source is None or not self.failure.repeatable:
            return None
        return self.lab.replaced(source, family)

    def remedy(self, family: str, trial: Trial | None, name: str = "") -> Remedy:
        """What was written instead of the guilty call, or would be, with its trial."""
        from nantrap.causes.replacement import words_of

        if trial is not None and trial.finite is not None:
            return Remedy(self.lab.written(trial), trial)
        given = () if self.capture is None or name else self.capture.args
        return Remedy(words_of(family, name or self.op, given), trial)

    def refute(self, slug: str, trial: Trial, text: str) -> None:
        """Note a cause that a trial contradicts."""
        self.refuted.append(Cause(slug, summary=text, evidence=(Evidence(text, kind="trial", trial=trial.number),)))

    # ---- the history

    @functools.cached_property
    def first_step(self) -> bool:
        """Whether no step was applied before: the run begins with this failure."""
        return not self.run.history.applied()

    def was_loaded_bad(self, name: str) -> bool:
        """Whether a parameter or buffer was not finite when `load_state_dict` ended, since the last step."""
        return self.run.loaded is not None and name in self.run.loaded

    @functools.cached_property
    def growth(self) -> float:
        """How many times larger |loss| or the gradient norm is now than at its smallest in the recent steps."""
        applied = self.run.history.applied()[-RECENT:]
        return max(self.loss_growth, _growth([record.grad_norm for record in applied]))

    @property
    def grew(self) -> bool:
        """Whether the loss or the gradient norm really rose over the recent steps."""
        return has_grown(self.growth)

    @functools.cached_property
    def loss_growth(self) -> float:
        """How many times larger |loss| is now than in the first half of the recent steps.

        Zero has no meaning for a loss that may be negative, such as the surrogate of a policy: it changes by its noise
        from 1e-8 to 1e-2. Only what is above 1 counts there.
        """
        losses = [record.loss for record in self.run.history.applied()[-RECENT:]]
        last = self.incident.loss
        if self.phase == "optimizer" and not self.failure.evaluated and last is not None and math.isfinite(last):
            losses.append(last)  # the step was good until its update
        least = 1.0 if min(losses, default=0.0) < 0 else 0.0
        return _growth([max(abs(loss), least) for loss in losses])

    def calls_of(self, *names: str) -> Iterator[Capture]:
        """The recorded forward calls of these operations: the guilty one, and those kept as witnesses."""
        captures = [self.capture] if self.capture is not None else []
        captures += list(self.trace.witnesses.values()) if self.trace is not None else []
        captures += self.location.witnesses
        for capture in captures:
            if capture.op.phase == "forward" and capture.op.name.startswith(names):
                yield capture


def _growth(values: list[float]) -> float:
    """The last value over the median of the first half of the window: above 1 only if it really rose."""
    if len(values) < 2:
        return 1.0
    before = sorted(values[: max(1, len(values) // 2)])
    middle = before[len(before) // 2]
    return values[-1] / middle if middle > 0 else 1.0
