"""The random streams as they were: torch (the CPU and each device of an accelerator), Python and NumPy.

Capturing happens once per step in a healthy run, so it must cost almost nothing. NumPy's `get_state` takes 60 µs and
Python's `getstate` 12. Both are Mersenne Twisters: a draw moves their position, and after 624 of them every word is
replaced, as it is by a new seed. So the position and the seven words beside it show in a fraction of a microsecond that
nothing was drawn since the last capture. NumPy documents the address; CPython's is verified when this module is
imported, and where it does not hold (another interpreter), the state is taken the slow way.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.accelerator import current_accelerator

from nantrap.locate.python_private import PYTHON_GENERATOR, numpy_bit_generator
from nantrap.locate.replay.program import ProgramState

_MT19937 = np.random.MT19937
_HAS_GAUSS = 3
"""Where the state of NumPy's legacy generator says whether it keeps a second normal value."""
_WORD_BYTES = 4
_WORDS = 624
_COMPARED = ctypes.c_char * (8 * _WORD_BYTES)
"""The position of a twister and the words beside it. The first word alone would not do: every seed begins with it."""


class RngState(NamedTuple):
    """All random streams at one moment. `program` is what the program keeps itself: its generators and attributes."""

    torch_cpu: Tensor
    torch_devices: tuple[Tensor, ...]
    python: Any
    numpy: Any
    program: ProgramState | None = None

    @classmethod
    def capture(cls, program: ProgramState | None = None) -> RngState:
        """The streams as they are now.

        Args:
            program: the program's own state at this moment, from `Program.capture`.
        """
        global _python_seen, _numpy_seen, _numpy_generator, _numpy_mark
        accelerator = current_accelerator()
        devices = () if accelerator is None else _streams_of(accelerator)
        if _python_mark is None:
            python = random.getstate()
        else:
            mark = (_python_mark.raw, PYTHON_GENERATOR.gauss_next)  # type: ignore[attr-defined]
            if mark != _python_seen[0]:
                _python_seen = (mark, random.getstate())
            python = _python_seen[1]
        generator = numpy_bit_generator()
        if generator is not _numpy_generator:  # the first time, and after np.random.set_bit_generator
            _numpy_generator = generator
            _numpy_mark = _mark_of_numpy(generator)
            _numpy_seen = (b"", None)
        numpy = _numpy_seen[1]
        if _numpy_mark is None:
            numpy = np.random.get_state(legacy=False)
        # a second normal value, which is drawn together with the first and kept, leaves the twister as it was
        elif _numpy_mark.raw != _numpy_seen[0] or numpy[_HAS_GAUSS]:
            numpy = np.random.get_state()
            _numpy_seen = (_numpy_mark.raw, numpy)
        return cls(torch.default_generator.get_state(), devices, python, numpy, program)

    def now(self) -> RngState:
        """Takes these streams, generators and attributes as they are at this moment."""
        return RngState.capture(self.program.now() if self.program is not None else None)

    def restore(self, *, beside: bool = True) -> None:
        """Put everything back.

        Args:
            beside: restore what the program keeps outside its modules, too: see `ProgramState.restore`.
        """
        if self.program is not None:
            self.program.restore(beside=beside)
        torch.set_rng_state(self.torch_cpu)
        accelerator = current_accelerator()
        if self.torch_devices and accelerator is not None:
            _restore_streams(accelerator, self.torch_devices)
        random.setstate(self.python)
        np.random.set_state(self.numpy)


def _streams_of(accelerator: torch.device) -> tuple[Tensor, ...]:
    """The stream of each device of an accelerator; none before the program uses it. The host keeps them: no wait."""
    module = torch.get_device_module(accelerator)
    if not getattr(module, "is_initialized", module.is_available)() or not hasattr(module, "get_rng_state"):
        return ()
    if hasattr(module, "get_rng_state_all"):
        return tuple(module.get_rng_state_all())
    return (module.get_rng_state(),)


def _restore_streams(accelerator: torch.device, states: tuple[Tensor, ...]) -> None:
    """Give each device of an accelerator its stream back."""
    module = torch.get_device_module(accelerator)
    if hasattr(module, "set_rng_state_all"):
        module.set_rng_state_all(list(states))
    else:
        module.set_rng_state(states[0])


_TWISTER = struct.Struct("=i624I")  # CPython's Random object: its header, then the position, then the words


def _twister_address() -> int | None:
    """Where CPython keeps the words of `random`'s generator, if they are where we expect them."""
    header = object.__basicsize__
    if sys.implementation.name != "cpython" or type(PYTHON_GENERATOR).__basicsize__ < header + _TWISTER.size:
        return None
    address = id(PYTHON_GENERATOR) + header
    position, *words = _TWISTER.unpack(ctypes.string_at(address, _TWISTER.size))
    return address if PYTHON_GENERATOR.getstate()[1] == (*words, position) else None


def _mark_of_numpy(generator: Any) -> Any:
    """The last words of NumPy's generator and its position, if it is a twister: the words come first there."""
    if generator.__class__ is not _MT19937:
        return None
    end = generator.ctypes.state_address + (_WORDS + 1) * _WORD_BYTES
    return _COMPARED.from_address(end - ctypes.sizeof(_COMPARED))


_address = _twister_address()
_python_mark = None if _address is None else _COMPARED.from_address(_address)
_python_seen: tuple[Any, Any] = (None, None)
_numpy_generator: Any = None
_numpy_mark: Any = None
_numpy_seen: tuple[bytes, Any] = (b"", None)


# ---- a generator of torch's, back by as many draws as were made since

_MOST_BLOCKS = 4096
"""So many blocks of draws, 2.5 million words, are turned back at most: that takes a second."""
_STATE_BYTES = 5056
"""What `get_state` gives: seed, position and words, then the normal values that were kept for the next draw."""
_KEEPS_DOUBLE, _KEEPS_FLOAT = slice(5040, 5044), 5052
"""Where it says that one was kept. Seen in torch 2.13; a state of another size is not turned back."""
_TOP, _REST, _TWIST = 0x80000000, 0x7FFFFFFF, 0x9908B0DF
_SHIFTED = 397


class _Twister:
    """The parts of a state of torch's generator on the CPU: a Mersenne Twister, and normal values that were kept."""

    def __init__(self, state: Tensor) -> None:
        self.bytes = state.clone().numpy()
        self.left = self.bytes[8:12].view(np.int32)
        self.next = self.bytes[16:24].view(np.uint64)
        self.words = self.bytes[24 : 24 + 8 * _WORDS].view(np.uint64)
        self.keeps_normal = bool(self.bytes[_KEEPS_DOUBLE].any() or self.bytes[_KEEPS_FLOAT])

    @property
    def position(self) -> int:
        """How many words of this block were drawn: 1 to 624; a new generator is at the end of a block."""
        return _WORDS + 1 - int(self.left[0])


def rewound(found: Tensor, later: Tensor) -> Tensor | None:
    """The state of a generator of torch's on the CPU from which as many draws lead to `found` as lead from `found` to
    `later`; `None` if that cannot be told.

    Args:
        found: the state from which something was run.
        later: the state to which that led.
    """
    if found.numel() != later.numel() or found.numel() != _STATE_BYTES:
        return None  # an accelerator's
    here, there = _Twister(found), _Twister(later)
    if here.keeps_normal or there.keeps_normal:
        return None
    generator = torch.Generator()
    generator.set_state(found)
    blocks = 0
    while not np.array_equal(_Twister(generator.get_state()).words, there.words):
        if blocks == _MOST_BLOCKS:
            return None
        drawn = _WORDS if blocks else _WORDS + 1 - here.position
        torch.empty(drawn).uniform_(generator=generator)  # one word for each value; then the first of the next block
        blocks += 1
    position = here.position - (blocks * _WORDS + there.position - here.position)
    words = [int(word) for word in here.words]
    while position < 1:
        _untwist(words)
        position += _WORDS
    here.words[:], here.next[0], here.left[0] = words, position, _WORDS + 1 - position
    return torch.from_numpy(here.bytes)


def _untwist(words: list[int]) -> None:
    """The block of words before this one, in place. Each new word was made of three old ones."""
    for i in reversed(range(_WORDS)):
        first = words[i] ^ words[(i + _SHIFTED) % _WORDS]
        first = ((first ^ _TWIST) << 1 | 1) if first & _TOP else first << 1
        second = words[i - 1] ^ words[(i + _SHIFTED - 1) % _WORDS]
        second = ((second ^ _TWIST) << 1 | 1) if second & _TOP else second << 1
        words[i] = (first & _TOP) | (second & _REST)
