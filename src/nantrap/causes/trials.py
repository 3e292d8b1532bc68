"""Trials: the failed step again with exactly one thing changed. Each leaves everything as it found it, bit for bit."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nantrap.causes.replacement import Replacement
from nantrap.finite import any_nonfinite, clip_with_norm, gradient_norm
from nantrap.incident import Source, Trial
from nantrap.locate import RngState
from nantrap.locate.batch import with_tensor
from nantrap.locate.samples import fails
from nantrap.locate.storage import map_leaves
from nantrap.locate.trace import recomputing

if TYPE_CHECKING:
    from nantrap.causes.case import Case

_HALF = (torch.float16, torch.bfloat16)
_AS_IT_WAS = object()


class Laboratory:
    """Runs trials on one case, each at most once, within a budget. Holds their results."""

    def __init__(self, case: Case, *, seconds: float, most: int = 12) -> None:
        self._case = case
        self._deadline = time.monotonic() + seconds
        self._most = most
        self._done: dict[str, Trial] = {}

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials, in the order in which they were run."""
        return tuple(self._done.values())

    def run(self, name: str, change: str, experiment: Callable[[], tuple[bool, float | None]]) -> Trial:
        """Run one trial. `experiment` tells whether the step was finite, and its loss. What it raises is noted."""
        if name in self._done:
            return self._done[name]
        started = time.monotonic()
        finite: bool | None = None
        loss: float | None = None
        note = ""
        if started > self._deadline or len(self._done) >= self._most:
            note = "not run: the budget for trials was used up"
        else:
            try:
                finite, loss = experiment()
            except Exception as error:
                lines = str(error).splitlines()
                note = f"{type(error).__name__}: {lines[0] if lines else ''}"
        trial = Trial(
            number=len(self._done) + 1,
            name=name,
            change=change,
            finite=finite,
            loss=loss,
            note=note,
            milliseconds=round((time.monotonic() - started) * 1e3, 1),
        )
        self._done[name] = trial
        return trial

    # ---- the step, with one thing changed

    def again(self) -> Trial:
        """Nothing changed: a transient fault does not come back."""
        return self.run("again", "nothing: the same step once more", self._step)

    def single_precision(self) -> Trial:
        """Every operation in float32 instead of half precision."""
        return self.run("fp32", "every operation in float32", lambda: self._step(around=_SinglePrecision()))  # type: ignore[no-untyped-call]

    def without_samples(self, samples: tuple[int, ...], size: int) -> Trial:
        """The batch without the suspect samples."""
        rest = [i for i in range(size) if i not in set(samples)]
        shown = ", ".join(map(str, samples[:6])) + (" ..." if len(samples) > 6 else "")

        def experiment() -> tuple[bool, float | None]:
            return not fails(self._case.failed, rest, size), None

        return self.run("without_samples", f"the batch without sample {shown}", experiment)

    def with_tensor(self, path: str, change: str, old: Tensor, new: Tensor) -> Trial:
        """The batch with one of its tensors changed."""
        batch = with_tensor(self._case.failed.batch, old, new)
        return self.run(f"changed:{path}", change, lambda: self._step(batch=batch))

    def loss_scale_one(self, scale: float) -> Trial:
        """The gradients of the loss divided by its scale."""
        return self.run("scale_one", f"a loss scale of 1 instead of {scale:g}", lambda: self._step(seed=1.0 / scale))

    def replaced(self, source: Source, family: str, instead: str) -> Trial:
        """The guilty call replaced by a stable one, at its own source line only."""
        change = f"{instead} in line {source.line}"

        def experiment() -> tuple[bool, float | None]:
            replacement = Replacement(source, family)
            result = self._step(around=replacement)
            if not replacement.hits:
                raise LookupError("the call was not found at its line")
            return result

        return self.run(f"replaced:{family}", change, experiment)

    def with_weights(self, name: str, change: str, alter: Callable[[], None]) -> Trial:
        """Other weights for one run; `alter` may write the parameters, which are put back."""

        def experiment() -> tuple[bool, float | None]:
            kept = [(p, p.detach().clone()) for p in self._case.failed.parameters.values()]
            try:
                with torch.no_grad():
                    alter()
                return self._step()
            finally:
                with torch.no_grad():
                    for parameter, values in kept:
                        parameter.copy_(values)

        return self.run(name, change, experiment)

    # ---- the update, with one thing changed

    def fresh_optimizer_state(self) -> Trial:
        """The same gradients, the optimizer's memory empty."""

        def experiment() -> tuple[bool, float | None]:
            with self._update_rewound():
                self._case.failed.optimizer.state.clear()
                return self._update(), None

        return self.run("fresh_state", "a fresh optimizer state", experiment)

    def update_in_single_precision(self) -> Trial:
        """Parameters, gradients and state in float32 for the update."""

        def experiment() -> tuple[bool, float | None]:
            failed = self._case.failed
            with self._update_rewound():
                kept = [(p, p.data) for p in failed.parameters.values()]
                try:
                    for parameter in failed.parameters.values():
                        gradient = parameter.grad
                        parameter.grad = None
                        parameter.data = parameter.data.float()
                        parameter.grad = None if gradient is None else gradient.float()
                    for state in failed.optimizer.state.values():
                        for key, value in state.items():
                            if isinstance(value, Tensor) and value.dtype in _HALF:
                                state[key] = value.float()
                    return self._update(), None
                finally:
                    for parameter, data in kept:
                        parameter.grad = None
                        parameter.data = data

        return self.run("update_fp32", "the update in float32", experiment)

    # ---- the steps before, with another rate

    def rate(self, name: str, change: str, rate_of: Callable[[int, float], float]) -> Trial:
        """The steps since an older state again, with other rates. `rate_of(step, rate)` gives the new one."""

        def experiment() -> tuple[bool, float | None]:
            case = self._case
            anchors, failed = case.anchors, case.failed
            if not failed.repeatable:
                raise LookupError("the two-line form cannot run earlier steps again")
            drive = _drivable(anchors, failed.step)
            if drive is None:
                raise LookupError("no older state is kept from which the steps could be run again")
            anchor, attempts = drive
            rates = {record.step: record.lr for record in case.history}
            found_rng, present = RngState.capture(), anchors.capture(failed.step)
            try:
                anchors.restore(anchor)
                for attempt in attempts:
                    if attempt.step == failed.step:
                        break
                    if attempt.applied:
                        self._drive(attempt, rates.get(attempt.step, ()), rate_of)
                    if any_nonfinite(failed.parameters.values()):
                        return False, None
                return self._forward_and_backward(failed.batch)
            finally:
                anchors.restore(present)
                for parameter in failed.parameters.values():
                    parameter.grad = None
                found_rng.restore()

        kept = {name: parameter.grad for name, parameter in self._case.failed.parameters.items()}
        try:
            return self.run(name, change, experiment)
        finally:
            for parameter_name, parameter in self._case.failed.parameters.items():
                parameter.grad = kept[parameter_name]

    # ---- parts

    def _step(
        self,
        *,
        around: contextlib.AbstractContextManager[Any] | None = None,
        seed: float | None = None,
        batch: Any = _AS_IT_WAS,
    ) -> tuple[bool, float | None]:
        failed = self._case.failed
        if failed.forward is None:
            raise LookupError("the two-line form cannot compute the loss again; guard.attempt can")
        with failed.rewound(), around or contextlib.nullcontext():
            given = failed.batch if batch is _AS_IT_WAS else batch
            return self._forward_and_backward(given, seed=seed, rng=None)

    def _forward_and_backward(
        self, batch: Any, *, seed: float | None = None, rng: RngState | None = None
    ) -> tuple[bool, float | None]:
        failed = self._case.failed
        assert failed.forward is not None
        if rng is None and failed.rng is not None:
            failed.rng.restore()
        for parameter in failed.parameters.values():
            parameter.grad = None
        loss = failed.forward(batch)
        value = float(loss.detach())
        if not math.isfinite(value):
            return False, value
        factor = failed.loss_factor if seed is None else seed
        loss.backward(torch.full_like(loss, factor))
        finite = not any_nonfinite([p.grad for p in failed.parameters.values()])
        if finite and failed.bad_buffers:
            buffers = dict(failed.root.named_buffers())
            finite = not any_nonfinite([buffers[name] for name in failed.bad_buffers if name in buffers])
        return finite, value

    @contextlib.contextmanager
    def _update_rewound(self) -> Iterator[None]:
        failed = self._case.failed
        with failed.rewound():
            for name, parameter in failed.parameters.items():
                gradient = failed.gradients.get(name)
                parameter.grad = None if gradient is None else gradient.clone()
            yield

    def _update(self) -> bool:
        failed = self._case.failed
        assert failed.run_update is not None
        failed.run_update()
        state = [
            value
            for entry in failed.optimizer.state.values()
            if isinstance(entry, dict)
            for value in entry.values()
            if isinstance(value, Tensor)
        ]
        return not any_nonfinite([*failed.parameters.values(), *state])

    def _drive(self, attempt: Any, rates: tuple[float, ...], rate_of: Callable[[int, float], float]) -> None:
        """One earlier step, as the plain loop would make it."""
        case = self._case
        optimizer = case.failed.optimizer
        attempt.rng.restore()
        for parameter in case.failed.parameters.values():
            parameter.grad = None
        for batch in attempt.batches:
            loss = attempt.forward(batch) / len(attempt.batches)
            loss.backward()
        parameters = list(case.failed.parameters.values())
        if case.max_grad_norm is not None:
            total = gradient_norm([p.grad for p in parameters if p.grad is not None])
            clip_with_norm(parameters, max_norm=case.max_grad_norm, total=total)
        for index, group in enumerate(optimizer.param_groups):
            rate = rates[index] if index < len(rates) else float(group["lr"])
            group["lr"] = rate_of(attempt.step, rate)
        optimizer.step()


class _SinglePrecision(TorchDispatchMode):
    """Every operation in float32: half inputs are widened, half results are not made. Autocast has no effect in it."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func._schema.is_mutable:  # the memory that is written keeps its dtype
            return func(*args, **(kwargs or {}))
        in_backward = torch._C._current_graph_task_id() != -1
        if in_backward and func is torch.ops.aten._to_copy.default and not recomputing(sys._getframe(1)):
            return func(*args, **(kwargs or {}))  # autograd hands a half-precision leaf its gradient in its own dtype
        return func(*map_leaves(args, _widened), **map_leaves(kwargs or {}, _widened))


def _widened(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.float() if leaf.dtype in _HALF else leaf
    return torch.float32 if isinstance(leaf, torch.dtype) and leaf in _HALF else leaf


def _drivable(anchors: Any, step: int) -> tuple[Any, list[Any]] | None:
    """The oldest anchor from which every step up to this one can be run again."""
    if anchors is None:
        return None
    attempts = [attempt for attempt in anchors.attempts if attempt.step < step]
    for anchor in reversed(anchors.candidates()):
        since = [attempt for attempt in attempts if attempt.step >= anchor.step]
        if len(since) == step - anchor.step and len(since) >= 1:
            return anchor, since
    return None
