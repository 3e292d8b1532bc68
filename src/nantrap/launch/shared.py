"""What the guards of one script share: each optimizer has its own guard, but there is one script."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from nantrap.launch.asked import Asked
from nantrap.launch.loaders import Batches
from nantrap.launch.neighbours import Diagnosed


class Activity:
    """Whether a guard of this process is at work: calls that come meanwhile are its own, not the script's."""

    __slots__ = ("busy",)

    def __init__(self) -> None:
        self.busy = False

    @contextlib.contextmanager
    def of_guard(self) -> Iterator[None]:
        """What is asked and tested meanwhile is not asked by the script."""
        was, self.busy = self.busy, True
        try:
            yield
        finally:
            self.busy = was


@dataclass(frozen=True, slots=True)
class Shared:
    """Shared by all guards of a script.

    Attributes:
        batches: what the data loaders gave.
        asked: the scalars that the script asked about.
        activity: whether any guard of the process is at work.
        diagnosed: the losses that were diagnosed.
    """

    batches: Batches
    asked: Asked = field(default_factory=Asked)
    activity: Activity = field(default_factory=Activity)
    diagnosed: Diagnosed = field(default_factory=Diagnosed)
