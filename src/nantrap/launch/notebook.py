"""`%load_ext nantrap`: every optimizer of the notebook is guarded from here on; `%unload_ext nantrap` ends it."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from nantrap.launch.attach import Attachment
from nantrap.launch.settings import Settings, read_settings
from nantrap.launch.summary import Summary, print_summary
from nantrap.launch.torch_private import is_scheduled, mark_scheduled, mark_stepped
from nantrap.report.notebook import magic

_attached: list[tuple[Attachment, Settings]] = []
_own_steps: list[tuple[weakref.ref[Optimizer], Any]] = []


def load(shell: Any) -> None:
    """Attach, once, with the settings of the environment and of `pyproject.toml`."""
    if hasattr(shell, "register_magic_function"):
        shell.register_magic_function(magic, "line", "nantrap")
    if _attached:
        return
    settings = read_settings({"name": "notebook"}, environment=os.environ, folder=Path.cwd())
    attachment = Attachment(settings)
    attachment.loops.enter_living()
    for entry in attachment.loops.entries():
        _reach_through_schedule(entry.optimizer)
    _attached.append((attachment, settings))


def unload(shell: Any) -> None:
    """Sum up and detach."""
    if _attached:
        attachment, settings = _attached.pop()
        summary = Summary.of(attachment)
        attachment.detach()
        while _own_steps:
            reference, own = _own_steps.pop()
            if (optimizer := reference()) is not None:
                optimizer.step = own  # type: ignore[method-assign]
        print_summary(summary, 0, settings)


def _reach_through_schedule(reference: weakref.ref[Optimizer]) -> None:
    """A schedule gives its optimizer a `step` that calls the class's as it was then: let it call the one of now."""
    optimizer = reference()
    own = None if optimizer is None else vars(optimizer).get("step")
    if not is_scheduled(own):
        return

    def step(*args: Any, **kwargs: Any) -> Any:
        living = reference()
        assert living is not None
        mark_stepped(living)
        return type(living).step(living, *args, **kwargs)

    mark_scheduled(step)
    _own_steps.append((reference, own))
    optimizer.step = step  # type: ignore[union-attr,method-assign]
