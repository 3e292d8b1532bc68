"""What the frameworks save, written by themselves. Run by Pythons that have them: things_frameworks_save.py DIR

Each part is tried; a framework that is not installed, or fails there, is left out and named at the end. Writes
NAME-PROTOCOL.pt for single objects, and what a framework writes by itself as it is.
"""

import argparse
import dataclasses
import os
import pathlib
import socket
import sys
import tempfile
import traceback
import warnings

os.environ.update(
    HF_HUB_OFFLINE="1",
    WANDB_MODE="offline",
    WANDB_SILENT="true",
    WANDB_DIR=tempfile.mkdtemp(),
    CUDA_VISIBLE_DEVICES="",
    DS_ACCELERATOR="cpu",
)
warnings.simplefilter("ignore")

import torch  # noqa: E402
from torch import nn  # noqa: E402

OUT = pathlib.Path(sys.argv[1])

for operation in () if torch.version.cuda else ("nms", "qnms"):  # where torchvision was built for another torch
    torch.library.define(f"torchvision::{operation}", "(Tensor a, Tensor b, float c) -> Tensor")


def save(name, value, legacy=True):
    """In the zip format of torch, by every protocol; and in its old format, which would keep the source of modules."""
    for protocol in (2, 3, 4, 5):
        torch.save(value, OUT / f"{name}-{protocol}.pt", pickle_protocol=protocol)
    if legacy:
        torch.save(value, OUT / f"{name}-legacy.pt", _use_new_zipfile_serialization=False)


def net():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def lightning_objects():
    import lightning
    from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint

    class Model(lightning.LightningModule):
        def __init__(self, lr=0.1, args=None, path=None):
            super().__init__()
            self.save_hyperparameters()
            self.net = net()

        def training_step(self, batch, index):
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])
            return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2), "interval": "step"}]

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 3)), batch_size=4)
    with tempfile.TemporaryDirectory() as folder:
        keep = ModelCheckpoint(dirpath=folder, save_last=True)
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[keep, EarlyStopping("loss", strict=False, check_on_train_epoch_end=False)],
        )
        model = Model(0.1, argparse.Namespace(a=1, p=pathlib.Path("x")), pathlib.Path("y"))
        trainer.fit(model, data)
        pathlib.Path(folder, "last.ckpt").replace(OUT / "lightning-last.ckpt")
    save("lightning-hparams", {"hparams": model.hparams, "initial": model.hparams_initial})
    save("lightning-callbacks", [EarlyStopping("loss"), ModelCheckpoint(monitor="loss"), LearningRateMonitor()])


def transformers_objects():
    import transformers
    from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel, TrainingArguments

    config = GPT2Config(n_embd=4, n_layer=1, n_head=2, n_positions=8, vocab_size=16)
    arguments = TrainingArguments(output_dir="out", report_to=[], use_cpu=True)
    save("transformers-arguments", arguments)
    save("transformers-seq2seq", transformers.Seq2SeqTrainingArguments(output_dir="out", report_to=[], use_cpu=True))
    save(
        "transformers-config",
        {"config": config, "generation": GenerationConfig(max_length=3), "bert": transformers.BertConfig()},
    )
    model = GPT2LMHeadModel(config)
    save("transformers-model", model, legacy=False)
    optimizer = torch.optim.AdamW(model.parameters())
    for kind in ("linear", "cosine", "cosine_with_restarts", "polynomial", "constant_with_warmup", "inverse_sqrt"):
        schedule = transformers.get_scheduler(kind, optimizer, num_warmup_steps=1, num_training_steps=4)
        save(f"transformers-{kind}", {"state": schedule.state_dict(), "object": schedule, "optimizer": optimizer})
    output = model(torch.zeros(1, 3, dtype=torch.long), labels=torch.zeros(1, 3, dtype=torch.long))
    save(
        "transformers-output",
        {"loss": output.loss.detach(), "encoding": transformers.BatchEncoding({"input_ids": [[1, 2]]})},
    )
    state = transformers.TrainerState(global_step=3, max_steps=5, log_history=[{"loss": 1.0}])
    save("transformers-state", {"state": state, "control": transformers.TrainerControl()})
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    save("transformers-tokenizer", {"fast": transformers.PreTrainedTokenizerFast(tokenizer_object=words), "raw": words})
    data = [{"input_ids": torch.randint(0, 16, (8,)), "labels": torch.randint(0, 16, (8,))} for _ in range(4)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=1,
            save_steps=1,
            per_device_train_batch_size=2,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        transformers.Trainer(model=model, args=arguments, train_dataset=data).train()
        for path in pathlib.Path(folder, "checkpoint-1").iterdir():
            if path.suffix in (".pt", ".pth", ".bin"):
                path.replace(OUT / f"transformers-trainer-{path.name}")


def accelerate_objects():
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration, DistributedDataParallelKwargs, ProjectConfiguration

    accelerator = Accelerator(cpu=True)
    model, optimizer = net(), None
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=4)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 3)), batch_size=4, shuffle=True)
    model, optimizer, schedule, data = accelerator.prepare(model, optimizer, schedule, data)
    for (batch,) in data:
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        schedule.step()
    with tempfile.TemporaryDirectory() as folder:
        accelerator.save_state(folder, safe_serialization=False)
        for path in pathlib.Path(folder).iterdir():
            if path.is_file():
                path.replace(OUT / f"accelerate-state-{path.name}")
    kinds = {
        "project": ProjectConfiguration("x"),
        "data": DataLoaderConfiguration(),
        "ddp": DistributedDataParallelKwargs(),
    }
    save("accelerate-settings", {**kinds, "kind": accelerator.distributed_type})
    save("accelerate-optimizer", {"optimizer": optimizer.state_dict(), "model": accelerator.get_state_dict(model)})


def omegaconf_objects():
    from omegaconf import MISSING, OmegaConf

    config = OmegaConf.create(
        {"lr": 0.1, "list": [1, 2, {"a": None}], "ref": "${lr}", "path": pathlib.Path("x"), "b": b"x"}
    )
    save("omegaconf-plain", {"cfg": config, "list": config.list})
    OmegaConf.set_readonly(config, True)
    save("omegaconf-readonly", config)

    @dataclasses.dataclass
    class Optimizer:
        lr: float = 0.1
        name: str = MISSING

    @dataclasses.dataclass
    class Schema:
        optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)
        layers: list[int] = dataclasses.field(default_factory=lambda: [1, 2])

    globals().update(Optimizer=Optimizer, Schema=Schema)
    Optimizer.__qualname__, Schema.__qualname__ = "Optimizer", "Schema"
    save("omegaconf-structured", OmegaConf.structured(Schema))


def hydra_objects():
    from hydra import compose, initialize_config_dir
    from hydra.core.utils import JobReturn, JobStatus
    from omegaconf import OmegaConf

    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "config.yaml").write_text(
            "model:\n  _target_: torch.nn.Linear\n  in_features: 3\nlr: 0.1\n"
        )
        with initialize_config_dir(folder, version_base=None):
            config = compose("config", overrides=["lr=0.2"], return_hydra_config=True)
    save("hydra-config", {"hydra": config.hydra, "model": config.model, "plain": OmegaConf.to_container(config.model)})
    job = JobReturn(overrides=["lr=0.2"], cfg=config.model, working_dir="x", task_name="train")
    job.status, job.return_value = JobStatus.COMPLETED, 0.5
    save("hydra-job", job)


def wandb_objects():
    import wandb

    run = wandb.init(mode="disabled", config={"lr": 0.1, "nested": {"a": 1}})
    save("wandb-config", {"config": dict(run.config), "as_dict": run.config.as_dict()})
    for name, value in {
        "histogram": lambda: wandb.Histogram([1.0, 2.0]),
        "table": lambda: wandb.Table(columns=["a"], data=[[1]]),
        "config-object": lambda: run.config,
        "settings": lambda: wandb.Settings(project="x"),
        "summary": lambda: dict(run.summary),
    }.items():
        try:
            save(f"wandb-{name}", {"value": value()})
        except Exception as error:  # what cannot be pickled is saved by nobody
            print("not pickled: wandb", name, type(error).__name__)
    run.finish()


def timm_objects():
    import timm
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler
    from timm.utils import CheckpointSaver, ModelEmaV3, NativeScaler

    model = timm.create_model("test_vit", num_classes=2)
    small = nn.Sequential(timm.layers.Mlp(4, 4), timm.layers.LayerNorm(4), timm.layers.DropPath(0.1))
    optimizer = create_optimizer_v2(small, opt="adamw", lr=0.1)
    args = argparse.Namespace(model="test_vit", lr=0.1, opt="adamw", mean=None, input_size=(3, 32, 32))
    with tempfile.TemporaryDirectory() as folder:
        saver = CheckpointSaver(
            small,
            optimizer,
            args=args,
            model_ema=ModelEmaV3(small),
            amp_scaler=NativeScaler("cpu"),
            checkpoint_dir=folder,
            recovery_dir=folder,
        )
        saver.save_checkpoint(0, metric=0.5)
        pathlib.Path(folder, "last.pth.tar").replace(OUT / "timm-last.pth.tar")
    save("timm-layers", small, legacy=False)
    save(
        "timm-schedule",
        {"object": CosineLRScheduler(optimizer, 10), "state": CosineLRScheduler(optimizer, 10).state_dict()},
    )
    save("timm-cfg", {"cfg": model.pretrained_cfg, "default": model.default_cfg})
    for parameter in model.parameters():
        parameter.data = torch.zeros(1).expand(parameter.shape)  # the classes count, not the values
    save("timm-model", model, legacy=False)


def deepspeed_objects():
    import deepspeed
    import deepspeed.comm.torch

    # Would be compiled for minutes, and changes no file.
    setattr(sys.modules["deepspeed.comm.torch"], "build_shm_op", lambda: None)  # noqa: B010
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    for stage in (0, 1, 2, 3):
        model = net()
        config = {
            "train_batch_size": 2,
            "optimizer": {"type": "Adam", "params": {"lr": 0.1, "torch_adam": True}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 2}},
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
            "bf16": {"enabled": stage > 0},
        }
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        batch = torch.randn(2, 3, dtype=torch.bfloat16 if stage else torch.float32)
        engine.backward(engine(batch).float().square().mean())
        engine.step()
        with tempfile.TemporaryDirectory() as folder:
            client = {"args": argparse.Namespace(lr=0.1), "iteration": 3}
            engine.save_checkpoint(folder, tag="global_step1", client_state=client)
            for path in pathlib.Path(folder, "global_step1").iterdir():
                path.replace(OUT / f"deepspeed-{stage}-{path.name}")


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    for part in (
        omegaconf_objects,
        hydra_objects,
        lightning_objects,
        transformers_objects,
        accelerate_objects,
        wandb_objects,
        timm_objects,
        deepspeed_objects,
    ):
        if sys.argv[2:] and part.__name__.partition("_")[0] not in sys.argv[2:]:
            continue
        try:
            part()
        except Exception:
            print("left out:", part.__name__, traceback.format_exc()[-600:])
    print(sys.version.split()[0], torch.__version__, len(list(OUT.iterdir())), "files")
    sys.stdout.flush()
    os._exit(0)
