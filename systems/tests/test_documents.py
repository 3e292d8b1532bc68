"""What a reader of the five post-mortems types: their settings, their commands, their files."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from nantrap.errors import FormatError, UsageError
from nantrap_systems import load_system
from nantrap_systems.log import read_log
from nantrap_systems.restran_mhc import stages
from nantrap_systems.script import main
from nantrap_systems.settings import read_settings, read_variables

SNIPPETS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "radiodiff": (
        "config.yaml",
        """
trainer:
  lr: 1e-5          # Reduced from 5e-5
  min_lr: 1e-6      # Reduced from 5e-6
  amp: True         # Enabled with proper BF16 alignment
  fp16: False       # Managed by AMP
  resume_milestone: 10  # Updated for resume capability
""",
        {"trainer.lr": 1e-5, "trainer.amp": True, "trainer.resume_milestone": 10},
    ),
    "latentdlm": (
        "config.yaml",
        """
optimizer:
  lr: 5e-5  # Reduced from 1e-4
  grad_clip_norm: 0.5
training:
  warmup_steps: 2000
  dtype: bf16
  gradient_accumulation_steps: 2
  train_batch_size: 4
loss:
  loss_scale: 1.0
  text_loss_weight: 1.0
  latent_loss_weight: 0.1
""",
        {"optimizer.lr": 5e-5, "training.train_batch_size": 4, "loss.latent_loss_weight": 0.1},
    ),
    "restran_mhc": (
        "config.py",
        """
MODEL_TYPE = "restran_mhc"
LEARNING_RATE = 1e-4          # 50% lower than baseline
BATCH_SIZE = 32
GRAD_CLIP = 1.0
MHC_N = 2                     # Fewer streams for stability
AUGMENTATION_LEVEL = "light"  # Less data perturbation
OVERSAMPLE_RARE_CHARS = False # Reduce training variance
USE_CUDNN_BENCHMARK = False
""",
        {"learning_rate": 1e-4, "augmentation": 0, "oversample_rare": 0.0, "mhc_n": 2},
    ),
    "temi": (
        "config.py",
        """
LEARNING_RATE = 5e-5
CLIP_GRAD = 1.0
STUDENT_TEMP = 0.1
TEACHER_TEMP = 0.05
BETA = 0.5
BATCH_SIZE = 128
DINOV2_MODEL = "dinov2_vits14"  # Smaller, more stable
EMBEDDING_DIM = 384
USE_FP16 = False
""",
        {"clip_grad": 1.0, "embed_dim": 384, "mixed_precision": "no", "dinov2_model": "dinov2_vits14", "beta": 0.5},
    ),
    "pixeldlm": (
        "train_test.sh",
        """
#!/bin/bash
DATA_DIR=$HOME/data
export LR=1e-5  # from 1e-4
MAX_GRAD_NORM="1.0"
python train.py --lr $LR
""",
        {"training.learning_rate": 1e-5, "training.max_grad_norm": 1.0},
    ),
}


@pytest.mark.parametrize("name", SNIPPETS)
def test_the_settings_of_the_documents_are_read(name: str, tmp_path: Path) -> None:
    file, text, expected = SNIPPETS[name]
    path = tmp_path / file
    path.write_text(text)
    settings = read_settings(load_system(name).settings, path)
    for setting, value in expected.items():
        found: Any = settings
        for part in setting.split("."):
            found = getattr(found, part)
        assert found == value, setting


def test_shell_variables_are_read_and_not_run() -> None:
    text = "A=1\nexport B='x y'\nC=$A\nD=`rm -rf /`\n  E=3 # three\nF=1; rm x\nif true; then G=1; fi\nH=${H:-7}\n"
    assert read_variables(text) == {"a": "1", "b": "x y", "e": "3", "f": "1", "h": "7"}


def test_a_dotted_name_is_a_setting(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("optimizer.lr: 3e-5  # from 1e-4\n")
    assert read_settings(load_system("latentdlm").settings, tmp_path / "config.yaml").optimizer.lr == 3e-5
    (tmp_path / "config.yaml").write_text("optimizer.rate: 3e-5\n")
    with pytest.raises(UsageError, match=r"no setting is called .*optimizer.rate"):
        read_settings(load_system("latentdlm").settings, tmp_path / "config.yaml")


def test_the_script_of_pixeldlm_holds_the_default_settings(tmp_path: Path) -> None:
    system = load_system("pixeldlm")
    script = system.config.with_name("train_test.sh")
    assert read_settings(system.settings, script) == system.settings()
    said = f'echo "$@" > "{tmp_path}/arguments"'
    (tmp_path / "python").write_text(f"#!/bin/sh\n{said}\n")
    (tmp_path / "python").chmod(0o700)
    environment = {**os.environ, "PYTHON": str(tmp_path / "python"), "LR": "1e-5"}
    subprocess.run(["bash", str(script), "--steps", "3"], check=True, timeout=30, env=environment)
    arguments = (tmp_path / "arguments").read_text().split()
    assert arguments[:4] == ["-m", "nantrap_systems.pixeldlm.train", "--lr", "1e-5"]
    assert arguments[-2:] == ["--steps", "3"]


def test_a_level_that_does_not_exist_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text('AUGMENTATION_LEVEL = "heavier"\n')
    with pytest.raises(FormatError, match="augmentation_level: cannot be 'heavier'"):
        read_settings(load_system("restran_mhc").settings, tmp_path / "config.py")


@pytest.mark.parametrize("name", ["radiodiff", "temi"])
def test_a_learning_rate_below_its_floor_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The floor is a factor of the schedule: with a lower learning rate it would raise the one that was restored."""
    assert main(load_system(name), ["--lr=1e-7"]) == 2
    assert re.search(r"error: .*min_lr is [\d.e-]+, above .*, 1e-07: lower it as well", capsys.readouterr().err)


SMALL = ["--set=channels=8", "--set=batch_size=4", "--set=mhc_blocks=1", "--set=steps_per_epoch=2"]


def test_the_command_of_the_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", "restran_mhc", "--mhc-n", "2", "--lr", "0.0001", "--epochs", "2", *SMALL]
    assert main(load_system("restran_mhc"), [*options, "--run-dir", str(tmp_path)]) == 0
    err = capsys.readouterr().err
    assert "Checking model parameters before epoch 1 ... ok\n" in err
    assert "Checking model parameters before epoch 2 ... ok\n" in err
    assert "Ep 2/2: 100% step 4/4, " in err
    assert ", loss=" in err
    assert ", lr=" in err
    assert "after epoch 2: alpha_pre 0.0" in err
    rows = read_log(tmp_path)
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert all(row["loss"] > 0 and row["lr"] <= 1e-4 for row in rows)
    log = (tmp_path / "latest.log").read_text()
    assert "Ep 2/2: 100% step 4/4, " in log, "what `tail -f latest.log | grep loss` follows"
    assert all(line in err for line in log.splitlines())
    assert set(rows[1]["watched"]) == {"mhc.0.alpha_pre", "mhc.0.alpha_post", "mhc.0.alpha_res"}
    assert main(load_system("restran_mhc"), [*options, "--run-dir", str(tmp_path)]) == 2
    assert "exists and is not overwritten" in capsys.readouterr().err


def test_without_hyper_connections(capsys: pytest.CaptureFixture[str]) -> None:
    run = load_system("restran_mhc").run(changes={"model_type": "restran", "channels": 8, "batch_size": 2})
    assert not any("alpha" in name for name, _ in run.model.named_parameters())
    loss = run.loss(run.window(0)[0])
    assert isinstance(loss, torch.Tensor)
    assert loss.isfinite()
    assert main(load_system("restran_mhc"), ["--model", "resnet"]) == 2
    assert "choose restran_mhc or restran" in capsys.readouterr().err


def test_streams_may_end_with_every_block() -> None:
    changes = {"channels": 8, "batch_size": 2, "mhc_n": 4, "mhc_collapse": True}
    run = load_system("restran_mhc").run(changes=changes)
    block = run.model.get_submodule("mhc.0")
    out = block(torch.randn(2, 4, 8, 4, 18))
    assert torch.equal(out[:, 0], out[:, 3])


TEMI = ["--set=num_heads=1", "--set=samples_per_cluster=10", "--set=knn=3", "--set=batch_size=16"]


@pytest.mark.parametrize("guard", [[], ["--guard"]], ids=["plain", "guarded"])
def test_a_resume_says_which_learning_rate_is_used(
    guard: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    system, where = load_system("temi"), ["--run-dir", str(tmp_path / "run"), f"--set=cache_dir={tmp_path}", *TEMI]
    assert main(system, [*where, *guard, "--steps=3"]) == 0
    capsys.readouterr()
    assert main(system, [*where, *guard, "--steps=2", "--resume=last_good"]) == 0
    assert "warning: " not in capsys.readouterr().err
    assert main(system, [*where, *guard, "--steps=1", "--resume=last_good", "--lr=1e-4"]) == 0
    err = capsys.readouterr().err
    assert "resumed after step 5" in err
    assert "the configuration says 0.0001: the restored optimizer state overrides it" in err
    assert "--take-configured-lr" in err
    assert main(system, [*where, *guard, "--steps=1", "--resume=5", "--lr=1e-4", "--take-configured-lr"]) == 0
    assert "the configured rate is in force" not in capsys.readouterr().err.split("warning")[0]
    rows = read_log(tmp_path / "run")
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert rows[-1]["lr"] <= 1e-4
    if guard:
        journal = [json.loads(line) for line in (tmp_path / "run" / "journal-r0.jsonl").read_text().splitlines()]
        steps = [row["step"] for row in journal if "loss" in row and "step" in row]
        assert steps[:5] == [0, 1, 2, 3, 4]
        assert steps[-1] == 5, "the journal goes on at the real step"


def test_a_cache_is_checked_and_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [f"--cache-dir={tmp_path}", "--steps=1", *TEMI]
    assert main(load_system("temi"), options) == 0
    err = capsys.readouterr().err
    assert f"cache: {tmp_path / 'embeddings_train.pt'}\n  200 embeddings: NaN 0, Inf 0, min -" in err
    (path,) = tmp_path.iterdir()
    content = torch.load(path, weights_only=True)
    content["embeddings"][3] = torch.nan
    torch.save(content, path)
    assert main(load_system("temi"), options) == 2
    assert "--force-recompute" in capsys.readouterr().err
    assert main(load_system("temi"), [*options, "--force-recompute"]) == 0


def test_a_milestone_of_the_configuration_is_resumed_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--set=data.image_size=32", "--set=data.batch_size=2", "--set=data.maps=34"]
    options = [*small, "--set=first_stage.train_num_steps=2", "--save-every=1", "--steps=1"]
    where = ["--run-dir", str(tmp_path)]
    system = load_system("radiodiff")
    assert main(system, [*options, *where]) == 0
    (row,) = read_log(tmp_path)
    assert row["terms"] == {"loss_simple": row["loss"], "loss_vlb": 0.0}
    assert main(system, [*options, *where, "--set=trainer.resume_milestone=1"]) == 0
    assert "resumed after step 1" in capsys.readouterr().err
    assert main(system, [*options, *where, "--set=trainer.resume_milestone=10"]) == 2
    assert main(system, [*options, "--set=trainer.resume_milestone=10"]) == 2
    err = capsys.readouterr().err
    assert "error: the configuration's milestone (10, step 10) needs --run-dir, where the checkpoints are" in err


# ---- stages


def row(epoch: int, loss: float | None, *, alpha: float = 0.02, applied: bool = True) -> dict[str, Any]:
    return {"step": 0, "epoch": epoch, "loss": loss, "applied": applied, "watched": {"mhc.0.alpha_res": alpha}}


def test_the_stages_of_a_good_run() -> None:
    rows = [row(epoch, 7 - epoch / 10) for epoch in range(1, 31) for _ in range(5)]
    assert stages.judge(rows[:10])[0].startswith("stage 1 (epochs 1 to 5): ok so far (loss 6.900 to 6.800)")
    assert [line.split(" (")[0] for line in stages.judge(rows)] == ["stage 1", "stage 2", stages.SCALE_UP]


@pytest.mark.parametrize(
    ("spoilt", "words"),
    [
        (row(5, None), "1 steps with a loss of NaN or Inf"),
        (row(5, 2.0, applied=False), "1 steps skipped"),
        (row(5, 2.0, alpha=0.3), "mhc.0.alpha_res is 0.3, 0.1 or more"),
    ],
)
def test_the_stages_of_a_bad_run(spoilt: dict[str, Any], words: str) -> None:
    rows = [row(epoch, 7 - epoch) for epoch in range(1, 6) for _ in range(5)]
    (line,) = stages.judge([*rows, spoilt])
    assert words in line
    rising = [row(epoch, epoch) for epoch in range(1, 6) for _ in range(5)]
    assert "the loss does not fall" in stages.judge(rising)[0]


def test_stages_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert stages.main([str(tmp_path)]) == 2
    (tmp_path / "training_log.jsonl").write_text("".join(json.dumps(row(1, 7 - n / 10)) + "\n" for n in range(12)))
    assert stages.main([str(tmp_path)]) == 0
    assert "stage 1 (epochs 1 to 5): ok so far" in capsys.readouterr().out
