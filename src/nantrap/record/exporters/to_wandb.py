"""To Weights & Biases: into the run the script has begun, or a new one. Offline with WANDB_MODE=offline."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nantrap.errors import MissingExtraError
from nantrap.incident import Incident


def start(run_dir: str | None, facts: dict[str, Any]) -> WandB:
    """Join the active run, or begin one."""
    try:
        import wandb
    except ImportError as error:
        raise MissingExtraError("wandb", extra="wandb") from error
    run = wandb.run
    if run is not None:
        return WandB(run, owned=False)
    name = Path(run_dir).resolve().name if run_dir else None
    if run_dir is not None:
        os.makedirs(run_dir, exist_ok=True)
    project = os.environ.get("WANDB_PROJECT") or "nantrap"
    return WandB(wandb.init(project=project, name=name, dir=run_dir, config=facts), owned=True)


class WandB:
    """Logs to a run of W&B, over its own step counter, so that the script's own steps are not disturbed."""

    name = "wandb"

    def __init__(self, run: Any, *, owned: bool) -> None:
        self._run = run
        self._owned = owned
        run.define_metric("nantrap/step")
        run.define_metric("nantrap/*", step_metric="nantrap/step")

    def values(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of a step."""
        self._run.log({"nantrap/step": step, **{f"nantrap/{name}": value for name, value in values.items()}})

    def incident(self, incident: Incident, text: str) -> None:
        """Log the diagnostic, and raise an alert."""
        import html

        import wandb

        page = wandb.Html(f"<pre>{html.escape(text)}</pre>", inject=False)
        self._run.log({"nantrap/step": incident.step, "nantrap/incident": page})
        self._run.alert(
            title=f"nantrap: step {incident.step:,}: {incident.action}", text=text[:1500], wait_duration=300
        )

    def close(self) -> None:
        """End the run if it is ours."""
        if self._owned:
            self._run.finish()
