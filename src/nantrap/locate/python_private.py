"""The private names of Python and NumPy that replays rely on, and nothing else.

Seen in Python 3.10 to 3.13 and NumPy 1.26 to 2.4. A program may replace `random.seed` or `numpy.random.rand`, so their
`__self__` may not be these objects.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np

PYTHON_GENERATOR: random.Random = random._inst
"""What `random.random()` draws from."""

NUMPY_GENERATOR: np.random.RandomState = np.random.mtrand._rand
"""What `numpy.random.rand()` draws from."""


numpy_bit_generator: Callable[[], Any] = functools.partial(attrgetter("_bit_generator"), NUMPY_GENERATOR)
"""The bit generator behind `numpy.random.rand()` now; `numpy.random.set_bit_generator` may replace it."""

current_frame = sys._getframe
"""The frame of the caller; `inspect.currentframe` would be one more call in every step."""

CACHED = functools._lru_cache_wrapper
"""What `functools.lru_cache` makes of a function."""
