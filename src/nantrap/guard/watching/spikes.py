"""A spike statistic that one NaN cannot poison: median and MAD of the last finite values.

A mean and a standard deviation are moved by the very value they should judge, and a single NaN makes them NaN for
good. The median and the median absolute deviation ignore up to half of the window, non-finite values never enter,
and a value that was called a spike enters clamped, so that a new level is accepted after a while.
"""

from __future__ import annotations

import math
from collections import deque

from nantrap.guard.policy import Policy
from nantrap.incident import Finding

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
