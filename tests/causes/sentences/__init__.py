"""What is said of a failure, by family of cause: tiny failing programs, and pairs of them.

A program is a body between `PRELUDE` and `POSTLUDE`: `model`, `optimizer` and `batches` have their defaults unless the
body sets them. A name that ends with "two lines" means the program of that name without it, or a body of its own,
in a plain loop with a guard. `PAIRS` has, for a program and a neighbour, the sentences that are true of the program and
false of the neighbour. A pair is in the file of its first program, the neighbour may be in another one.
"""

from __future__ import annotations

from causes.sentences import (
    backward_maths,
    data,
    no_cause,
    optimisation,
    platform,
    poles_and_domains,
    precision,
    range_and_masks,
    state,
)

PRELUDE = """
import copy, functools, io
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
draw = torch.Generator().manual_seed(1)
model = nn.Linear(4, 3)
batches = [torch.randn(6, 4, generator=draw) for _ in range(6)]
nan, inf = float("nan"), float("inf")
"""
POSTLUDE = """
optimizer = globals().get("optimizer") or torch.optim.SGD(model.parameters(), lr=1e-3)
"""

_FAMILIES = (
    data,
    poles_and_domains,
    range_and_masks,
    backward_maths,
    precision,
    optimisation,
    state,
    platform,
    no_cause,
)

PROGRAMS = {name: body for family in _FAMILIES for name, body in family.PROGRAMS.items()}
SENTENCES = [
    (text, program, neighbour)
    for family in _FAMILIES
    for (program, neighbour), texts in family.PAIRS.items()
    for text in texts
]
"""What is said, of which program it is true, of which it is false."""
