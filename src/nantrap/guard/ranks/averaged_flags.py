"""Agreement without messages, where DistributedDataParallel averages the gradients: `Policy(rank_flags="averaged")`.

After a backward pass every rank holds the same averaged gradients, so that a norm that is not finite is seen by all of
them. As long as that is all there is to know, the ranks exchange nothing. Four rules make it safe:

* It begins with a step in which the ranks did exchange their flags and none of them found anything, and it ends with
  the first bad step, or after `EVERY` steps, so that weights are still compared now and then.
* What averaged gradients would not show (a loss that is NaN while its gradients are finite, a bad buffer) the rank
  signals with the gradients: before they are averaged it makes one element of its own NaN. All ranks know which one,
  and take it out when they have read it.
* Before the first collective of a bad step the ranks wait for each other at the group's store. A rank whose averaged
  gradients alone are bad (a fault of its memory, code that changes gradients on one rank) would wait there without
  end, so it waits `SECONDS` at most and then ends with an error. That is why it is not the default.
* An update that must be checked is checked by each rank for itself; only one that failed calls the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

from nantrap.guard.policy import Policy
from nantrap.guard.torch_private import communication_hooks
from nantrap.locate.failure import is_replaying

EVERY = 1000
"""After this many steps without a message the ranks exchange their flags again."""
SECONDS = 300.0
"""How long a rank with bad gradients waits for the others to find theirs bad as well."""


class AveragedFlags:
    """Whether the ranks agree without messages now, and what this rank signals with its gradients.

    Args:
        wrappers: the `DistributedDataParallel` wrappers of the model.
        possible: whether all parameters of the model are inside them.
    """

    def __init__(self, wrappers: list[nn.Module], *, possible: bool) -> None:
        self.on = False
        """The ranks exchange nothing while all is well."""
        self.signalled = False
        """This rank has put NaN into its gradients, to signal that something else is wrong."""
        self._steps = 0
        self._waits = 0
        self._handle: Any = None
        self._wrapper: Any = wrappers[0] if possible and len(wrappers) == 1 else None
        self._carrier: nn.Parameter | None = None

    def allow(self, policy: Policy, parameters: Sequence[nn.Parameter]) -> None:
        """Find out whether messages can be left out.

        Skips of finite steps depend on the values of one rank, and a policy that applies bad steps must not change any
        gradient. On a GPU the loss is not known before the backward pass, so nothing could be signalled with it.

        Args:
            policy: what is done with bad steps.
            parameters: those that are guarded; the gradient of the last one carries the signal.
        """
        if policy.rank_flags != "averaged" or self._wrapper is None:
            return
        if policy.on_incident == "observe" or policy.sync == "late":
            return
        if "skip" in (policy.spikes.action, policy.batches.unusual) or policy.bad_terms == "drop":
            return
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        inside = set(map(id, self._wrapper.parameters()))
        if trained and all(id(p) in inside and p.is_cpu and p.is_floating_point() for p in trained):
            self._carrier = trained[-1]

    def begin(self) -> None:
        """All ranks reported that nothing is wrong and no update needs care: the next steps need no messages."""
        wrapper = self._wrapper
        self._steps = 0
        self.on = (
            self._carrier is not None
            # a parameter that gets no gradient could carry no signal; a hook may average later, or not at all
            and not (wrapper.find_unused_parameters or wrapper.static_graph or communication_hooks(wrapper))
        )

    def lasts(self) -> bool:
        """One more step without messages; `False` if it is time to exchange flags again."""
        self._steps += 1
        if self._steps > EVERY:
            self.on = False
        return self.on

    def signal(self) -> None:
        """In the backward pass that follows, one element of this rank's gradients becomes NaN."""
        if self._handle is None and self._carrier is not None:
            self._handle = self._carrier.register_hook(self._put_nan)

    def _put_nan(self, gradient: Tensor) -> Tensor | None:
        if self.signalled or is_replaying():  # once is enough, and what is run again later must be as it was
            return None
        self.signalled = True
        changed = gradient.clone()
        changed.view(-1)[0] = math.nan
        return changed

    def take_back(self) -> None:
        """The NaN that a rank put into the gradients is taken out again. Each rank calls it."""
        if self._carrier is not None and self._carrier.grad is not None:
            with torch.no_grad():
                self._carrier.grad.view(-1)[0] = 0.0

    def end_step(self) -> None:
        """The step is over."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
            self.signalled = False

    def wait_for_all(self, store: Any, prefix: str, size: int) -> bool:
        """Whether every rank comes here in this step. From here on they exchange their flags again."""
        self.on = False
        self._waits += 1
        if store is None:
            return True
        place = f"{prefix}/meeting/{self._waits}"
        if store.add(place, 1) == size:
            store.set(f"{place}/all", "yes")
            return True
        try:
            store.wait([f"{place}/all"], timedelta(seconds=SECONDS))
        except (RuntimeError, ValueError):
            return False
        return True
