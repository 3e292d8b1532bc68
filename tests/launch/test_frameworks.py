"""The loops of real frameworks, which know nothing of us: unchanged while healthy, contained when a sample is bad."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from nantrap.incident import Incident
from nantrap.launch.attach import attached
from nantrap.launch.script_loop import ScriptLoop
from nantrap.launch.settings import RunSettings

NAN = float("nan")
BAD = 13  # the sample that is bad, where one is
pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own


@dataclass
class Result:
    """What a run leaves: everything that must be the same, and the schedule."""

    losses: list[float]
    model: nn.Module
    scheduled: list[int] = field(default_factory=list)

    @property
    def state(self) -> list[Tensor]:
        return [value.detach().clone() for value in self.model.state_dict().values()]

    @property
    def finite(self) -> bool:
        return all(bool(value.isfinite().all()) for value in self.state)


class Points(Dataset[Any]):
    """32 points; `bad` has a NaN in it."""

    def __init__(self, bad: int | None) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(32, 6, generator=generator)
        self.y = torch.randn(32, 3, generator=generator)
        if bad is not None:
            self.x[bad, 2] = NAN

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


def loader(bad: int | None) -> DataLoader[Any]:
    return DataLoader(Points(bad), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3))


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))


# ---- Lightning


def lightning_trainer(**options: Any) -> Any:
    lightning: Any = pytest.importorskip("lightning")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return lightning.Trainer(
        **(quiet | {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "enable_model_summary": False} | options)
    )


def lightning_automatic(bad: int | None, *, interval: str = "step", **options: Any) -> Result:
    lightning: Any = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()
            self.losses: list[float] = []

        def training_step(self, batch: Any, index: int) -> Tensor:
            loss = F.mse_loss(self.net(batch[0]), batch[1])
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            self.schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=100)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.schedule, "interval": interval}}

    module = Module()
    lightning_trainer(**options).fit(module, loader(bad))
    return Result(module.losses, module, [module.schedule.last_epoch])


def lightning_manual(bad: int | None) -> Result:
    """Two optimizers, two networks, as in a GAN."""
    lightning: Any = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        automatic_optimization = False

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = net(), nn.Linear(3, 3)
            self.losses: list[float] = []

        def training_step(self, batch: Any, index: int) -> None:
            one, two = self.optimizers()
            loss = F.mse_loss(self.first(batch[0]), batch[1])
            one.zero_grad()
            self.manual_backward(loss)
            one.step()
            other = F.l1_loss(self.second(batch[1]), batch[1])
            two.zero_grad()
            self.manual_backward(other)
            two.step()
            self.losses += [loss.item(), other.item()]

        def configure_optimizers(self) -> Any:
            return [
                torch.optim.Adam(self.first.parameters(), lr=1e-2),
                torch.optim.SGD(self.second.parameters(), lr=1e-2),
            ]

    module = Module()
    lightning_trainer().fit(module, loader(bad))
    return Result(module.losses, module)


def lightning_scaled(bad: int | None) -> Result:
    """float16 with a scaler; on a CPU Lightning offers only bfloat16 by name, so the plugin is given."""
    precision = pytest.importorskip("lightning.pytorch.plugins.precision")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=4)
    result = lightning_automatic(bad, plugins=[precision.MixedPrecision("16-mixed", "cpu", scaler)])
    result.losses.append(scaler.get_scale())
    return result


# ---- transformers


def transformers_trainer(bad: int | None, *, out: Path) -> Result:
    """A tiny BERT from scratch that learns a number; two micro-batches a step."""
    transformers: Any = pytest.importorskip("transformers")
    transformers.utils.logging.set_verbosity_error()
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        num_labels=1,
        problem_type="regression",
    )
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config)
    data = [
        {"input_ids": [1 + i % 17, 3, 5], "labels": NAN if i == bad else float(i % 3), "attention_mask": [1, 1, 1]}
        for i in range(32)
    ]
    losses: list[float] = []

    class Losses(transformers.TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            losses.extend(value for name, value in (logs or {}).items() if name in ("loss", "learning_rate"))

    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(out),
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            num_train_epochs=1,
            logging_steps=1,
            logging_nan_inf_filter=False,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            learning_rate=1e-2,
            seed=5,
        ),
        train_dataset=data,
        callbacks=[Losses()],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return Result(losses, model, [trainer.lr_scheduler.last_epoch])


# ---- Accelerate


def accelerate_loop(bad: int | None) -> Result:
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    plain = net()
    made = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(made, total_iters=100)
    model, optimizer, batches, scheduler = accelerator.prepare(plain, made, loader(bad), schedule)
    losses = []
    for x, y in batches:
        with accelerator.accumulate(model):
            loss = F.mse_loss(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return Result(losses, plain, [schedule.last_epoch])


# ---- the tests

Run = Callable[[int | None], Result]


@pytest.fixture(params=["automatic", "accumulated", "bf16", "scaled", "manual", "transformers", "accelerate"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Run]]:
    """A framework's loop, from the same seed each time."""
    runs: dict[str, Run] = {
        "automatic": lightning_automatic,
        "accumulated": lambda bad: lightning_automatic(bad, accumulate_grad_batches=2, gradient_clip_val=1.0),
        "bf16": lambda bad: lightning_automatic(bad, precision="bf16-mixed"),
        "scaled": lightning_scaled,
        "manual": lightning_manual,
        "transformers": lambda bad: transformers_trainer(bad, out=tmp_path / "out"),
        "accelerate": accelerate_loop,
    }

    def seeded(bad: int | None) -> Result:
        torch.manual_seed(7)
        return runs[request.param](bad)

    with contextlib.chdir(tmp_path) if hasattr(contextlib, "chdir") else contextlib.nullcontext():
        yield request.param, seeded


def guarded(run: Run, bad: int | None, tmp_path: Path) -> tuple[Result, list[ScriptLoop]]:
    with attached(RunSettings(run_dir=str(tmp_path / "run"), quiet=True)) as attachment:
        return run(bad), list(attachment.registry)


def test_a_healthy_run_is_unchanged(run: tuple[str, Run], tmp_path: Path) -> None:
    name, go = run
    plain = go(None)
    result, loops = guarded(go, None, tmp_path)
    assert result.losses == plain.losses
    assert result.scheduled == plain.scheduled
    assert all(torch.equal(a, b) for a, b in zip(plain.state, result.state, strict=True))
    assert len(loops) == (2 if name == "manual" else 1)
    for loop in loops:
        steps = {"accumulated": 4, "transformers": 4, "accelerate": 4}.get(name, 8)
        assert (loop.tally.attempted, loop.tally.applied + loop.tally.scaler_probes) == (steps, steps)
        assert loop.tally.incidents == 0
        assert (loop.tally.scaler_probes > 0) is (name == "scaled")


def test_one_bad_sample_is_contained(run: tuple[str, Run], tmp_path: Path) -> None:
    name, go = run
    plain = go(BAD)
    assert not plain.finite or name == "scaled", "without the guard the run is lost"
    result, (loop, *others) = guarded(go, BAD, tmp_path)
    assert result.finite
    incident = loop.last_incident
    assert incident is not None
    _is_placed(incident, name)
    accumulated = name in ("accumulated", "transformers", "accelerate")
    assert loop.tally.incidents == 1
    assert loop.tally.dropped_micro_batches == (1 if accumulated else 0)
    refused = loop.tally.attempted - loop.tally.applied - loop.tally.scaler_probes
    assert refused == (0 if accumulated else 1)
    # held for a refused step; a micro-batch that is left out refuses nothing
    assert result.scheduled == ([] if name == "manual" else [plain.scheduled[0] - refused])
    assert all(other.tally.incidents == 0 for other in others)


def _is_placed(incident: Incident, name: str) -> None:
    assert incident.phase == "data"
    assert incident.causes[0].slug == "bad_input_data"
    assert incident.dataset_indices in ((), (BAD,)), "right, or absent"
    assert len(incident.samples) == 1
    if name != "scaled":
        assert incident.dataset_indices == (BAD,)


def test_a_schedule_of_epochs_continues(tmp_path: Path) -> None:
    """Lightning moves it once per epoch, after the last batch, whether that one was applied or not."""
    torch.manual_seed(7)
    last = list(loader(None).batch_sampler)  # type: ignore[arg-type]
    bad = last[-1][0]
    go = lambda number: lightning_automatic(number, interval="epoch", max_epochs=2)  # noqa: E731
    result, (loop,) = guarded(go, bad, tmp_path)
    assert loop.tally.incidents >= 1
    assert result.finite
    assert result.scheduled == [2]
