"""Is the batch in the range of the batches before it: pixels of 0 to 255 instead of 0 to 1, one value of 1e25.

Every floating-point tensor of a batch has a path (`image`, `target[1]`), and for each path the largest magnitudes of
the recent batches are kept. A batch is far outside when it exceeds the largest of them by a factor of 20, or by more
where batches differ much among themselves: the factor is the square of largest over median if that is greater. So data
with long tails raise no alarm. Ranges can also be given; then whatever lies outside is reported, from the first batch.

Values that are not finite do not count here (a mask of -Inf is no measurement): finding those is the guard's own work.
"""

from __future__ import annotations

import fnmatch
import itertools
import math
from collections import deque
from typing import Any

import torch
from torch import Tensor

from nantrap import finite
from nantrap.guard.policy import Policy
from nantrap.guard.window import Micro
from nantrap.incident import Finding
from nantrap.incident.wording import some_of
from nantrap.locate import tensors_of
from nantrap.locate.batch import may_be_listed_image, samples_in
from nantrap.locate.wrapping import arguments_by_name
from nantrap.thresholds import far_outside

_FEWEST = 8
"""Number of batches that are seen before any is called unusual."""
_KEPT = 64
_MOST_INPUTS = 16


class Usual:
    """The magnitudes of the recent batches at one path, and the range of all of them."""

    def __init__(self) -> None:
        self.low, self.high = math.inf, -math.inf
        self.count = 0
        self._recent: deque[float] = deque(maxlen=_KEPT)

    def add(self, low: float, high: float) -> None:
        """One more batch was used for training."""
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.count += 1
        if low or high:  # a batch of zeros says nothing of the scale
            self._recent.append(max(abs(low), abs(high)))

    def limit(self) -> float:
        """Above which magnitude a batch is far outside; infinite while too few batches were seen."""
        if len(self._recent) < _FEWEST:
            return math.inf
        return far_outside(self._recent)


class Ranges:
    """Checks each batch before its forward pass. Holds what is usual by path, and what was found in this step.

    Args:
        policy: its `batches` say what is checked.
    """

    def __init__(self, policy: Policy) -> None:
        self.findings: list[Finding] = []
        """What lies outside in the step that is being made."""
        self._learns = policy.batches.unusual != "off"
        self._given = dict(policy.batches.ranges or {})
        self._most_in_a_row = policy.max_consecutive_skips
        self._usual: dict[str, Usual] = {}
        self._fresh: list[tuple[str, float, float]] = []
        self._in_a_row = 0

    def begin(self) -> None:
        """Before the first forward pass of a step: forget what a step left that ended with an exception."""
        self.findings.clear()
        self._fresh.clear()

    def check(self, batch: Any) -> None:
        """Compare a batch with the usual range, and note what lies outside. One host read."""
        tensors = [(path, t.detach()) for path, t in tensors_of(batch) if _is_measured(t)]
        if not tensors:
            return
        extremes = [extreme for _, tensor in tensors for extreme in torch.aminmax(tensor)]
        values = iter(finite.read(extremes))
        for path, tensor in tensors:
            low, high = next(values), next(values)
            if not (math.isfinite(low) and math.isfinite(high)):
                rest = tensor[tensor.isfinite()]
                if not rest.numel():
                    continue
                low, high = (float(extreme) for extreme in rest.aminmax())
            self._judge(batch, path, tensor, low, high)

    def end(self, *, applied: bool) -> list[Finding]:
        """The step is over. Returns what was found in it; the usual range follows the batches that were applied.

        After as many unusual steps in a row as the policy skips, the new range is taken as usual.
        """
        found, self.findings = self.findings, []
        self._in_a_row = self._in_a_row + 1 if found else 0
        outside = {finding.name for finding in found}
        accepts = applied and self._in_a_row > self._most_in_a_row
        for path, low, high in self._fresh:
            if applied and (path not in outside or accepts):
                self._usual.setdefault(path, Usual()).add(low, high)
        self._fresh = []
        return found

    @property
    def may_skip(self) -> bool:
        """Whether an unusual batch is skipped. More of them in a row than the policy skips are a new range."""
        return self._in_a_row < self._most_in_a_row

    def _judge(self, batch: Any, path: str, tensor: Tensor, low: float, high: float) -> None:
        """Compare the least and the greatest value of one tensor with the given range, or else with the usual one."""
        self._fresh.append((path, low, high))
        given = next((limits for pattern, limits in self._given.items() if fnmatch.fnmatchcase(path, pattern)), None)
        if given is not None:
            if given[0] <= low and high <= given[1]:
                return
            outside = (tensor < given[0]) | (tensor > given[1])
            words = f"the given range is {given[0]:.4g} to {given[1]:.4g}"
        else:
            usual = self._usual.get(path)
            if not self._learns or usual is None or max(-low, high) <= (limit := usual.limit()):
                return
            outside = tensor.abs() > limit
            words = f"{usual.low:.4g} to {usual.high:.4g} in the {usual.count:,} batches before"
        outside &= tensor.isfinite()
        samples = samples_in(batch, tensor, outside)
        where = (
            f" in {'samples' if len(samples) > 1 else 'sample'} {some_of(list(map(str, samples)))}" if samples else ""
        )
        furthest = high if high >= -low else low
        note = f"reaches {furthest:.4g}{where}; {words}"
        stats = finite.tensor_stats(tensor)
        self.findings.append(Finding("batch", path, "data", stats=stats, value=furthest, note=note, samples=samples))


def inputs_of(micro: Micro) -> list[Finding]:
    """The tensors of a micro-batch with their statistics; of the model's call where only that is seen."""
    batch, note = micro.batch, ""
    if micro.forward is None:
        call = micro.root_call
        if call is None or call.module is None:
            return []
        batch = arguments_by_name(call.module, call.args, call.kwargs)
        note = "an argument of the model"
    found = []
    for path, tensor in itertools.islice(tensors_of(batch), _MOST_INPUTS):
        stats = finite.tensor_stats(tensor.detach())
        bad = stats.nonfinite and tensor.layout == torch.strided
        samples = samples_in(batch, tensor, finite.bad_places(tensor)) if bad else ()
        if samples:
            samples = _as_entries(micro, tensor, samples)
        found.append(Finding("batch", path, "data", stats=stats, note=note, samples=samples))
    return found


def _as_entries(micro: Micro, tensor: Tensor, rows: tuple[int, ...]) -> tuple[int, ...]:
    """The bad samples of a tensor: its bad rows, or the number of the list's entry that it is."""
    call = micro.root_call
    if call is None:
        return rows
    entry = None if call.origin is None else call.origin.sample_of(tensor)
    if entry is not None:
        return (entry,)
    return () if may_be_listed_image((call.args, call.kwargs), tensor) else rows


def outside_in_words(findings: list[Finding]) -> str:
    """What is unusual, in one sentence."""
    first, more = findings[0], len(findings) - 1
    others = f"; {more} more of its tensors too" if more else ""
    return f"the batch is far outside its range: {first.name} {first.note}{others}"


def _is_measured(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and finite.is_ordinary(tensor) and tensor.numel() > 0
