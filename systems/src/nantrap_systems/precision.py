"""Mixed precision by the word a config uses for it."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import torch

from nantrap.errors import UsageError

_PRECISIONS = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def precision(name: str, *, setting: str = "training.mixed_precision") -> torch.dtype | None:
    """The dtype of autocast, `None` for none; `setting` names the setting, for the error."""
    if name not in _PRECISIONS:
        raise UsageError(f"{setting} is {name!r}: choose {', '.join(_PRECISIONS)}")
    return _PRECISIONS[name]


def precision_in_words(dtype: torch.dtype | None, weights: torch.dtype = torch.float32) -> str:
    """The line that a script prints before it trains."""
    compute = f"autocast in {_word(dtype)}, " if dtype is not None else ""
    return f"precision: {compute}weights in {_word(weights)}"


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def autocast(dtype: torch.dtype | None) -> AbstractContextManager[object]:
    """Autocast on the CPU, or nothing."""
    return torch.autocast("cpu", dtype=dtype) if dtype is not None else contextlib.nullcontext()
