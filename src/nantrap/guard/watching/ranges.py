"""Is it in the range of what came before: the batch (pixels of 0 to 255 and not 0 to 1), the loss, the gradient norm.

*Batches.* Every floating-point tensor of a batch has a path (`image`, `target[1]`), and for each path the largest
magnitudes of the recent batches are kept. A batch is far outside when it exceeds the largest of them by a factor of 20,
or by more where batches differ much among themselves: the factor is the square of largest over median if that is
greater. So data with long tails raise no alarm. Ranges can also be given; then whatever lies outside is reported, from
the first batch. Values that are not finite do not count here (a mask of -Inf is no measurement): finding those is the
guard's own work.

*Loss and norm.* A mean and a standard deviation are moved by the very value they should judge, and a single NaN makes
them NaN for good. The median and the median absolute deviation ignore up to half of the window, non-finite values never
enter, and a value that was called a spike enters clamped, so that a new level is accepted after a while.
"""

from __future__ import annotations

import fnmatch
import math
from collections import deque
from typing import Any

import torch
from torch import Tensor

from nantrap import finite
from nantrap.guard.policy import Policy
from nantrap.incident import Finding
from nantrap.incident.wording import some_of
from nantrap.locate import tensors_of
from nantrap.locate.batch import samples_in
from nantrap.thresholds import far_outside

_FEWEST = 8
"""Number of batches that are seen before any is called unusual."""
_KEPT = 64


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


def outside_in_words(findings: list[Finding]) -> str:
    """What is unusual, in one sentence."""
    first, more = findings[0], len(findings) - 1
    others = f"; {more} more of its tensors too" if more else ""
    return f"the batch is far outside its range: {first.name} {first.note}{others}"


def _is_measured(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and finite.is_ordinary(tensor) and tensor.numel() > 0


_MAD_TO_SIGMA = 1.4826
_RELATIVE_FLOOR = 0.02
_OF_THE_LARGEST = 4.0
"""With the usual threshold of 12, a loss that takes both signs spikes at three times its largest recent deviation."""
_MEASURE_EVERY = 16


class SpikeDetector:
    """Holds the last `window` values in order of arrival, and the limit that follows from them."""

    def __init__(self, *, window: int, threshold: float, warmup: int) -> None:
        self._recent: deque[float] = deque(maxlen=window)
        self._threshold = threshold
        self._warmup = warmup
        self._seen = 0
        self.limit = math.inf
        self._median = 0.0
        self._sigma = 0.0

    def usual_below(self, value: float) -> float | None:
        """The median of the recent values if `value` lies so far above them that it is a spike; else `None`."""
        if not math.isfinite(value) or self._seen < self._warmup or value <= self.limit:
            return None
        self._measure()
        return self._median if value - self._median > self._threshold * self._sigma else None

    def add(self, value: float) -> None:
        """Let an applied step's value into the statistic."""
        if not math.isfinite(value):
            return
        self._seen += 1
        self._recent.append(value if value < self.limit else self.limit)
        # The limit is computed again only at intervals; in between, it is one comparison per step.
        if self._seen == self._warmup or (self._seen % _MEASURE_EVERY == 0 and self._seen >= self._warmup):
            self._measure()

    def steps_to_measure(self) -> int:
        """After how many more values the limit changes."""
        if self._seen < self._warmup:
            return self._warmup - self._seen
        return _MEASURE_EVERY - self._seen % _MEASURE_EVERY

    def _measure(self) -> None:
        """Take median, spread and limit from the values kept now."""
        ordered = sorted(self._recent)
        middle = len(ordered) // 2
        self._median = median = ordered[middle]
        deviations = sorted([abs(value - median) for value in ordered])
        spread = _MAD_TO_SIGMA * deviations[middle]
        if ordered[0] < 0:
            # a surrogate loss has no level: most groups may give 0 and the others anything
            spread = max(spread, deviations[-1] / _OF_THE_LARGEST)
        # a converged run has no spread: a change below two percent is never a spike
        self._sigma = max(spread, _RELATIVE_FLOOR * abs(self._median), 1e-12)
        self.limit = self._median + self._threshold * self._sigma


class SpikeWatch:
    """Loss and gradient norm of a run under the policy. Holds a detector for each, and the skipped ones in a row.

    A healthy step costs two comparisons with the limits and one append; the detectors are fed in blocks.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._loss = self._detector()
        self._norm = self._detector()
        self._skipped_in_a_row = 0
        self.fresh: list[tuple[float, float]] = []
        """Loss and norm of the applied steps that the detectors have not seen yet."""
        self.loss_limit = math.inf
        self.norm_limit = math.inf
        self.block = self._next_block()
        """How many fresh steps are absorbed together."""

    def find(self, loss: float, norm: float) -> list[Finding]:
        """What lies far above its recent range."""
        if self.fresh:
            self.absorb()
        found = []
        for name, value, detector in (("loss", loss, self._loss), ("gradient norm", norm, self._norm)):
            usual = detector.usual_below(value)
            if usual is not None:
                text = f"the {name} jumped to {value:.4g}; recent steps had about {usual:.4g}"
                found.append(Finding("spike", name, "forward", value=value, note=text))
        return found

    def skips_one_more(self) -> bool:
        """Count a spike that is to be skipped. `False` if the policy does not skip that many in a row: a new level."""
        self._skipped_in_a_row += 1
        return self._skipped_in_a_row <= self._policy.max_consecutive_skips

    def absorb(self) -> None:
        """Let the fresh steps into the statistic, and compute the limits again."""
        if self.fresh:
            self._skipped_in_a_row = 0
        for loss, norm in self.fresh:
            self._loss.add(loss)
            self._norm.add(norm)
        self.fresh.clear()
        self.loss_limit, self.norm_limit = self._loss.limit, self._norm.limit
        self.block = self._next_block()

    def _next_block(self) -> int:
        return min(self._loss.steps_to_measure(), self._norm.steps_to_measure())

    def _detector(self) -> SpikeDetector:
        policy = self._policy
        return SpikeDetector(
            window=policy.spikes.window, threshold=policy.spikes.threshold, warmup=policy.spikes.warmup
        )
