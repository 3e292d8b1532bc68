"""Other random numbers: a model that draws noise levels, dropout or masks gets their rare values one day."""

from __future__ import annotations

import math
import time

import torch

from nantrap.doctor.preflight.report import PreflightCheck
from nantrap.doctor.preflight.subject import Subject
from nantrap.doctor.preflight.trial import quiet, try_step

_NAME = "random draws"
_DRAWS = 64
_LOOKED_AT = 3
_SECONDS = 5.0


def check_draws(subject: Subject) -> PreflightCheck:
    """The loss of the same batch under other random numbers. The first bad one is made again as a step."""
    losses = _losses(subject)
    if not math.isfinite(losses[-1]):
        return _failed(subject, seed=len(losses))
    if len(set(losses)) == 1:
        return PreflightCheck(_NAME, "unjudged", "the loss draws no random numbers")
    limit = f" (no more in {_SECONDS:.0f} s)" if len(losses) < _DRAWS else ""
    text = f"{len(losses)} draws, loss {min(losses):.4g} to {max(losses):.4g}{limit}"
    return PreflightCheck(_NAME, "ok", text, data={"draws": len(losses), "least": min(losses), "largest": max(losses)})


def _losses(subject: Subject) -> list[float]:
    """The loss after the seeds 1, 2, ...; up to the first that is not finite, or a few if all are equal."""
    fresh = subject.fresh()
    losses: list[float] = []
    begin = time.perf_counter()
    with quiet(), torch.no_grad():
        for seed in range(1, _DRAWS + 1):
            torch.manual_seed(seed)
            losses.append(float(fresh.total_loss(subject.batch)))
            constant = len(losses) == _LOOKED_AT and len(set(losses)) == 1
            if constant or not math.isfinite(losses[-1]) or time.perf_counter() - begin > _SECONDS:
                break
    return losses


def _failed(subject: Subject, *, seed: int) -> PreflightCheck:
    result = try_step(subject, seed=seed)
    words = f"not finite after torch.manual_seed({seed})"
    if result.finite or result.error:  # it needs what the draws before it left behind
        return PreflightCheck(_NAME, "error", words, "a rare random value breaks the loss", {"seed": seed})
    help_text = result.help or "a rare random value breaks the loss"
    return PreflightCheck(_NAME, "error", f"{result.message}, {words}", help_text, {**result.values(), "seed": seed})
