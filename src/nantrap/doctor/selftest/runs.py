"""Whole runs with and without a guard."""

from __future__ import annotations

import functools
import runpy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from nantrap.doctor.selftest.operations import FUSED
from nantrap.doctor.selftest.training import (
    FIRST,
    FORMS,
    DidNotHold,
    NotHere,
    Recipe,
    Training,
    compare,
    differences,
    plain_state,
)

RECIPES: Final[dict[str, Recipe]] = {
    **{f"run: {name} fused": Recipe(optimizer=make) for name, make in FUSED.items()},
    "run: AdamW foreach": Recipe(optimizer=lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True)),
    "run: AdamW capturable": Recipe(optimizer=lambda p: torch.optim.AdamW(p, lr=1e-2, capturable=True)),
    "run: SGD with momentum": Recipe(optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    "run: nothing clips": Recipe(clip=None),
    "run: GradScaler": Recipe(scale=8.0),
    "run: autocast float16": Recipe(scale=1024.0, autocast=torch.float16),
    "run: autocast bfloat16": Recipe(autocast=torch.bfloat16),
    "run: accumulation": Recipe(micro=2),
    "run: averaged weights": Recipe(average=True),
    "run: schedule": Recipe(schedule=True),
}


def compared(recipe: Recipe, device: torch.device) -> str:
    """A healthy run and one with a bad step, in both forms, against the plain loop."""
    try:
        without = plain_state(recipe, device, streams=False)
    except Exception as error:
        words = (str(error).splitlines() or [""])[0][:160]
        raise NotHere(f"the loop without a guard does not run here: {type(error).__name__}: {words}") from None
    wrong, read = compare(recipe, device, without)
    if wrong:
        raise DidNotHold(wrong)
    return "as plain bit for bit; a bad step leaves no trace" + ("" if device.type == "cpu" else f"; read {read}")


def side_stream(device: torch.device) -> str:
    """The whole run on a stream of its own."""
    if device.type == "cpu":
        raise NotHere("a CPU has no streams")
    stream = torch.Stream(device=device)
    if not hasattr(stream, "__enter__"):
        raise NotHere(f"torch {torch.__version__} cannot make a stream current by `with`")
    torch.accelerator.synchronize(device)
    with stream:
        said = compared(Recipe(), device)
        stream.synchronize()
    return said


def compiled(device: torch.device) -> str:
    """The model compiled: by the backend that generates code on CUDA, elsewhere without it."""
    backend = "inductor" if device.type == "cuda" else "aot_eager"
    said = compared(Recipe(wrap=lambda model, batch: torch.compile(model, backend=backend)), device)
    return f"{backend}: {said}"


def graphs(device: torch.device) -> str:
    """Forward and backward pass replayed from CUDA graphs."""
    if device.type != "cuda":
        raise NotHere("only CUDA has graphs")

    def graphed(model: nn.Module, batch: Any) -> Any:
        return torch.cuda.make_graphed_callables(model, (batch[0].clone(),))

    return compared(Recipe(wrap=graphed), device)


def no_waiting(device: torch.device) -> str:
    """PyTorch raises at every operation that waits for the device, during healthy steps of both forms."""
    if device.type == "cpu":
        raise NotHere("nothing waits for a CPU")
    module = torch.get_device_module(device)
    if not hasattr(module, "set_sync_debug_mode"):
        raise NotHere(f"torch.{device.type} cannot say when something waits for it")
    recipes = {"plain": Recipe(), "scaler": Recipe(scale=8.0), "averaged weights": Recipe(average=True)}
    waits_itself, found = [], []
    for name, recipe in recipes.items():
        run = Training(recipe, device)
        windows = run.windows()
        run.plain(windows[:FIRST])
        if _what_waits(module, functools.partial(run.plain, windows[FIRST:])):
            waits_itself.append(name)
            continue
        for form in FORMS:
            run = Training(recipe, device)
            with run.guard() as guard:
                run.guarded(guard, form, windows[:FIRST])
                late = functools.partial(run.guarded, guard, form, windows[FIRST:])
                if words := _what_waits(module, late):
                    raise DidNotHold(f"{form}, {name}: a healthy step waits: {words}")
        found.append(name)
    if not found:
        raise NotHere("the loop without a guard waits itself")
    return f"no operation of a healthy step waits for the device ({', '.join(found)})" + (
        f"; {', '.join(waits_itself)}: the loop without a guard waits itself" if waits_itself else ""
    )


def _what_waits(module: Any, steps: Callable[[], None]) -> str:
    """What PyTorch says where an operation waits; empty if none does."""
    before = module.get_sync_debug_mode()
    module.set_sync_debug_mode("error")
    try:
        steps()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    finally:
        module.set_sync_debug_mode(before)
    return ""


_LOOP: Final = """
import torch
from torch import nn


def loss_of(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1]) + 1e-3 * torch.log(batch[0].square().sum(1)).mean()


def two_lines(model, guard, windows):
    for (batch,) in windows:
        loss = loss_of(model, batch)
        guard.backward(loss)
        guard.step()


def attempt(model, guard, windows):
    for (batch,) in windows:
        guard.attempt(lambda given: loss_of(model, given), batch)
"""
"""Loops of a program: what nantrap does by itself is not looked into."""


def diagnosis(device: torch.device) -> str:
    """A batch of zeros: where it began, why, and the proof."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "loops.py")
        path.write_text(_LOOP, encoding="utf-8")
        loops = runpy.run_path(str(path))
        for form in FORMS:
            run = Training(Recipe(), device)
            windows = run.windows()
            zeros = (torch.zeros_like(windows[0][0][0]), windows[0][0][1])
            with run.guard() as guard:
                loops[form.replace(" ", "_")](run.model, guard, [*windows[:FIRST], [zeros], *windows[FIRST:]])
            incident = guard.last_incident
            if incident is None or incident.step != FIRST:
                raise DidNotHold(f"{form}: no incident in step {FIRST}")
            cause = incident.cause
            if cause is None or cause.slug != "log_of_zero" or not cause.proven:
                named = "no cause" if cause is None else f"{cause.slug}, {'proven' if cause.proven else 'not proven'}"
                raise DidNotHold(f"{form}: log of zero was diagnosed as {named}, at {incident.op}")
    return "log of zero: located, explained and proven in both forms"


def rollback(device: torch.device) -> str:
    """Four bad steps in a row: the run goes back to a state that it had, bit for bit."""
    for form in FORMS:
        run = Training(Recipe(), device)
        windows = run.windows()
        bad = [(torch.full_like(windows[0][0][0], torch.nan), windows[0][0][1])]
        held = []
        with run.guard(max_consecutive_skips=2, diagnose="off") as guard:
            for window in windows:
                held.append(_weights(run))
                run.guarded(guard, form, [window])
            run.guarded(guard, form, [bad] * 4)
            if not guard.tally.rollbacks:
                raise DidNotHold(f"{form}: four bad steps in a row made no rollback")
        if _weights(run) not in held:
            raise DidNotHold(f"{form}: the weights after a rollback are none that the run ever had")
    return "after bad steps in a row the weights are bit for bit those of an earlier step"


def _weights(run: Training) -> dict[str, Any]:
    return {name: value for name, value in run.state().items() if name.startswith("parameter")}


def save_and_load(device: torch.device) -> str:
    """A state that was saved is loaded bit for bit, and training goes on as if nothing had been."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = Recipe(schedule=True, average=True)
        states = []
        for number in range(2):
            run = Training(recipe, device, dropout=0.2)
            windows = run.windows()
            with run.guard(diagnose="off") as guard:
                if number:
                    guard.load(Path(folder, "saved.safetensors"))
                else:
                    run.guarded(guard, "attempt", windows[:FIRST])
                    guard.save(Path(folder, "saved.safetensors"))
                run.guarded(guard, "attempt", windows[FIRST:])
            states.append(run.state())
    if found := differences(*states):
        raise DidNotHold(f"a run that was loaded goes on differently: {found}")
    return "a loaded run goes on bit for bit as the one that was saved"
