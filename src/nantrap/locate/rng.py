"""The random streams as they were: torch (CPU and every initialised CUDA device), Python and NumPy.

Capturing happens once per step in a healthy run, so it must cost almost nothing. NumPy's `get_state` takes 60 µs and
Python's `getstate` 12. Both are Mersenne Twisters of 2.5 KB; comparing those bytes shows in under a microsecond that
nothing was drawn from them since the last capture. NumPy documents the address; CPython's is verified when this module
is imported, and where it does not hold (another interpreter), the state is taken the slow way.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nantrap.locate.program import ProgramState
from nantrap.locate.python_private import PYTHON_GENERATOR, numpy_bit_generator

_MT19937 = np.random.MT19937
_MT19937_BYTES = 624 * 4 + 4


@dataclass(frozen=True, slots=True)
class RngState:
    """All random streams at one moment. `program` is what the program keeps itself: its generators and attributes."""

    torch_cpu: Tensor
    torch_cuda: tuple[Tensor, ...]
    python: Any
    numpy: Any
    program: ProgramState | None = None

    @classmethod
    def capture(cls, program: ProgramState | None = None) -> RngState:
        """The streams as they are now.

        Args:
            program: the program's own state at this moment, from `Program.capture`.
        """
        global _python_seen, _numpy_seen, _numpy_generator, _numpy_words
        cuda: tuple[Tensor, ...] = ()
        if torch.cuda.is_initialized():
            cuda = tuple(torch.cuda.get_rng_state_all())
        if _PYTHON_WORDS is None:
            python = random.getstate()
        else:
            raw = (_PYTHON_WORDS.raw, PYTHON_GENERATOR.gauss_next)  # type: ignore[attr-defined]
            if raw != _python_seen[0]:
                _python_seen = (raw, random.getstate())
            python = _python_seen[1]
        generator = numpy_bit_generator()
        if generator is not _numpy_generator:  # the first time, and after np.random.set_bit_generator
            _numpy_generator = generator
            twister = generator.__class__ is _MT19937
            _numpy_words = _Words.from_address(generator.ctypes.state_address) if twister else None
        if _numpy_words is None:
            numpy = np.random.get_state()
        else:
            words = _numpy_words.raw
            if words != _numpy_seen[0]:
                _numpy_seen = (words, np.random.get_state())
            numpy = _numpy_seen[1]
        return cls(torch.default_generator.get_state(), cuda, python, numpy, program)

    def now(self) -> RngState:
        """The same streams, generators and attributes as they are at this moment."""
        return RngState.capture(self.program.now() if self.program is not None else None)

    def restore(self) -> None:
        """Put everything back."""
        if self.program is not None:
            self.program.restore()
        torch.set_rng_state(self.torch_cpu)
        if self.torch_cuda:
            torch.cuda.set_rng_state_all(list(self.torch_cuda))
        random.setstate(self.python)
        np.random.set_state(self.numpy)


_TWISTER = struct.Struct("=i624I")  # CPython's Random object: its header, then the position, then the words


def _twister_address() -> int | None:
    """Where CPython keeps the words of `random`'s generator, if they are where we expect them."""
    header = object.__basicsize__
    if sys.implementation.name != "cpython" or type(PYTHON_GENERATOR).__basicsize__ < header + _TWISTER.size:
        return None
    address = id(PYTHON_GENERATOR) + header
    position, *words = _TWISTER.unpack(ctypes.string_at(address, _TWISTER.size))
    return address if PYTHON_GENERATOR.getstate()[1] == (*words, position) else None


_ADDRESS = _twister_address()
_PYTHON_WORDS = None if _ADDRESS is None else (ctypes.c_char * _TWISTER.size).from_address(_ADDRESS)
_Words = ctypes.c_char * _MT19937_BYTES
_numpy_generator: Any = None
_numpy_words: Any = None
_python_seen: tuple[Any, Any] = (None, None)
_numpy_seen: tuple[bytes, Any] = (b"", None)
