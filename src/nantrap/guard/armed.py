"""Armed steps: steps that run under a trace while they happen.

In the two-line form and under `nantrap run` the loss can be computed again only where its source has no side effects
(`locate/rerun.py`). After an incident whose loss could not be computed again and whose cause was not proven, the next
steps are therefore traced while the user's own code runs. The next failure then comes with its operands, with the lines
of the loss function, and with trials: the recorded operations are run again (`locate/tape.py`). A trace begins where
the step before has ended, so that it sees what the loop computes before the model's call (rewards, advantages,
targets), and ends with the backward pass. In `attempt`, which can run its function again, it ends where that begins.
Between two steps it records a limited number of operations and then ends, because no step may follow: the loop has
ended, or a long evaluation runs. The model's call then begins another one. A traced step of usual size takes a fifth
longer, and a tiny one more; so tracing ends with the next incident, after `Diagnosis.armed_steps` steps, or when it has
cost as much as a diagnosis may take: in a network of many small operations a traced step takes ten times as long. A
healthy run is never traced.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from torch import nn

from nantrap.guard.policy import Policy
from nantrap.guard.state.members import Members
from nantrap.incident import Incident
from nantrap.locate.budget import Budget
from nantrap.locate.failure import active_replays
from nantrap.locate.replay.replay import compiled_frames
from nantrap.locate.torch_private import drop_last_mode, leave_mode, leave_mode_soon, makes_a_graph, modes_running
from nantrap.locate.trace import Registered, Trace
from nantrap.locate.trace.tape import Tape
from nantrap.locate.variables.provenance import Way, way_here

_MOST_OPERATIONS = 200_000
_MOST_BEFORE = 10_000
"""Operations between two steps, after which the trace ends."""
_MOST_WAYS = 16


class LiveTrace(Trace):
    """A trace of the user's own code, with limits: it records nothing in a forked worker, nor beyond a number of
    operations."""

    def __init__(self, root: nn.Module, registered: Registered) -> None:
        super().__init__(root, registered)
        self._process = os.getpid()
        self._before = modes_running()  # the user's, or those of other guards
        self.ended = False
        self._most = _MOST_BEFORE
        self._busy = False
        self._buffers = list(registered.buffers.values())
        self.tape = Tape(iter(self._buffers))
        self.ways: dict[int, Way] = {}
        """How bad numbers of the program came in, by the index of the tensor."""
        self.aside = False
        """The guard is at work: what runs is no part of the step."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record an operation, and what it was given, while the limits allow it."""
        kwargs = kwargs or {}
        self._busy = True
        try:
            aside = self.ended or self.aside or active_replays or makes_a_graph()
            if aside or len(self.ops) >= self._most or os.getpid() != self._process:
                if self.ended:
                    leave_mode_soon(self)  # it was ended while torch had taken it off for an operation
                elif not aside and self._most == _MOST_BEFORE:
                    self._give_up()
                return func(*args, **kwargs)
            try:
                taped = self.tape.before(func, args, kwargs) if self.tape.wanted else None
                given = self.before(func, args, kwargs)
            except Exception:  # an operand of a kind that nothing here can read: the step goes on without a trace
                self._give_up()
                return func(*args, **kwargs)
            result = func(*args, **given.kwargs)
            try:
                self.after(given, result)
                if taped is not None:
                    self.tape.after(self.ops[-1], func, taped, result)
                if len(self.externals) > len(self.ways) < _MOST_WAYS:
                    self._note_ways()
            except Exception:
                self._give_up()
            return result
        finally:
            self._busy = False

    def _give_up(self) -> None:
        """Record nothing more: the step goes on without a trace."""
        self.ended = True
        leave_mode_soon(self)

    def _note_ways(self) -> None:
        """A bad value has come into the step that no operation made. The functions that made it are still running, or
        their variables are there: later they are not."""
        for index in [index for index in self.externals if index not in self.ways]:
            with contextlib.suppress(Exception):  # a way that is not found is worth less than the run
                external = self.externals[index]
                is_weight = isinstance(external.tensor, nn.Parameter)  # of another model: no line of the loop made it
                entered = external.kind == "constant" and not (external.mask or is_weight)
                self.ways[index] = ()
                self.ways[index] = way_here(external.tensor) if entered else ()

    def begin_step(self) -> None:
        """The model is called. A tape that has given up by now begins again here."""
        self._most = _MOST_OPERATIONS
        if self.tape.reason:
            self.tape = Tape(iter(self._buffers))

    def end(self) -> bool:
        """Record nothing more, and stop running; whether that was possible.

        A guard that is not closed ends its trace when it is collected: at any moment, under modes that were entered
        since, or while the trace handles an operation. In the latter case torch has taken the trace off for that long
        and puts it on again afterwards: it must be ended later.
        """
        self.ended = True
        self._where.unwatch()
        if leave_mode(self):
            return True
        if self._busy:
            return False
        running = modes_running()
        if running and any(running[-1] is mode for mode in self._before):
            drop_last_mode()  # it was around a part of the step, and has ended this trace in place of itself
        return True


_unfinished: list[LiveTrace] = []
"""Traces that could not be ended when their guard was collected."""


def end_unfinished() -> None:
    """End the traces that could not be ended when their guard was collected."""
    _unfinished[:] = [trace for trace in _unfinished if not trace.end()]


class Armed:
    """Traces steps while they happen. Holds the running trace, and how many steps it will continue.

    Args:
        members: whose modules, parameters and buffers the trace knows by name.
        policy: when to arm.
        alone: no other rank trains this model; a trace on one rank alone would make the others wait.
        compiled: the model is compiled.
        has_policy: the program chose the policy itself, and can choose another one.
    """

    def __init__(
        self, members: Members, policy: Policy, *, alone: bool, compiled: bool = False, has_policy: bool = True
    ) -> None:
        self._members = members
        self._compiled = compiled
        self._has_policy = has_policy
        self._frames = compiled_frames()
        self._steps = policy.diagnosis.armed_steps
        self._possible = alone and policy.diagnosis.armed != "off" and policy.diagnose != "off"
        self._always = policy.diagnosis.armed == "always"
        self._left = 0
        self._clock = policy.diagnosis.clock
        self._started = self._usual = self._to_spend = 0.0
        self._running: LiveTrace | None = None
        self.last: Trace | None = None
        self.on = self._possible and self._always
        """Whether the next step is to be traced."""

    @property
    def running(self) -> bool:
        """Whether a trace is running now."""
        return self._running is not None

    def consider(self, incident: Incident, budget: Budget, *, repeatable: bool) -> str:
        """After an incident: arm, or disarm. Returns the message for the user.

        Args:
            incident: what happened.
            budget: of its diagnosis; the traced steps may cost as much again.
            repeatable: whether the step can be run again.
        """
        if self._always or not self._possible:
            return ""
        proven = bool(incident.causes) and incident.causes[0].proven
        armed_before = self.on
        self.on = not (proven or repeatable or armed_before or incident.same_as is not None)
        self._left = self._steps if self.on else 0
        self._usual, self._to_spend = budget.step, budget.seconds
        if not self.on:
            return ""
        return (
            f"armed: the next {self._steps} steps are traced while they run, until that has cost "
            f"{self._to_spend:.0f} s (each takes about 1.2 times as long, more with a tiny model), so that the next "
            "failure is recorded with its line and its values"
            + ("; Policy(diagnosis=Diagnosis(armed='off')) turns it off" if self._has_policy else "")
        )

    def end(self) -> None:
        """No step follows: nothing is armed any more."""
        self.stop()
        self._possible = self._always = self.on = False

    def begin_step(self) -> None:
        """The model is called for the first time in a step: its trace runs already, or begins. What the guard does
        now is no part of it, until `go_on`."""
        if self._running is None or self._running.ended:
            self._left += self._running is not None  # the same step goes on
            self.start()
        if self._running is not None:
            self._running.begin_step()
            self._running.aside = True

    def go_on(self) -> None:
        """The guard has done its part: the program goes on."""
        if self._running is not None:
            self._running.aside = False

    def start(self) -> None:
        """Trace what runs from here on.

        Nothing is traced if the model is compiled, or if anything was compiled since the guard was made: under a trace
        such code would run as it was written, and its results could differ in the last bits.
        """
        if self._running is not None:
            self.stop()  # of a step that did not run to its end
        end_unfinished()
        if self._compiled or compiled_frames() != self._frames:
            return
        if not self._always:
            self._left -= 1
            if self._left < 0:
                self.on = False
                return
        root = self._members.root
        registered = Registered(dict(self._members.known()), dict(root.named_buffers()))
        self.last = None
        self._started = self._clock()
        self._running = LiveTrace(root, registered)
        self._running.__enter__()

    def stop(self) -> Trace | None:
        """End the trace of this step; it is kept in `last` until the next one begins."""
        trace, self._running = self._running, None
        if trace is not None:
            if not trace.end():
                _unfinished.append(trace)
            self.last = trace
            self._to_spend -= max(0.0, self._clock() - self._started - self._usual)
            self.on = self._always or (self.on and self._to_spend > 0)
        return trace
