"""The random streams as they were: torch (CPU and every initialised CUDA device), Python and NumPy.

Capturing happens once a step in a healthy run, so it must cost next to nothing. NumPy's `get_state` takes 60 µs;
its Mersenne Twister lies at a documented address, and comparing those 2.5 KB tells in under a microsecond that
nobody drew from it since the last capture.
"""

from __future__ import annotations

import ctypes
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

_MT19937_BYTES = 624 * 4 + 4


@dataclass(frozen=True, slots=True)
class RngState:
    """All random streams at one moment."""

    torch_cpu: Tensor
    torch_cuda: tuple[Tensor, ...]
    python: Any
    numpy: Any

    @classmethod
    def capture(cls) -> RngState:
        """The streams as they are now."""
        cuda: tuple[Tensor, ...] = ()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            cuda = tuple(torch.cuda.get_rng_state_all())
        return cls(torch.get_rng_state(), cuda, random.getstate(), _numpy_state())

    def restore(self) -> None:
        """Put the streams back."""
        torch.set_rng_state(self.torch_cpu)
        if self.torch_cuda:
            torch.cuda.set_rng_state_all(list(self.torch_cuda))
        random.setstate(self.python)
        np.random.set_state(self.numpy)


_last: tuple[bytes, Any] = (b"", None)


def _numpy_state() -> Any:
    global _last
    generator = np.random.mtrand._rand._bit_generator
    if type(generator).__name__ != "MT19937":  # np.random.set_bit_generator put another one there
        return np.random.get_state()
    raw = ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
    if raw != _last[0]:
        _last = (raw, np.random.get_state())
    return _last[1]
