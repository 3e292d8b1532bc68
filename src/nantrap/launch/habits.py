"""Mistakes that show without any NaN: gradients that are never cleared, two steps for one backward pass."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from nantrap.guard.torch_private import version_of

_OFTEN = 3


class Habits:
    """Compares the gradients after a step with those before the next one. Holds one of them, and what was counted.

    Args:
        say: prints a line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.uncleared = 0
        """Steps in a row whose gradients were added to those of the step before."""
        self.repeated = 0
        """Steps that were made a second time with the same gradients."""
        self.parameter: Tensor | None = None
        self.gradient: Tensor | None = None
        """The gradient of `parameter` when the last step had ended, and how often it had been written."""
        self.version = 0
        self._say = say

    def before_backward(self) -> None:
        """The first backward pass of a step begins: were the last gradients cleared?"""
        if not self._is_untouched():
            self.uncleared = 0
            return
        self.uncleared += 1
        if self.uncleared == _OFTEN:
            self._say(
                "the gradients are not cleared between steps, so each step adds to all the ones before: "
                "call optimizer.zero_grad() before each backward pass (NT871 zero_grad_missing)"
            )

    def is_repeated_step(self, *, refused: bool, scaled: bool) -> bool:
        """Whether a step now would use the gradients of the last one once more.

        Args:
            refused: the last step was not made, and this one will not be made either.
            scaled: the steps are made by a scaler.
        """
        if not self._is_untouched():
            return False
        self.repeated += not refused
        if self.repeated == _OFTEN and not refused:
            already = ": scaler.step(optimizer) makes it already" if scaled else ""
            self._say(
                "optimizer.step() is called twice for each backward pass, so each update is made twice"
                f"{already} (NT875 double_step)"
            )
        return True

    def notes(self) -> list[str]:
        """The lines for the summary of the run."""
        found = []
        if self.uncleared >= _OFTEN:
            found.append(
                f"the gradients were not cleared in the last {self.uncleared:,} steps (NT871 zero_grad_missing)"
            )
        if self.repeated >= _OFTEN:
            found.append(f"{self.repeated:,} updates were made twice (NT875 double_step)")
        return found

    def _is_untouched(self) -> bool:
        """Whether the gradient that was remembered is still there and nothing wrote it since."""
        kept, parameter = self.gradient, self.parameter
        return (
            kept is not None and parameter is not None and parameter.grad is kept and version_of(kept) == self.version
        )
