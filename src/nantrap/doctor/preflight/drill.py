"""Faults are injected into the user's own loop, and the guard must contain them. With its measured cost in that
loop."""

from __future__ import annotations

import copy
import math
import os
import statistics
import tempfile
import time

import torch

from nantrap.doctor.preflight.report import PreflightCheck
from nantrap.doctor.preflight.subject import Subject
from nantrap.doctor.preflight.trial import quiet
from nantrap.errors import NonFiniteError
from nantrap.faults import inject
from nantrap.guard import Guard, Policy, Rollback

_PASSING = ("batch", "activation", "loss", "grad")
"""Faults that are over after the step: the next one must be applied again."""
_STAYING = ("param", "buffer", "optimizer")
"""Faults that stay in the state: they must be noticed in the step."""
_TOP_BITS = {torch.float64: 62, torch.float32: 30, torch.float16: 14, torch.bfloat16: 14}
"""The bit that makes a small number a huge one."""
_AT = 1
"""The step that gets the fault: a good one before it, so that the optimizer has a state, and one after it."""
_ROUNDS = 11
_COST_SECONDS = 4.0
_POLICY = Policy(
    diagnose="off", bundle="off", spikes="off", max_consecutive_skips=10, rollback=Rollback(anchor_every=0)
)


def check_guard(subject: Subject) -> PreflightCheck:
    """One fault of each kind in a loop of three steps, and one in a checkpoint."""
    verdicts = {kind: _drill(subject, kind) for kind in (*_PASSING, *_STAYING, "bitflip")}
    verdicts["checkpoint"] = _checkpoint(subject)
    held = [kind for kind, verdict in verdicts.items() if verdict is True]
    broken = [kind for kind, verdict in verdicts.items() if verdict is False]
    skipped = [kind for kind, verdict in verdicts.items() if verdict is None]
    values = {"held": held, "broken": broken, "not_applicable": skipped}
    text = f"{len(held)} of {len(held) + len(broken)} kinds of faults contained: {', '.join(held)}"
    if broken:
        return PreflightCheck(
            "guard", "error", f"not held: {', '.join(broken)}", "report this loop to the project", values
        )
    return PreflightCheck("guard", "ok", text, data=values)


def _drill(subject: Subject, kind: str) -> bool | None:
    """Whether the guard held; `None` if the model has nothing of the kind to hit."""
    fresh = subject.fresh()
    model, optimizer = fresh.model, fresh.optimizer
    torch.manual_seed(0)
    applied: list[bool] = []
    losses: list[float] = []
    noticed = False
    with (
        quiet(),
        Guard(model, optimizer, max_grad_norm=None, policy=_POLICY, quiet=True) as guard,
        inject(_fault(kind, fresh), model=model, optimizer=optimizer) as faults,
    ):
        for _ in range(_AT + 2):
            try:
                outcome = guard.attempt(fresh.loss_of, copy.deepcopy(subject.batch))
            except NonFiniteError:  # stopping is holding, too
                noticed = True
                break
            applied.append(outcome.applied)
            losses.append(outcome.loss)
            noticed = noticed or outcome.incident is not None
    if not faults.injected:
        return None
    if kind in _STAYING:
        return noticed
    finite = all(bool(parameter.isfinite().all()) for parameter in model.parameters())
    if kind == "bitflip":  # a huge weight behind a normalisation does no harm, and then nothing is there to notice
        return noticed or (finite and all(map(math.isfinite, losses)))
    return finite and (applied == [True, False, True] if noticed else applied == [True] * (_AT + 2))


def _fault(kind: str, subject: Subject) -> str:
    """The fault as text, the same in every preflight of this model."""
    text = f"{kind}:step={_AT},seed=1"
    if kind != "bitflip":
        return text
    dtype = next(parameter.dtype for parameter in subject.model.parameters() if parameter.is_floating_point())
    return f"{text},bit={_TOP_BITS.get(dtype, 14)}"


def _checkpoint(subject: Subject) -> bool:
    """A file that was damaged when it was written is found, and a state that is not finite is not written at all."""
    from nantrap.checkpoints.audit import audit

    fresh = subject.fresh()
    with tempfile.TemporaryDirectory() as folder:
        written = os.path.join(folder, "written.pt")
        with inject("checkpoint:step=0,seed=1"):
            torch.save({"model": fresh.model.state_dict()}, written)
        found = not audit(written).healthy
        with quiet(), Guard(fresh.model, fresh.optimizer, policy=_POLICY, quiet=True) as guard:
            weight = next(parameter for parameter in fresh.model.parameters() if parameter.is_floating_point())
            with torch.no_grad():
                weight.view(-1)[0] = math.nan
            refused = os.path.join(folder, "refused.safetensors")
            try:
                guard.save(refused)
            except NonFiniteError:
                return found and not os.path.exists(refused)
    return False


def check_cost(subject: Subject) -> PreflightCheck:
    """Plain and guarded steps in turns on two copies; medians, since other programs use the machine too."""
    bare, held = subject.fresh(), subject.fresh()
    plain: list[float] = []
    guarded: list[float] = []
    begin = time.perf_counter()
    with (
        quiet(),
        Guard(
            held.model,
            held.optimizer,
            max_grad_norm=None,
            policy=Policy(bundle="off", diagnose="off"),
            quiet=True,
        ) as guard,
    ):
        for number in range(_ROUNDS + 1):
            first = time.perf_counter()
            _plain_step(bare)
            second = time.perf_counter()
            guard.attempt(held.loss_of, subject.batch)
            third = time.perf_counter()
            if number:  # the first step allocates
                plain.append(second - first)
                guarded.append(third - second)
            if third - begin > _COST_SECONDS and len(plain) >= 3:
                break
    before, after = 1e3 * statistics.median(plain), 1e3 * statistics.median(guarded)
    share = (after - before) / before
    text = f"{before:.3g} ms per plain step, {after:.3g} ms guarded ({share:+.1%}, median of {len(plain)})"
    return PreflightCheck("guard cost", "ok", text, data={"plain_ms": before, "guarded_ms": after, "share": share})


def _plain_step(subject: Subject) -> None:
    subject.optimizer.zero_grad()
    subject.total_loss(subject.batch).backward()
    subject.optimizer.step()
