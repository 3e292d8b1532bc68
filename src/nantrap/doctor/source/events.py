"""What happens in a training step, and what is around it: the words in which `flow` describes a function."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from nantrap.doctor.source.module import Function

Kind = Literal[
    "backward",
    "step",
    "zero_grad",
    "clip",
    "unscale",
    "test",
    "zeroed",
    "scaler",
    "optimizer",
    "autocast",
    "load",
    "set_lr",
]
END: Final = 1 << 30
"""Behind every position."""


class Around(NamedTuple):
    """What is around a statement: the arms of conditions, the loops, and whether gradients are switched off."""

    arms: tuple[tuple[str, bool], ...] = ()
    loops: tuple[int, ...] = ()
    silent: bool = False

    def in_arm(self, test: str, *, holds: bool) -> Around:
        """The same place where a test holds, or does not."""
        return self._replace(arms=(*self.arms, (test, holds)))

    def in_loop(self, loop: ast.AST) -> Around:
        """Inside a loop."""
        return self._replace(loops=(*self.loops, id(loop)))

    def silenced(self) -> Around:
        """Inside of `no_grad`."""
        return self._replace(silent=True)


@dataclass(slots=True, eq=False)
class Event:
    """Something that happens in a step. `receiver` is the optimizer (step, zero_grad) or the object that is called."""

    kind: Kind
    node: ast.AST
    line: int
    position: int
    function: Function
    around: Around
    receiver: str = ""
    scaled: bool = False
    managed: bool = False
    end: int = END
    """The last position that can be reached from here in the same pass through the loop."""


@dataclass(slots=True)
class Flow:
    """The events of one function."""

    function: Function
    events: list[Event] = field(default_factory=list)

    def of(self, *kinds: Kind) -> list[Event]:
        """The events of some kinds, in order."""
        return [event for event in self.events if event.kind in kinds and not event.around.silent]

    @property
    def trains(self) -> bool:
        """Whether this is a training function: it calls backward and steps an optimizer."""
        return bool(self.of("backward")) and bool(self.of("step"))


def follows(first: Event, second: Event) -> bool:
    """Whether the second event can come after the first in one pass."""
    if not first.position < second.position <= first.end:
        return False
    arms = dict(first.around.arms)
    return all(arms.get(test, arm) == arm for test, arm in second.around.arms)
