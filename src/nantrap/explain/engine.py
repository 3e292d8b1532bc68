"""The engine."""

from __future__ import annotations
from dataclasses import dataclass
from typing import Any
from nantrap.incident import Cause, Trial


@dataclass(slots=True)
class Case:
    failed: Any
    location: Any
    incident: Any
    history: Any
    scale: Any
    max_grad_norm: Any
    anchors: Any
    ema_modules: Any
    scheduler: Any


@dataclass(slots=True)
class Explanation:
    causes: tuple[Cause, ...] = ()
    refuted: tuple[Cause, ...] = ()
    trials: tuple[Trial, ...] = ()
    notes: tuple[str, ...] = ()


def explain_case(case: Case, *, seconds: float) -> Explanation:
    return Explanation()
