"""The exception tree. Everything nantrap raises on purpose derives from `NantrapError`.

NantrapError
├── NonFiniteError        the guard stopped the run; carries the incident
├── UsageError            the call cannot be right: says what, where and what to do (also a ValueError)
│   └── FormatError       a file is not what it should be: names the field or the byte (exit code 2)
├── RankLostError         another rank did not answer: it died, or the group's timeout passed (also a RuntimeError)
└── MissingExtraError     an optional dependency is not installed: names the extra (also an ImportError)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from nantrap.incident import Incident


StopKind = Literal["repeats", "hardware", "spent"]
"""Why a run was stopped: the same will happen again, the machine is suspected, or skips and rollbacks are used up."""


class NantrapError(Exception):
    """Base of everything nantrap raises on purpose."""


class NonFiniteError(NantrapError):
    """The guard stopped the run. `incident` says what happened; the state is as before the failed step.

    `kind` says whether another attempt makes sense: `repeats` (the same will happen again unless something is changed),
    `hardware` (the machine is suspected) or `spent` (no further skip or rollback is allowed, and no cause was proven).
    """

    def __init__(self, message: str, *, incident: Incident, kind: StopKind = "spent") -> None:
        super().__init__(message)
        self.incident = incident
        self.kind = kind


class UsageError(NantrapError, ValueError):
    """The call cannot be right. The message says what, where and what to do."""


class FormatError(UsageError):
    """A file or a mapping is not what it should be. The message names the field."""


class RankLostError(NantrapError, RuntimeError):
    """Another rank did not answer: it died, or it took longer than the timeout of the process group."""


class MissingExtraError(NantrapError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, *, extra: str) -> None:
        super().__init__(
            f"{package} is not installed; it belongs to an optional part of nantrap. "
            f"Install it with: pip install 'nantrap[{extra}]'"
        )
        self.package = package
        self.extra = extra


def needs_torch(error: ModuleNotFoundError) -> MissingExtraError | None:
    """What to raise instead of an import error, if torch itself is what is missing."""
    if (error.name or "").partition(".")[0] != "torch":
        return None
    return MissingExtraError("torch", extra="torch")


def path_argument(path: Any, call: str, expected: str) -> str:
    """The path that a function was given, as text.

    Args:
        path: the argument.
        call: the function, as a user writes it.
        expected: what the path should be, with an example.

    Raises:
        UsageError: It is no path, or holds a zero byte; or it is an address, which would become a local folder `s3:`.
    """
    if not isinstance(path, (str, os.PathLike)) or "\0" in (text := os.fsdecode(path)):
        raise UsageError(f"{call}({path!r:.200}): expected {expected}")
    if "://" in text:
        raise UsageError(f"{call}({path!r:.200}): expected {expected}; addresses are not supported, only local paths")
    return text
