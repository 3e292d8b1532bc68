"""One step on a copy of the model, under the guard: it ends finite, or with the place and the cause of the failure."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from nantrap.doctor.data.readers.factory import described
from nantrap.doctor.preflight.subject import Subject
from nantrap.guard import Diagnosis, Guard, Policy, Rollback
from nantrap.incident import Incident

_SECONDS = 10.0
"""How long a failure is diagnosed."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """How a step ended.

    Attributes:
        finite: whether loss, gradients and the update are finite.
        loss: the loss.
        grad_norm: the gradient norm.
        where: module, operation and line of the failure.
        cause: slug of the best explanation.
        code: its code.
        help: its fix.
        samples: the guilty samples of the batch.
        error: what was raised instead.
    """

    finite: bool
    loss: float = float("nan")
    grad_norm: float = float("nan")
    where: str = ""
    cause: str = ""
    code: str = ""
    help: str = ""
    samples: tuple[int, ...] = ()
    error: str = ""

    @property
    def message(self) -> str:
        """The outcome in one line."""
        if self.error:
            return f"raised {self.error}"
        if self.finite:
            return f"loss {self.loss:.4g}, gradient norm {self.grad_norm:.3g}"
        return f"{self.cause}[{self.code}] {self.where}"

    def values(self) -> dict[str, Any]:
        """For the JSON."""
        return {
            "finite": self.finite,
            "loss": self.loss,
            "grad_norm": self.grad_norm,
            "where": self.where,
            "cause": self.cause,
            "code": self.code,
            "samples": list(self.samples),
            "error": self.error,
        }


def try_step(
    subject: Subject,
    batch: Any = None,
    *,
    autocast: torch.dtype | None = None,
    diagnose: bool = True,
    seed: int = 0,
) -> StepResult:
    """Make one guarded step on fresh copies.

    Args:
        subject: what is tested.
        batch: another batch than the subject's.
        autocast: run forward and loss in this precision.
        diagnose: locate and explain a failure.
        seed: of torch's random numbers.
    """
    fresh = subject.fresh()
    used = subject.batch if batch is None else batch
    # Nothing is written to disk, and a single step needs no memory of earlier states.
    policy = Policy(
        diagnose="full" if diagnose else "off",
        diagnosis=Diagnosis(seconds=_SECONDS),
        rollback=Rollback(anchor_every=0),
        spikes="off",
        bundle="off",
    )

    def loss(part: Any) -> Any:
        with _precision(subject.device.type, autocast):
            return fresh.loss_of(part)

    torch.manual_seed(seed)
    with quiet(), Guard(fresh.model, fresh.optimizer, max_grad_norm=None, policy=policy, quiet=True) as guard:
        try:
            outcome = guard.attempt(loss, used)
        except (Exception, SystemExit) as error:
            return StepResult(False, error=described(error))
    if outcome.incident is None:
        return StepResult(True, outcome.loss, outcome.grad_norm)
    return _failed(outcome.incident, outcome.loss, outcome.grad_norm)


def _failed(incident: Incident, loss: float, grad_norm: float) -> StepResult:
    """The result of a step that failed, from its incident."""
    cause = incident.causes[0] if incident.causes else None
    return StepResult(
        False,
        loss,
        grad_norm,
        place_of(incident),
        cause.slug if cause else "unknown",
        cause.code if cause else "NT000",
        cause.fix.text if cause and cause.fix else "",
        incident.samples,
    )


def place_of(incident: Incident) -> str:
    """`in head (aten.log) at model.py:41`."""
    words = [f"in {incident.module}"] if incident.module else []
    if incident.op:
        words.append(f"({incident.op})")
    if incident.source is not None:
        words.append(f"at {os.path.basename(incident.source.file)}:{incident.source.line}")
    return " ".join(words) or f"in the {incident.phase} phase"


def _precision(device: str, dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    return torch.autocast(device, dtype=dtype) if dtype is not None else contextlib.nullcontext()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The user's warnings are for training, not for a hundred trial steps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
