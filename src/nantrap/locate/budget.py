"""How long a diagnosis may take: in steps of the run, and in seconds. One budget is shared by all that is run again."""

from __future__ import annotations

import time
from collections.abc import Callable

_FLOOR = 20.0
"""Seconds that every diagnosis has, however short its steps are. A small model is located and explained within a second
or three; with less than this, the verdict on it would depend on how busy the machine is."""


class Budget:
    """The time of one diagnosis. It begins when it is made.

    Args:
        seconds: the most that it may take.
        steps: the same in steps of the run. A diagnosis has twenty seconds in any case, if `seconds` allows them.
        step: how long a step takes, in seconds; 0 if that is not known.
        clock: what measures the time.
    """

    def __init__(
        self,
        seconds: float = 60.0,
        *,
        steps: float = 20.0,
        step: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds, self._steps, self._clock = seconds, steps, clock
        self.step = step
        self._in_steps = steps * step
        self._began = clock()
        self._share = 1.0

    @property
    def seconds(self) -> float:
        """How long it is, all in all."""
        return min(self._seconds, max(_FLOOR, self._in_steps)) * self._share

    @property
    def took(self) -> float:
        """The seconds since it began."""
        return self._clock() - self._began

    @property
    def spent(self) -> bool:
        """Whether nothing is left."""
        return not self.allows(0.0)

    def allows(self, steps: float) -> bool:
        """Whether there is time for so many more steps. Short ones may take longer than the rest of the twenty seconds:
        a busy machine, on which they take longer, must not change what is tried on a small model."""
        took = self.took
        whole = self._seconds * self._share if self._in_steps <= _FLOOR else self.seconds
        return took < self.seconds and took + steps * self.step < whole

    def part(self, share: float) -> Budget:
        """A budget that begins now and has at most this share of the whole, and not more than what is left of it."""
        part = Budget(self._seconds, steps=self._steps, step=self.step, clock=self._clock)
        part._in_steps = self._in_steps
        part._share = min(share, 1.0 - self.took / self.seconds) if self.seconds else 0.0
        return part

    def learn(self, step: float) -> None:
        """How long a step took under a trace. It counts where nothing else is known, at the beginning of a run."""
        self._in_steps = self._in_steps or self._steps * step

    def __str__(self) -> str:
        if _FLOOR < self._in_steps < self._seconds:
            return f"the budget of {self._steps:g} steps"
        return f"the budget of {min(self._seconds, max(_FLOOR, self._in_steps)):g} s"
