"""The update: run it plainly where it is provably finite, else copy, step, read and undo."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import LBFGS, Optimizer

from nantrap import finite
from nantrap.guard.certify import norm_bound, update_is_provably_finite
from nantrap.guard.members import Members, optimizer_tensors
from nantrap.guard.policy import Policy
from nantrap.guard.snapshot import UpdateSnapshot
from nantrap.incident import Finding
from nantrap.locate import finding


class Update:
    """Steps one optimizer. Holds at most one copy of parameters and optimizer state, made when first needed.

    The state is *trusted* once it was read and found finite, until somebody other than the optimizer writes it: every
    tensor counts its writes, and their sum is compared before each step.
    """

    def __init__(self, members: Members, optimizer: Optimizer, policy: Policy) -> None:
        self._members = members
        self._optimizer = optimizer
        self._policy = policy
        self._snapshot: UpdateSnapshot | None = None
        self._trusted: list[Tensor] = []
        self._trusted_state: object = None
        self._trusted_versions = -1
        self._steps_since_check = 0

    @property
    def snapshot(self) -> UpdateSnapshot | None:
        """The copy made before the last careful step."""
        return self._snapshot

    def run(self, step: Callable[[], Any], *, norm: float) -> list[Finding]:
        """Run `step()`. Returns what it made non-finite, in which case everything is as before; else nothing."""
        policy = self._policy
        self._steps_since_check += 1
        due = policy.check_state_every and self._steps_since_check >= policy.check_state_every
        if policy.undo == "never" or (policy.undo == "auto" and not due and self._safe(norm)):
            step()
            self._trusted_versions = sum(t._version for t in self._trusted)
            return []
        if self._snapshot is None:
            self._snapshot = UpdateSnapshot(self._members.parameters, self._optimizer)
        self._snapshot.take()
        step()
        self._steps_since_check = 0
        if finite.any_nonfinite(self._everything()):
            found = self.findings("optimizer")
            self._snapshot.restore()
            self._trusted_versions = -1
            return found
        self._trust()
        if policy.undo == "auto" and update_is_provably_finite(self._optimizer):
            self._snapshot = None  # the memory is given back: from here on the proof holds
        return []

    def findings(self, phase: Any) -> list[Finding]:
        """Every non-finite parameter and optimizer state, with statistics."""
        found = [
            finding("parameter", name, parameter, phase)
            for name, parameter in self._members.named()
            if finite.any_nonfinite([parameter])
        ]
        found += [
            finding("optimizer_state", f"{key} of {name}", tensor, phase)
            for name, key, tensor in optimizer_tensors(self._optimizer, self._members)
            if finite.any_nonfinite([tensor])
        ]
        return found

    def _safe(self, norm: float) -> bool:
        return (
            self._trusted_state is self._optimizer.state
            and norm <= norm_bound()
            and sum(t._version for t in self._trusted) == self._trusted_versions
            and update_is_provably_finite(self._optimizer)
        )

    def _trust(self) -> None:
        self._trusted = self._everything()
        self._trusted_state = self._optimizer.state
        self._trusted_versions = sum(t._version for t in self._trusted)

    def _everything(self) -> list[Tensor]:
        tensors: list[Tensor] = list(self._members.parameters)
        tensors += [tensor for _, _, tensor in optimizer_tensors(self._optimizer, self._members)]
        return tensors


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether `optimizer.step` evaluates the model itself (LBFGS and its kind)."""
    if isinstance(optimizer, LBFGS):
        return True
    try:
        closure = inspect.signature(optimizer.step).parameters.get("closure")
    except (TypeError, ValueError):
        return False
    return closure is not None and closure.default is inspect.Parameter.empty
