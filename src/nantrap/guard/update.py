"""The update: run it plainly where it is provably finite, else copy, step, read and undo."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import LBFGS, Optimizer

from nantrap import finite
from nantrap.guard.buffers import BufferShadow
from nantrap.guard.certify import norm_bound, update_is_provably_finite
from nantrap.guard.members import Members, optimizer_tensors
from nantrap.guard.policy import Policy
from nantrap.guard.snapshot import UpdateSnapshot
from nantrap.incident import Finding, Phase
from nantrap.locate import finding


class Update:
    """Steps one optimizer. Holds at most one copy of parameters and optimizer state, made when first needed.

    The state is *trusted* once it was read and found finite, until somebody other than the optimizer writes it: every
    tensor counts its writes, and their sum is compared before each step.
    """

    def __init__(self, members: Members, optimizer: Optimizer, policy: Policy, buffers: BufferShadow) -> None:
        self._members = members
        self._buffers = buffers
        self._optimizer = optimizer
        self._policy = policy
        self._snapshot: UpdateSnapshot | None = None
        self._trusted: list[Tensor] = []
        self._trusted_state: object = None
        self._trusted_versions = -1
        self._steps_since_check = 0
        self._bad_before: list[Finding] = []
        self._named_before: set[str] = set()

    @property
    def snapshot(self) -> UpdateSnapshot | None:
        """The copy made before the last careful step."""
        return self._snapshot

    def needs_care(self, norm: float) -> bool:
        """Whether a step on gradients of this norm (after clipping) could make something non-finite."""
        policy = self._policy
        if policy.undo != "auto":
            return policy.undo == "always"
        due = policy.check_state_every and self._steps_since_check + 1 >= policy.check_state_every
        return bool(due) or not self._safe(norm)

    def run(self, step: Callable[[], Any], *, careful: bool) -> list[Finding]:
        """Run `step()`. Returns what it made non-finite, in which case everything is as before; else nothing.

        What was bad before the step already and takes no part in it (a frozen parameter that nobody uses) is not the
        step's doing; it is left alone, and `newly_bad_before` names it once.
        """
        self._steps_since_check += 1
        if not careful:
            step()
            self._trusted_versions = _writes(self._trusted)
            return []
        if self._snapshot is None:
            self._snapshot = UpdateSnapshot(self._members.parameters, self._optimizer)
        self._snapshot.take()
        step()
        self._steps_since_check = 0
        # a hook of the optimizer may write buffers (averaged weights); those of the forward pass were judged before
        if finite.any_nonfinite([*self._everything(), *self._buffers.suspects()]):
            found = self.findings("optimizer")
            found += [finding("buffer", name, t, "optimizer") for name, t in self._buffers.names_of_bad()]
            self._trusted_versions = -1
            if found:
                self._snapshot.restore()
            return found
        self._trust()
        if self._policy.undo == "auto" and update_is_provably_finite(self._optimizer):
            self._snapshot = None  # the memory is given back: from here on the proof holds
        return []

    def newly_bad_before(self) -> list[Finding]:
        """What was bad before the last careful step and was not named yet."""
        found = [entry for entry in self._bad_before if entry.name not in self._named_before]
        self._named_before.update(entry.name for entry in found)
        self._bad_before = []
        return found

    def undo(self) -> None:
        """Take back a careful step that was good here and bad on another rank."""
        assert self._snapshot is not None
        self._snapshot.restore()
        self._trusted_versions = -1

    def untouched(self) -> bool:
        """Whether parameters and optimizer state were seen finite and nobody but the optimizer wrote them since."""
        return self._trusted_state is self._optimizer.state and _writes(self._trusted) == self._trusted_versions

    def findings(self, phase: Phase) -> list[Finding]:
        """What is non-finite, with statistics; in the phase `optimizer` only what the last careful step made so."""
        named: list[tuple[str, str, Tensor]] = [("parameter", n, p) for n, p in self._members.named()]
        named += [
            ("optimizer_state", f"{key} of {name}", tensor)
            for name, key, tensor in optimizer_tensors(self._optimizer, self._members)
        ]
        bad = [(kind, name, tensor) for kind, name, tensor in named if finite.any_nonfinite([tensor])]
        if phase != "optimizer" or self._snapshot is None:
            return [finding(kind, name, tensor, phase) for kind, name, tensor in bad]
        made = [entry for entry in bad if self._snapshot.was_finite(entry[2])]
        if not made:
            self._bad_before = [finding(kind, name, tensor, "state") for kind, name, tensor in bad]
        return [finding(kind, name, tensor, phase) for kind, name, tensor in made]

    def _safe(self, norm: float) -> bool:
        return self.untouched() and norm <= norm_bound() and update_is_provably_finite(self._optimizer)

    def _trust(self) -> None:
        self._trusted = self._everything()
        self._trusted_state = self._optimizer.state
        self._trusted_versions = _writes(self._trusted)

    def _everything(self) -> list[Tensor]:
        tensors: list[Tensor] = list(self._members.parameters)
        tensors += [tensor for _, _, tensor in optimizer_tensors(self._optimizer, self._members)]
        return tensors


_version_of = operator.attrgetter("_version")


def _writes(tensors: list[Tensor]) -> int:
    return sum(map(_version_of, tensors))


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether `optimizer.step` evaluates the model itself (LBFGS and its kind)."""
    if isinstance(optimizer, LBFGS):
        return True
    try:
        closure = inspect.signature(optimizer.step).parameters.get("closure")
    except (TypeError, ValueError):
        return False
    return closure is not None and closure.default is inspect.Parameter.empty
