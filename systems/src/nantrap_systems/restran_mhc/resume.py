"""Going on from an earlier run: what was saved of it, and what is loaded again.

go_on              the earlier run makes its steps and its checkpoints, the new one loads; what nantrap said on the way
save_finite        into a store that refuses a state which is not finite
load_last_good     everything of the last good state, and the configured learning rate
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path

from nantrap.checkpoints import CheckpointStore, check_resume
from nantrap.errors import NonFiniteError
from nantrap_systems.restran_mhc.data import Batch
from nantrap_systems.system import Run
from nantrap_systems.training import train

Save = Callable[[Run, Path, int], None]
"""Saves a run into a folder after a number of steps; may raise `NonFiniteError`."""
Load = Callable[[Run, Path, float], None]
"""Loads from the folder into a new run, whose learning rate is configured to be this."""


def go_on(run: Run, earlier: Run, *, steps: int, accident: bool, rate: float, save: Save, load: Load) -> list[str]:
    """Train the earlier run, save it, load it into the new one. Returns what nantrap said.

    Args:
        run: the new run; it is changed.
        earlier: the earlier run, from its beginning.
        steps: how many it makes.
        accident: whether a frame of NaN is in a further batch; a checkpoint is saved before it and one after it.
        rate: the learning rate that is configured for the new run.
        save: how the project saves.
        load: how the project loads.
    """
    said = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for _ in train(earlier, steps=steps):
            pass
        save(earlier, folder, steps)
        if accident:
            (batch,) = earlier.window(steps)
            earlier.window = lambda step: (spoilt(batch),)
            for _ in train(earlier, steps=1, start=steps):
                pass
            try:
                save(earlier, folder, steps + 1)
            except NonFiniteError as error:
                said.append(str(error))
        load(run, folder, rate)
    found = check_resume(model=run.model, optimizer=run.optimizer, scheduler=run.scheduler, scaler=run.scaler, lr=rate)
    return said + [str(finding) for finding in found]


def spoilt(batch: Batch) -> Batch:
    """The batch with one frame of NaN, as a broken file gives it."""
    frames = batch.frames.clone()
    frames[0, 0] = math.nan
    return batch._replace(frames=frames)


def save_finite(run: Run, folder: Path, step: int) -> None:
    """Into a store, which refuses a state that is not finite."""
    CheckpointStore(folder).save(
        step=step, model=run.model, optimizer=run.optimizer, scheduler=run.scheduler, scaler=run.scaler
    )


def load_last_good(run: Run, folder: Path, rate: float) -> None:
    """The last good state, and the configured learning rate."""
    CheckpointStore(folder).load(
        "last_good", model=run.model, optimizer=run.optimizer, scheduler=run.scheduler, scaler=run.scaler
    )
    check_resume(optimizer=run.optimizer, scheduler=run.scheduler, lr=rate, take="configured")
