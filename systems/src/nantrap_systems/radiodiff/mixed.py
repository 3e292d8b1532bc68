"""Mixed precision, as two files ask for it: `trainer: {amp, fp16}` of the config, and what `accelerate config` wrote.

Precision                   the dtype of autocast, and autocast itself
precision_of_both_files     what the two files mean together
mixed_precision_in          what the file of `accelerate config` says
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
import yaml

from nantrap.errors import FormatError, UsageError
from nantrap_systems.precision import autocast, precision

if TYPE_CHECKING:
    from nantrap_systems.radiodiff.train import TrainerSettings


class Precision(NamedTuple):
    """The dtype of autocast, `None` for none, and what the forward pass is made in."""

    dtype: torch.dtype | None
    context: Callable[[], AbstractContextManager[object]]


def precision_of_both_files(trainer: TrainerSettings, accelerate: Path) -> Precision:
    """With `amp` the dtype of `accelerate config`, with `fp16` as well float16."""
    dtype = None
    if trainer.amp:
        asked = "fp16" if trainer.fp16 else mixed_precision_in(accelerate)
        dtype = precision(asked, setting=f"{accelerate.name}: mixed_precision")
    return Precision(dtype, partial(autocast, dtype))


def mixed_precision_in(path: Path) -> str:
    """`mixed_precision` of a file that `accelerate config` wrote; its other settings belong to the launcher."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise FormatError(f"{path}: not YAML: {error}") from None
    if not isinstance(content, dict):
        raise FormatError(f"{path}: expected a mapping, got {content!r}")
    found = content.get("mixed_precision", "no")
    return "no" if found is False else str(found)  # YAML reads a bare no as false
