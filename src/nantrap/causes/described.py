"""What a trial changes, as plain data: other ranks make the same change in their parts of the step."""

from __future__ import annotations

import contextlib
from typing import Any

from nantrap.causes.logspace import LogSpace
from nantrap.causes.precision import SinglePrecision
from nantrap.causes.replacement import Replacement
from nantrap.incident import Source

Description = tuple[Any, ...]
NOTHING: Description = ("nothing",)


def described(around: contextlib.AbstractContextManager[Any] | None) -> Description | None:
    """The description of a change; `None` for one that other ranks cannot make."""
    if around is None:
        return NOTHING
    if isinstance(around, SinglePrecision):
        return ("float32",)
    if isinstance(around, LogSpace):
        return ("log space",)
    if isinstance(around, Replacement):
        return ("replaced", tuple((one.file, one.line) for one in around.sources), around.family)
    return None


def change_of(description: Description) -> contextlib.AbstractContextManager[Any]:
    """The change that was described."""
    kind = description[0]
    if kind == "float32":
        return SinglePrecision()
    if kind == "log space":
        return LogSpace()
    if kind == "replaced":
        _, lines, family = description
        return Replacement([Source(file=file, line=line) for file, line in lines], family)
    return contextlib.nullcontext()
