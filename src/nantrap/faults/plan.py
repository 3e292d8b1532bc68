"""Which fault happens when. A plan is text or `Fault` objects, and the same plan gives the same faults every time.

grad:0.01,seed=1               a gradient is NaN in one of a hundred steps
activation:step=5,value=inf    an activation is Inf in step 5
param:step=3/9,where=head.*    a weight of the head is NaN before steps 3 and 9
loss:0.02;bitflip:step=40      two faults
"""

from __future__ import annotations

import fnmatch
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from nantrap.errors import UsageError

Number = TypeVar("Number", int, float)
KINDS: Final = ("batch", "activation", "loss", "grad", "param", "buffer", "optimizer", "bitflip", "checkpoint")
"""Where a fault is put, in the order of a step. `checkpoint` counts saves instead of steps."""

VALUES: Final = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf"), "huge": 1e30}
_ALIASES: Final = {"gradient": "grad", "data": "batch", "parameter": "param", "weight": "param", "state": "optimizer"}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault on purpose.

    Attributes:
        kind: where it is put, one of `KINDS`.
        rate: how likely it is in each step, if `steps` is empty.
        steps: the steps in which it happens, from 0.
        value: `nan`, `inf`, `-inf` or `huge` (1e30).
        where: a pattern of module, parameter or buffer names.
        rank: only on this rank of a distributed run; on every rank by default.
        seed: chooses steps, names and elements.
        bit: for `bitflip`, which bit of the value, 0 the lowest; an exponent bit by default.
    """

    kind: str
    rate: float = 0.0
    steps: tuple[int, ...] = ()
    value: str = "nan"
    where: str = "*"
    rank: int | None = None
    seed: int = 0
    bit: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"there is no fault {self.kind!r}; choose from {', '.join(KINDS)}")
        if self.value not in VALUES:
            raise UsageError(f"a fault cannot have the value {self.value!r}; choose {', '.join(VALUES)}")
        if not 0 <= self.rate <= 1:
            raise UsageError(f"{self.rate:g} is not a probability; give a number from 0 to 1, such as grad:0.01")
        if not self.rate and not self.steps:
            raise UsageError(
                f"say when {self.kind} happens: {self.kind}:0.01 (in 1 % of the steps) or {self.kind}:step=5"
            )

    def chance(self, step: int, rank: int) -> random.Random | None:
        """The random numbers of this fault in this step, or `None` if it does not happen then.

        They depend on seed, kind, step and rank alone, so that neither other faults nor the training change them.
        """
        if self.rank is not None and rank != self.rank:
            return None
        drawn = random.Random(f"{self.seed}/{self.kind}/{self.where}/{step}/{rank}")
        happens = step in self.steps if self.steps else drawn.random() < self.rate
        return drawn if happens else None

    def matches(self, name: str) -> bool:
        """Whether a module, parameter or buffer of this name may be hit."""
        return fnmatch.fnmatchcase(name, self.where)


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Faults from text, several separated by semicolons.

    Args:
        text: `grad:0.01,seed=1`.
    """
    faults = tuple(_parse(part.strip()) for part in text.split(";") if part.strip())
    if not faults:
        raise UsageError("no fault is named; give for example grad:0.01,seed=1")
    return faults


def _parse(text: str) -> Fault:
    """The fault of a text such as `grad:0.01,seed=1`; raises `UsageError` that says how one is written."""
    kind, _, rest = text.partition(":")
    given: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in rest.split(","))):
        key, separator, value = item.partition("=")
        if not separator:
            key, value = "rate", item
        given[{"steps": "step", "at": "step", "name": "where", "module": "where", "p": "rate"}.get(key, key)] = value
    unknown = [key for key in given if key not in ("rate", "step", "value", "where", "rank", "seed", "bit")]
    if unknown:
        raise UsageError(f"{text}: {unknown[0]} is not an option; use rate, step, value, where, rank, seed, bit")
    try:
        return Fault(
            _ALIASES.get(kind, kind),
            rate=_number(float, "rate", given.get("rate", "0")),
            steps=tuple(_number(int, "step", step) for step in given["step"].replace("|", "/").split("/"))
            if "step" in given
            else (),
            value=given.get("value", "nan").lower(),
            where=given.get("where", "*"),
            rank=_number(int, "rank", given["rank"]) if "rank" in given else None,
            seed=_number(int, "seed", given.get("seed", "0")),
            bit=_number(int, "bit", given["bit"]) if "bit" in given else None,
        )
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"{text}: {error}; a fault is written like grad:0.01,seed=1 or loss:step=5") from error


def _number(kind: Callable[[str], Number], key: str, text: str) -> Number:
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise ValueError(f"{key} is {text or 'empty'}, not {wanted}") from None
