"""One checkpoint in a file of the user's choice: the same gate, the same atomic write, no manifest."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from nantrap._version import __version__
from nantrap.checkpoints.gate import refuse_nonfinite
from nantrap.checkpoints.parts import restore
from nantrap.checkpoints.storefile import pack_state, read_file, save_file
from nantrap.errors import FormatError, UsageError


def save_alone(path: str | os.PathLike[str], state: Mapping[str, Any], *, step: int, allow: Iterable[str] = ()) -> Path:
    """Write the state, only if it is finite; a file of that name is replaced in one go."""
    target = Path(path)
    if target.is_dir():
        raise UsageError(f"save({os.fspath(path)!r}): this is a folder; give a file, or use a CheckpointStore")
    refuse_nonfinite(state, what=f"{os.fspath(path)} (step {step:,})", step=step, allow=tuple(allow))
    packed = pack_state(state)
    saved_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    about = {"step": step, "sequence": 0, "saved_at": saved_at, "nantrap": __version__}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        save_file(target, packed, about)
    except OSError as error:
        reason = f"not saved: {error.strerror or error}; what was there before is untouched"
        raise OSError(error.errno, reason, str(target)) from error
    return target


def load_alone(
    path: str | os.PathLike[str], parts: Mapping[str, Any], *, rng: bool = True, strict: bool = True
) -> dict[str, Any]:
    """Verify the file by its checksum and load it into the parts; the state as it was saved comes back as well."""
    try:
        state = read_file(Path(path))[1]
    except FileNotFoundError:
        raise UsageError(f"nothing is at {os.fspath(path)}; give the path of a file that guard.save wrote") from None
    except OSError as error:
        raise FormatError(f"{os.fspath(path)}: it cannot be read: {error.strerror or error}") from error
    restore(state, parts, rng=rng, strict=strict, where=os.fspath(path))
    return state
