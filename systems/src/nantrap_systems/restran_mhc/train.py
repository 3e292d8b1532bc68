"""Train it: `python -m nantrap_systems.restran_mhc.train --steps 100`.

go_on       an earlier run makes its steps and its checkpoints, the new one loads; what nantrap said on the way
Parts       what the repaired system is made of, and a fault replaces
build       from settings to a run, with `make_model`
SYSTEM      what `nantrap demo` shows
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

import nantrap
from nantrap.checkpoints import CheckpointStore, check_resume
from nantrap.errors import NonFiniteError
from nantrap.ops import RMSNorm, Sinkhorn, ctc_loss
from nantrap_systems.precision import precision, precision_in_words
from nantrap_systems.restran_mhc.data import Batch, Plates
from nantrap_systems.restran_mhc.faults import FAULTS
from nantrap_systems.restran_mhc.loss import Ctc, evaluate, plate_loss
from nantrap_systems.restran_mhc.model import Contrast, HyperConnection, PlateReader, Residual, branch, mix
from nantrap_systems.restran_mhc.settings import Settings
from nantrap_systems.script import main
from nantrap_systems.system import Flag, Run, System
from nantrap_systems.training import train
from nantrap_systems.updates import standard_update

# ---- an earlier run: what was saved of it, and what is loaded again

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


# ---- a run


class Cycle(OneCycleLR):
    """One cycle over the steps of this run. A restored state does not bring the length of an earlier run back."""

    def __init__(self, optimizer: torch.optim.Optimizer, max_lr: float, *, steps: int, pct_start: float) -> None:
        # the schedule is stepped after the last update too, and beyond its end the learning rate would rise again
        super().__init__(optimizer, max_lr, total_steps=steps + 1, pct_start=pct_start)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore all but the length; the learning rates are in the optimizer's state."""
        length = {name: vars(self)[name] for name in ("total_steps", "_schedule_phases")}
        super().load_state_dict({**state_dict, **length})


WATCH = dict.fromkeys(("*.alpha_pre", "*.alpha_post", "*.alpha_res"), nantrap.Limit(min=-1.0, max=1.0))
"""The α begin at 0.01; one beyond ±1 makes the matrices of a hyper-connection saturate."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the repaired system is made of. A fault replaces some of them by name."""

    contrast: Callable[[], nn.Module] = Contrast
    connection: Callable[..., nn.Module] = HyperConnection
    norm: Callable[[int], nn.Module] = RMSNorm
    sinkhorn: Callable[[], nn.Module] = Sinkhorn
    mixing: Callable[[Tensor, Tensor], Tensor] = mix
    sublayer: Callable[[int], nn.Module] = branch
    ctc: Ctc = ctc_loss
    update: Callable[[Run], bool] = standard_update
    begin_epoch: Callable[[Run], None] | None = None
    save: Save = save_finite
    load: Load = load_last_good


def make_model(settings: Settings, parts: Parts) -> PlateReader:
    """The model of some settings and parts."""
    return PlateReader(
        channels=settings.channels,
        n=settings.mhc_n,
        depth=settings.mhc_blocks,
        heads=settings.num_heads,
        frame_stride=settings.frame_stride,
        width=settings.width,
        contrast=parts.contrast,
        connection=partial(
            parts.connection if settings.model_type == "restran_mhc" else Residual,
            collapse=settings.mhc_collapse,
            alpha=settings.mhc_alpha,
            alpha_res=settings.mhc_alpha_res,
            norm=parts.norm,
            sinkhorn=parts.sinkhorn,
            mixing=parts.mixing,
        ),
        sublayer=parts.sublayer,
    )


def alphas(model: nn.Module) -> dict[str, float]:
    """Every α by name."""
    return {name: float(value.detach()) for name, value in model.named_parameters() if "alpha_" in name}


def describe_alphas(model: nn.Module) -> str:
    """The largest of each kind of α; a warning above 1."""
    found = alphas(model)
    if not found:
        return "no alphas"
    kinds = {
        kind: max((value for name, value in found.items() if name.endswith(kind)), key=abs)
        for kind in ("alpha_pre", "alpha_post", "alpha_res")
    }
    text = ", ".join(f"{kind} {value:.3f}" for kind, value in kinds.items())
    return text + (" (warning: above 1)" if max(map(abs, kinds.values())) > 1 else "")


def build(settings: Settings, parts: Mapping[str, Any], seed: int) -> Run:
    """A run: the model, its optimizer and schedule, its batches and its loss; gone on with if there is an earlier."""
    chosen = Parts(**parts)
    torch.manual_seed(seed)
    plates = Plates(
        height=settings.height,
        width=settings.width,
        frames=settings.num_frames,
        level=settings.augmentation,
        missing=settings.missing_frames,
        black=settings.black_frames,
        oversample=settings.oversample_rare,
    )
    model = make_model(settings, chosen)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    dtype = precision(settings.mixed_precision, setting="mixed_precision")
    scaled = dtype is torch.float16 and settings.loss_scaling

    def window(step: int) -> tuple[Batch, ...]:
        return (plates.batch(step, size=settings.batch_size, seed=seed),)

    run = Run(
        model=model,
        optimizer=optimizer,
        loss=lambda batch: plate_loss(model, batch, dtype=dtype, ctc=chosen.ctc),
        window=window,
        evaluate=lambda: evaluate(model, plates.held_out, dtype=dtype),
        update=chosen.update,
        scheduler=Cycle(optimizer, settings.learning_rate, steps=settings.length.steps, pct_start=settings.warmup),
        scaler=torch.amp.GradScaler("cpu", init_scale=settings.loss_scale) if scaled else None,
        watch=WATCH,
        watched=partial(alphas, model),
        describe=partial(describe_alphas, model),
        max_grad_norm=settings.grad_clip,
        begin_epoch=chosen.begin_epoch,
        epoch_steps=settings.length.epoch,
        facts=(precision_in_words(dtype),),
    )
    if settings.earlier_steps:
        before = replace(settings, learning_rate=settings.earlier_rate, earlier_steps=0)
        run.notes = tuple(
            go_on(
                run,
                build(before, parts, seed + 1),
                steps=settings.earlier_steps,
                accident=settings.earlier_accident,
                rate=settings.learning_rate,
                save=chosen.save,
                load=chosen.load,
            )
        )
    return run


SYSTEM = System(
    name="restran_mhc",
    title="licence plates from three frames, hyper-connections on a manifold, and CTC",
    quality="character accuracy",
    settings=Settings,
    config=Path(__file__).with_name("config.py"),
    build=build,
    faults=FAULTS,
    lr_setting="learning_rate",
    length_setting="total_steps",
    flags=(
        Flag("--model", "model_type", "restran_mhc, or restran without hyper-connections"),
        Flag("--mhc-n", "mhc_n", "how many streams"),
    ),
)

if __name__ == "__main__":
    raise SystemExit(main(SYSTEM))
