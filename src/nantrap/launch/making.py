"""A guard for one optimizer of the script, made from the settings of the run."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nantrap.guard.ranks.ranks import is_sharded
from nantrap.guard.session import Session, Setup
from nantrap.guard.watching.sample_list import as_sample_list
from nantrap.guard.watching.watch import Limit
from nantrap.incident.wording import some_of
from nantrap.launch.position import ScriptNeighbours
from nantrap.launch.script_loop import ScriptLoop
from nantrap.launch.settings import RunSettings
from nantrap.launch.shared import Shared


def make_loop(
    model: nn.Module,
    optimizer: Optimizer,
    settings: RunSettings,
    *,
    shared: Shared,
    run_dir: str | os.PathLike[str],
    schedules: Callable[[], Sequence[Any]],
    say: Callable[[str], None],
) -> ScriptLoop:
    """The guard of an optimizer.

    Args:
        model: the outermost module that the optimizer's parameters belong to.
        optimizer: the optimizer.
        settings: of the run.
        shared: what all guards of the script share.
        run_dir: where the journal and the incidents go.
        schedules: gives the schedules of the optimizer, which the script steps.
        say: prints a line.
    """
    samples = as_sample_list(settings.bad_samples or None)
    session = Session(
        model,
        optimizer,
        Setup(
            policy=settings.policy(),
            run_dir=run_dir,
            quiet=settings.quiet,
            by="script",
            watch=_watch(model, settings, say),
            neighbours=ScriptNeighbours(shared.batches, shared.diagnosed, samples),
            export=settings.exporters,
            alerts=settings.alerts(),
            bad_samples=samples,
            max_grad_norm=settings.clip or None,
            save_every=_save_every(model, settings, say),
            schedules=schedules,
        ),
    )
    return ScriptLoop(
        model,
        session,
        shared,
        max_grad_norm=settings.clip or None,
        checks_epochs=settings.check_state == "epoch",
    )


def make_loose_loop(
    root: nn.Module, leaves: list[Tensor], settings: RunSettings, *, shared: Shared, run_dir: str | os.PathLike[str]
) -> ScriptLoop:
    """A guard over tensors that no optimizer owns, to diagnose their values; it never makes a step.

    Args:
        root: holds the tensors.
        leaves: the tensors, leaves of a graph.
        settings: of the run.
        shared: what the guard shares; the script has no other one.
        run_dir: where the journal and the incidents go.
    """
    never_steps = torch.optim.SGD(leaves, lr=0.0)
    for group in never_steps.param_groups:
        del group["lr"]  # there is no learning rate to report
    session = Session(
        root,
        never_steps,
        Setup(
            policy=settings.policy(),
            run_dir=run_dir,
            quiet=settings.quiet,
            by="script",
            neighbours=ScriptNeighbours(shared.batches, shared.diagnosed, None),
            export=settings.exporters,
            alerts=settings.alerts(),
        ),
    )
    return ScriptLoop(root, session, shared)


def _watch(root: nn.Module, settings: RunSettings, say: Callable[[str], None]) -> dict[str, Limit | None]:
    """What to follow in this model. A name may be meant for the model of another optimizer."""
    names = [name for name, _ in (*root.named_parameters(), *root.named_buffers())]
    found: dict[str, Limit | None] = {}
    for pattern, (least, largest) in settings.watches().items():
        if any(fnmatch.fnmatchcase(name, pattern) for name in names):
            found[pattern] = None if least is largest is None else Limit(min=least, max=largest)
        else:
            say(
                f"--watch {pattern}: no parameter or buffer of {type(root).__name__} has such a name; "
                f"names look like {some_of(names)}"
            )
    return found


def _save_every(root: nn.Module, settings: RunSettings, say: Callable[[str], None]) -> int:
    """How often to save. Of a sharded model each rank holds a part, and one rank alone cannot write the whole."""
    if settings.save_every and is_sharded(root):
        say(
            "--save-every does nothing for a sharded model: save it in the script with "
            "torch.distributed.checkpoint, which is guarded as well"
        )
        return 0
    return settings.save_every
