"""One line to add to Lightning, Fabric, transformers and Accelerate: real loops of the real frameworks."""

from __future__ import annotations

import importlib
import json
import logging
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import nantrap
from nantrap.launch.attach import current

BAD = 9


class Points(Dataset[tuple[Tensor, Tensor]]):
    """32 samples, one of which may hold a NaN."""

    def __init__(self, bad: int | None) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(32, 6, generator=generator)
        self.y = self.x[:, :3].clone()
        if bad is not None:
            self.x[bad, 2] = math.nan

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


def loader(bad: int | None) -> DataLoader[Any]:
    return DataLoader(Points(bad), batch_size=4)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def state(module: nn.Module) -> list[Tensor]:
    return [t.detach().clone() for t in (*module.parameters(), *module.buffers())]


def is_finite(module: nn.Module) -> bool:
    return all(bool(t.isfinite().all()) for t in state(module))


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture(autouse=True)
def _nothing_stays_attached() -> Iterator[None]:
    yield
    assert current() is None


# ---- Lightning

lightning = pytest.importorskip("lightning")
for _name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(_name).setLevel(logging.ERROR)
guards = importlib.import_module("nantrap.lightning")


class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """A regression that logs its loss."""

    def __init__(self, *, manual: bool = False) -> None:
        super().__init__()
        self.net = net()
        self.automatic_optimization = not manual

    def training_step(self, batch: Any, index: int) -> Tensor:
        loss = F.mse_loss(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", F.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def fit(module: Any, bad: int | None, *callbacks: Any, **options: Any) -> Any:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    fixed = {"accelerator": "cpu", "devices": 1, "max_epochs": 2, "enable_model_summary": False}
    trainer = lightning.Trainer(**(quiet | fixed | options), callbacks=list(callbacks))
    trainer.fit(module, loader(bad), loader(None))
    return trainer


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("manual", [False, True], ids=["automatic", "manual"])
def test_lightning_is_unchanged_while_healthy(manual: bool, tmp_path: Path) -> None:
    plain, guarded = Module(manual=manual), Module(manual=manual)
    fit(plain, None)
    guard = guards.Guard(run_dir=tmp_path)
    fit(guarded, None, guard)
    assert same(state(plain), state(guarded))
    assert (guard.summary.steps, guard.summary.applied, guard.summary.incidents) == (16, 16, 0)
    lines = map(json.loads, (tmp_path / "journal-r0.jsonl").read_text().splitlines())
    evaluations = [line for line in lines if line.get("kind") == "eval"]
    assert [line["step"] for line in evaluations] == [8, 16]
    assert "val_loss" in evaluations[0]["metrics"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "options",
    [{}, {"gradient_clip_val": 1.0}, {"precision": "bf16-mixed"}, {"accumulate_grad_batches": 2}],
    ids=["plain", "clip", "bf16", "accumulation"],
)
def test_lightning_contains_a_bad_batch(options: dict[str, Any], tmp_path: Path) -> None:
    guard, module = guards.Guard(run_dir=tmp_path, quiet=True), Module()
    fit(module, BAD, guard, **options)
    assert is_finite(module)
    assert guard.summary.incidents == 2
    assert guard.summary.causes == {"bad_input_data": 2} or "bad_input_data" in guard.summary.causes
    lines = (tmp_path / "journal-r0.jsonl").read_text().splitlines()
    epochs = [line["epoch"] for line in map(json.loads, lines) if "action" in line and "incident" in line]
    assert epochs == [0, 1]


class Weighted(Module):
    """The loss takes the logarithm of what the batch brings: the fault lies outside every submodule."""

    def training_step(self, batch: Any, index: int) -> Tensor:
        if index < 0:
            return torch.zeros(())
        each = (self.net(batch[0]) - batch[1]).square().mean(dim=1)
        loss = (each * torch.log(batch[1].abs().sum(dim=1))).mean()
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss


def incidents_in(run: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(run.glob("incidents/*/incident.json"))]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("manual", "options"),
    [(False, {}), (True, {}), (False, {"accumulate_grad_batches": 2}), (False, {"precision": "bf16-mixed"})],
    ids=["automatic", "manual", "accumulated", "bf16"],
)
def test_lightning_proves_a_cause_in_the_training_step(manual: bool, options: dict[str, Any], tmp_path: Path) -> None:
    """`training_step` has returned when the step is found bad; it is run again without its side effects."""
    guard = guards.Guard(run_dir=tmp_path / "run", quiet=True)
    data = loader(None)
    data.dataset.y[BAD] = 0.0  # type: ignore[attr-defined]
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    fixed = {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "enable_model_summary": False}
    module = Weighted(manual=manual)
    logged: list[str] = []
    trainer = lightning.Trainer(**(quiet | fixed | options), callbacks=[guard])
    original = module.log

    def log(name: str, *rest: Any, **named: Any) -> None:
        logged.append(name)
        original(name, *rest, **named)

    module.log = log
    trainer.fit(module, data)
    (incident,) = incidents_in(tmp_path / "run")
    assert (incident["causes"][0]["slug"], incident["causes"][0]["proven"]) == ("log_of_zero", True)
    assert (incident["samples"], incident["dataset_indices"]) == ([BAD % 4], [BAD])
    assert (incident["epoch"], incident["batch"]) == (0, BAD // 4)
    assert incident["source"]["text"].strip() == "loss = (each * torch.log(batch[1].abs().sum(dim=1))).mean()"
    assert len(logged) == 7, "one batch is bad, and its replays log nothing"
    assert is_finite(module)


class Adversarial(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """Two optimizers in one step; the loss of the first one also reaches what the second one owns."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.coder = nn.Sequential(nn.Linear(6, 4, bias=False), nn.Tanh(), nn.Linear(4, 6, bias=False))
        self.critic = nn.Linear(6, 1)
        self.automatic_optimization = False

    def training_step(self, batch: Any, index: int) -> None:
        first, second = self.optimizers()
        made = self.coder(batch[0])
        distance = (batch[0] - made).square().sum(dim=1).sqrt().mean()
        first.zero_grad()
        self.manual_backward(distance - 0.1 * self.critic(made).mean())
        first.step()
        second.zero_grad()
        self.manual_backward(self.critic(made.detach()).square().mean())
        second.step()

    def configure_optimizers(self) -> Any:
        return tuple(torch.optim.AdamW(part.parameters(), lr=1e-2) for part in (self.coder, self.critic))


@pytest.mark.filterwarnings("ignore")
def test_lightning_with_two_optimizers_that_share_a_backward_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`zero_grad` is called on Lightning's wrapper; each optimizer has one backward pass for each of its steps."""
    data = loader(None)
    data.dataset.x[BAD] = 0.0  # type: ignore[attr-defined]
    guard, module = guards.Guard(run_dir=tmp_path / "run"), Adversarial()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(**quiet, accelerator="cpu", devices=1, max_epochs=1, callbacks=[guard])
    trainer.fit(module, data)
    said = capsys.readouterr().err
    assert "not cleared" not in said
    (incident,) = incidents_in(tmp_path / "run")
    assert incident["causes"][0]["slug"] == "singular_gradient_at_zero"
    assert not any("micro-batch" in note for note in incident["notes"]), incident["notes"]
    assert (guard.summary.steps, guard.summary.applied) == (16, 15), "the critic's step on the same batch is made"
    assert is_finite(module)


@pytest.mark.filterwarnings("ignore")
def test_lightning_metrics_stay_finite_and_early_stopping_is_not_fooled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopping = lightning.pytorch.callbacks.EarlyStopping("train_loss", check_finite=True, patience=5)
    trainer = fit(Module(), 31, guards.Guard(run_dir=tmp_path), stopping)  # the last batch of the epoch
    assert trainer.current_epoch == 2
    assert stopping.stopped_epoch == 0
    assert all(bool(torch.isfinite(value)) for value in trainer.callback_metrics.values())
    assert "metric 'train_loss' is not finite in a training step: it is not logged" in capsys.readouterr().err


_STOPS_EARLY = """
import lightning, torch
from torch.utils.data import DataLoader, TensorDataset

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(3, 1)
    def training_step(self, batch, index):
        loss = (self.net(batch[0]) * batch[0].sum(1, keepdim=True).abs().log()).mean()
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        self.log("rare", float("nan"))  # of nothing, on purpose
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

x = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
x[13] = 0.0
stop = lightning.pytorch.callbacks.EarlyStopping("train_loss", check_finite=True, patience=9)
off = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = lightning.Trainer(max_epochs=3, accelerator="cpu", callbacks=[stop], **off)
trainer.fit(Module(), DataLoader(TensorDataset(x), batch_size=4))
print("epochs", trainer.current_epoch, "rare", float(trainer.callback_metrics["rare"]))
"""


def test_early_stopping_does_not_end_an_unmodified_lightning_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_STOPS_EARLY, encoding="utf-8")
    command = [sys.executable, "-W", "ignore", "-m", "nantrap", "run", "--run-dir", "run", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "epochs 3 rare nan", "a metric that is NaN on purpose is logged"
    assert done.stderr.count("metric 'train_loss' is not finite in a training step: it is not logged") == 1
    assert "12 steps, 9 applied (75.0 %), 3 incidents" in done.stderr


@pytest.mark.filterwarnings("ignore")
def test_lightning_never_writes_a_poisoned_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Poison(lightning.pytorch.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 1:
                with torch.no_grad():
                    pl_module.net[0].weight[0, 0] = math.nan

    keep = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path / "kept", save_top_k=-1, every_n_epochs=1)
    fit(Module(), None, Poison(), guards.Guard(run_dir=tmp_path / "run"), keep, enable_checkpointing=True)
    saved = sorted(path.name for path in (tmp_path / "kept").glob("*.ckpt"))
    assert saved == ["epoch=0-step=8.ckpt"]
    assert "is not saved: net.0.weight is not finite; the last good checkpoint stays" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
def test_lightning_keeps_the_best_of_healthy_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The callback's state holds `inf` until it has as many as it keeps; no policy takes that for a bad weight."""
    keep = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path / "kept", monitor="train_loss", save_top_k=3)
    strict = guards.Guard(run_dir=tmp_path / "run", policy=nantrap.Policy(on_incident="raise"))
    fit(Module(), None, strict, keep, enable_checkpointing=True)
    assert len(list((tmp_path / "kept").glob("*.ckpt"))) == 2
    assert "non-finite" not in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
def test_lightning_keeps_its_counts_in_the_checkpoint(tmp_path: Path) -> None:
    guard = guards.Guard(run_dir=tmp_path / "run", quiet=True)
    trainer = fit(Module(), BAD, guard)
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    again = guards.Guard(run_dir=tmp_path / "again", quiet=True)
    again.load_state_dict(guard.state_dict())
    assert again.state_dict() == {"steps": 16, "applied": 14, "incidents": 2}


@pytest.mark.filterwarnings("ignore")
def test_lightning_strict_raises(tmp_path: Path) -> None:
    with pytest.raises(nantrap.NonFiniteError):
        fit(Module(), BAD, guards.Guard(policy=nantrap.Policy.strict(), run_dir=tmp_path, quiet=True))


@pytest.mark.filterwarnings("ignore")
def test_fabric(tmp_path: Path) -> None:
    fabric = guards.guard(lightning.Fabric(accelerator="cpu", devices=1), run_dir=tmp_path, quiet=True)
    attachment = current()
    assert attachment is not None
    plain = net()
    model, optimizer = fabric.setup(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2))
    for x, y in fabric.setup_dataloaders(loader(BAD)):
        optimizer.zero_grad()
        fabric.backward(F.mse_loss(model(x), y))
        optimizer.step()
    (loop,) = attachment.registry
    assert (loop.tally.attempted, loop.tally.applied) == (8, 7)
    assert is_finite(plain)
    attachment.detach()


class OwnLoss(nn.Module):
    """A method of the module computes the loss: Fabric calls it through `forward` of its wrapper."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        each = (self(x) - y).square().mean(dim=1)
        return (each * torch.log(y.abs().sum(dim=1))).mean()


class Encoder(nn.Module):
    """Takes the logarithm of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = net()

    def forward(self, positive: Tensor) -> Tensor:
        return self.inside(positive.log())


@pytest.mark.filterwarnings("ignore")
def test_fabric_names_the_users_modules(tmp_path: Path) -> None:
    """Not those of the wrapper that Fabric puts around the model."""
    fabric = guards.guard(
        lightning.Fabric(accelerator="cpu", devices=1, precision="bf16-mixed"), run_dir=tmp_path, quiet=True
    )
    attachment = current()
    assert attachment is not None
    plain = nn.Sequential()
    plain.add_module("encoder", Encoder())
    model, optimizer = fabric.setup(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2))
    for index, (x, y) in enumerate(fabric.setup_dataloaders(loader(None))):
        optimizer.zero_grad()
        positive = x.abs() + 1.0
        if index == 3:
            positive[2, 1] = 0.0
        fabric.backward(F.mse_loss(model(positive), y))
        optimizer.step()
    attachment.detach()
    (incident,) = incidents_in(tmp_path)
    assert (incident["module"], incident["op"], incident["causes"][0]["slug"]) == ("encoder", "aten.log", "log_of_zero")
    assert {found["name"] for found in incident["findings"] if found["kind"] == "gradient"} <= {
        f"encoder.inside.{name}"
        for name, _ in plain.encoder.inside.named_parameters()  # type: ignore[union-attr]
    }
    assert [each["name"] for each in incident["inputs"]] == ["input"]


@pytest.mark.filterwarnings("ignore")
def test_fabric_with_a_marked_forward_method(tmp_path: Path) -> None:
    fabric = guards.guard(lightning.Fabric(accelerator="cpu", devices=1), run_dir=tmp_path, quiet=True)
    attachment = current()
    assert attachment is not None
    plain = OwnLoss()
    model, optimizer = fabric.setup(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2))
    model.mark_forward_method("loss")
    data = loader(None)
    data.dataset.y[BAD] = 0.0  # type: ignore[attr-defined]
    for x, y in fabric.setup_dataloaders(data):
        optimizer.zero_grad()
        fabric.backward(model.loss(x, y))
        optimizer.step()
    attachment.detach()
    (incident,) = incidents_in(tmp_path)
    assert (incident["causes"][0]["slug"], incident["causes"][0]["proven"]) == ("log_of_zero", True)
    assert incident["dataset_indices"] == [BAD]
    assert incident["source"]["text"].strip() == "return (each * torch.log(y.abs().sum(dim=1))).mean()"
    assert is_finite(plain)


# ---- transformers


def transformers_trainer(
    bad: int | None, out: Path, *callbacks: Any, trainer: Any = None, bad_label: float = math.nan, **options: Any
) -> Any:
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.set_verbosity_error()
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=8, num_labels=1, problem_type="regression",
    )  # fmt: skip
    torch.manual_seed(0)
    data = [
        {"input_ids": [1 + i % 17, 3], "labels": bad_label if i == bad else float(i % 3), "attention_mask": [1, 1]}
        for i in range(32)
    ]
    arguments = {
        "output_dir": str(out), "per_device_train_batch_size": 4, "num_train_epochs": 1, "logging_steps": 1,
        "save_strategy": "no", "report_to": [], "use_cpu": True, "disable_tqdm": True, "learning_rate": 1e-2, "seed": 5,
    } | options  # fmt: skip
    trainer = (trainer or transformers.Trainer)(
        model=transformers.BertForSequenceClassification(config),
        args=transformers.TrainingArguments(**arguments),
        train_dataset=data,
        callbacks=list(callbacks),
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return trainer


@pytest.mark.filterwarnings("ignore")
def test_transformers_is_unchanged_while_healthy(tmp_path: Path) -> None:
    guard = importlib.import_module("nantrap.transformers").Guard(run_dir=tmp_path / "run")
    plain = transformers_trainer(None, tmp_path)
    guarded = transformers_trainer(None, tmp_path, guard)
    assert same(state(plain.model), state(guarded.model))
    assert (guard.summary.steps, guard.summary.applied) == (8, 8)


@pytest.mark.filterwarnings("ignore")
def test_transformers_contains_a_bad_batch_and_holds_its_schedule(tmp_path: Path) -> None:
    guard = importlib.import_module("nantrap.transformers").Guard(run_dir=tmp_path / "run", quiet=True)
    trainer = transformers_trainer(BAD, tmp_path, guard)
    assert is_finite(trainer.model)
    assert (guard.summary.steps, guard.summary.applied, guard.summary.incidents) == (8, 7, 1)
    assert trainer.lr_scheduler.last_epoch == 7
    assert trainer.state.log_history[-1]["nantrap_incidents"] == 1


@pytest.mark.filterwarnings("ignore")
def test_transformers_guards_again_after_training_that_was_interrupted(tmp_path: Path) -> None:
    """As in a notebook: Ctrl-C, then the same cell again, with new objects."""
    transformers = pytest.importorskip("transformers")

    class Interrupted(transformers.Trainer):  # type: ignore[misc, name-defined]
        def compute_loss(self, *args: Any, **options: Any) -> Any:
            if self.state.global_step == 2:
                raise KeyboardInterrupt
            return super().compute_loss(*args, **options)

    guards = importlib.import_module("nantrap.transformers")
    first, second = (guards.Guard(run_dir=tmp_path / name, quiet=True) for name in ("first", "second"))
    with pytest.raises(KeyboardInterrupt):
        transformers_trainer(None, tmp_path, first, trainer=Interrupted)
    trainer = transformers_trainer(BAD, tmp_path, second)
    assert is_finite(trainer.model)
    assert (first.summary.steps, first.summary.applied) == (2, 2)
    assert (second.summary.steps, second.summary.applied, second.summary.incidents) == (8, 7, 1)
    assert current() is None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("micros", [1, 2])
def test_transformers_proves_a_cause_in_its_own_compute_loss(micros: int, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    kept: list[float] = []

    class Own(transformers.Trainer):  # type: ignore[misc, name-defined]
        """A metric is collected where the loss is computed, as TRL does it."""

        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
            labels = inputs.pop("labels")
            each = (model(**inputs).logits.squeeze(-1) - labels).square()
            kept.append(1.0)
            return (each * torch.log(labels + 1.0)).mean()

    guard = importlib.import_module("nantrap.transformers").Guard(run_dir=tmp_path / "run", quiet=True)
    options = {"gradient_accumulation_steps": micros, "remove_unused_columns": False}
    transformers_trainer(BAD, tmp_path, guard, trainer=Own, bad_label=-1.0, **options)
    (incident,) = incidents_in(tmp_path / "run")
    assert (incident["causes"][0]["slug"], incident["causes"][0]["proven"]) == ("log_of_zero", True)
    assert incident["source"]["text"].strip() == "return (each * torch.log(labels + 1.0)).mean()"
    assert len(incident["samples"]) == 1
    assert incident["dataset_indices"] == [BAD]
    assert len(kept) == 8, "the metric does not grow when the loss is computed again"


@pytest.mark.filterwarnings("ignore")
def test_transformers_counts_on_after_a_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    # the oldest versions load their own random state in a way that torch refuses since 2.6
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")

    class Resumed(transformers.Trainer):  # type: ignore[misc, name-defined]
        def train(self) -> Any:
            return super().train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))

    transformers_trainer(None, tmp_path, save_strategy="steps", save_steps=4, max_steps=8)
    guard = importlib.import_module("nantrap.transformers").Guard(run_dir=tmp_path / "run")
    transformers_trainer(None, tmp_path, guard, trainer=Resumed, max_steps=8)
    lines = map(json.loads, (tmp_path / "run" / "journal-r0.jsonl").read_text().splitlines())
    assert [line["step"] for line in lines if "action" in line] == [4, 5, 6, 7]
    assert "nantrap: the script resumes at step 4" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
def test_transformers_names_the_sample_of_a_bad_label(tmp_path: Path) -> None:
    guard = importlib.import_module("nantrap.transformers").Guard(run_dir=tmp_path / "run", quiet=True)
    transformers_trainer(BAD, tmp_path, guard)
    (incident,) = incidents_in(tmp_path / "run")
    assert (incident["phase"], incident["causes"][0]["slug"]) == ("data", "bad_input_data")
    assert incident["dataset_indices"] == [BAD]


# ---- Accelerate


@pytest.fixture
def accelerator() -> Any:
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    return accelerate.Accelerator(cpu=True, gradient_accumulation_steps=1)


@pytest.mark.filterwarnings("ignore")
def test_accelerate_knows_that_a_step_was_refused(accelerator: Any, tmp_path: Path) -> None:
    adapter = importlib.import_module("nantrap.accelerate")
    accelerator = adapter.guard(accelerator, run_dir=tmp_path / "run", quiet=True)
    plain = net()
    made = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(made, total_iters=100)
    model, optimizer, batches, scheduler = accelerator.prepare(plain, made, loader(BAD), schedule)
    skipped = []
    for x, y in batches:
        with accelerator.accumulate(model):
            accelerator.backward(F.mse_loss(model(x), y))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        skipped.append(accelerator.optimizer_step_was_skipped)
    assert skipped == [False, False, True, False, False, False, False, False]
    assert is_finite(plain)
    assert schedule.last_epoch == 7
    accelerator.save_state(str(tmp_path / "good"))
    with torch.no_grad():
        plain[0].weight[0, 0] = math.nan  # type: ignore[index]
    accelerator.save_state(str(tmp_path / "bad"))
    assert (tmp_path / "good").exists()
    assert not (tmp_path / "bad").exists()
    accelerator.end_training()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("micros", [1, 3])
@pytest.mark.parametrize("fault", ["loss", "gradient"])
def test_accelerate_divides_the_loss_and_its_cause_is_proven(
    accelerator: Any, fault: str, micros: int, tmp_path: Path
) -> None:
    """`accelerator.backward` divides by the number of micro-batches, after the script has computed the loss."""
    accelerator.gradient_accumulation_steps = micros
    accelerator = importlib.import_module("nantrap.accelerate").guard(accelerator, run_dir=tmp_path / "run", quiet=True)
    plain = net()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    model, optimizer, batches = accelerator.prepare(plain, optimizer, loader(None))
    for number, (x, y) in enumerate(batches):
        factor = 0.0 if number == 2 else 1.0
        with accelerator.accumulate(model):
            predicted = model(x)
            loss = F.mse_loss(predicted, y)
            if fault == "loss":
                loss = loss + torch.log(predicted.abs() * factor).mean()
            else:
                loss = loss + torch.sqrt(predicted.abs() * factor).mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.end_training()
    (incident,) = [json.loads(path.read_text()) for path in (tmp_path / "run").glob("incidents/*/incident.json")]
    cause = incident["causes"][0]
    assert (cause["slug"], cause["proven"]) == (
        ("log_of_zero", True) if fault == "loss" else ("singular_gradient_at_zero", True)
    )
    assert incident["source"]["file"] == __file__
    assert any("computed again from its source" in note for note in incident["notes"])


@pytest.mark.filterwarnings("ignore")
def test_accelerate_clears_nothing_between_micro_batches(accelerator: Any, tmp_path: Path) -> None:
    """`zero_grad` of its wrapper does nothing in the middle of a step, so a bad micro-batch can be left out."""
    accelerator.gradient_accumulation_steps = 2
    accelerator = importlib.import_module("nantrap.accelerate").guard(accelerator, run_dir=tmp_path / "run", quiet=True)
    plain = net()
    model, optimizer, batches = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters()), loader(BAD))
    for x, y in batches:
        with accelerator.accumulate(model):
            accelerator.backward(F.mse_loss(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
    accelerator.end_training()
    (incident,) = incidents_in(tmp_path / "run")
    assert (incident["step"], incident["batch"], incident["action"]) == (1, 2, "apply")
    assert "micro-batch 1 left out, the others stay" in incident["notes"]
    assert is_finite(plain)


# ---- all of them


def test_under_nantrap_run_an_adapter_does_nothing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, nantrap.accelerate\n"
        "from accelerate import Accelerator\n"
        "nantrap.accelerate.guard(Accelerator(cpu=True))\n"
        "model = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "model(torch.ones(1, 2)).sum().backward()\n"
        "optimizer.step()\n"
    )
    command = [sys.executable, "-W", "ignore", "-m", "nantrap", "run", "--run-dir", str(tmp_path / "run"), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "this process is guarded already, so the framework's adapter does nothing" in done.stderr
    assert "1 step, 1 applied" in done.stderr


def test_a_wrong_policy_is_refused() -> None:
    with pytest.raises(nantrap.UsageError, match=r"expected a nantrap\.Policy"):
        guards.Guard(policy="strict")
