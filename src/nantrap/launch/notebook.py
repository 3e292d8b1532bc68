"""`%load_ext nantrap`: every optimizer of the notebook is guarded from here on; `%unload_ext nantrap` ends it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from nantrap.launch.attach import Attachment
from nantrap.launch.settings import Settings, read_settings
from nantrap.launch.summary import Summary, print_summary
from nantrap.report.notebook import magic

_attached: list[tuple[Attachment, Settings]] = []


def load(shell: Any) -> None:
    """Attach, once, with the settings of the environment and of `pyproject.toml`."""
    if hasattr(shell, "register_magic_function"):
        shell.register_magic_function(magic, "line", "nantrap")
    if _attached:
        return
    settings = read_settings({"name": "notebook"}, environment=os.environ, folder=Path.cwd())
    attachment = Attachment(settings)
    attachment.enter_living()
    _attached.append((attachment, settings))
    attachment.loops.say(
        f"every optimizer of this notebook is guarded from here on (policy {settings.policy_name}); reports go to "
        f"{settings.run_dir or 'runs/'}; %unload_ext nantrap ends it"
    )


def unload(shell: Any) -> None:
    """Sum up and detach."""
    if _attached:
        attachment, settings = _attached.pop()
        attachment.loops.record_abandoned()
        summary = Summary.of(attachment)
        attachment.detach()
        print_summary(summary, 0, settings)
