"""Whether what happens now is the guard's own doing."""

from __future__ import annotations


class Activity:
    """Whether a guard of this process is at work: calls that come meanwhile are its own. Shared by all guards."""

    __slots__ = ("busy",)

    def __init__(self) -> None:
        self.busy = False
