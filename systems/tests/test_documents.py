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
from torch.optim.lr_scheduler import OneCycleLR

from nantrap.cli import main as nantrap
from nantrap.errors import FormatError, UsageError
from nantrap_systems import SYSTEMS, load_system
from nantrap_systems.log import read_log
from nantrap_systems.measuring import demo_run
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
    assert err.startswith("precision: weights in float32\n")
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


def test_every_length_drives_the_schedule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--epochs`, `--steps`, `--set`, the config file and a resume: the cycle ends with the run, and not before it."""
    system, small = load_system("restran_mhc"), [*SMALL, "--evaluate-every=1000", "--save-every=1000"]

    def last_rate(folder: str, *options: str) -> tuple[int, float]:
        assert main(system, [*small, *options, "--run-dir", str(tmp_path / folder)]) == 0, capsys.readouterr().err
        capsys.readouterr()
        row = read_log(tmp_path / folder)[-1]
        return row["step"] + 1, row["lr"]

    (tmp_path / "config.py").write_text("EPOCHS = 3\n")
    assert last_rate("steps", "--steps=7") == (7, pytest.approx(4e-8))
    assert last_rate("epochs", "--epochs=2") == (4, pytest.approx(4e-8))
    assert last_rate("setting", "--set=epochs=2") == (4, pytest.approx(4e-8))
    assert last_rate("config", f"--config={tmp_path / 'config.py'}") == (6, pytest.approx(4e-8))
    assert last_rate("config", "--resume=last_good", "--steps=2") == (8, pytest.approx(4e-8)), "beyond the old cycle"
    assert main(system, [*small, "--run-dir", str(tmp_path / "steps"), "--resume=last_good", "--set=epochs=2"]) == 2
    assert "the checkpoint is of step 7, and the configured run has 4; --steps trains on" in capsys.readouterr().err
    assert main(system, [*small, "--steps=0"]) == 2


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_knows_the_length_of_its_schedule(name: str) -> None:
    system = load_system(name)
    assert system.settings_of().length.steps > 0
    assert system.settings_of(steps=2345).length.steps == 2345


def test_a_demo_longer_than_the_configured_run_extends_its_schedule() -> None:
    changes = {"channels": 8, "batch_size": 2, "mhc_blocks": 1}
    system = load_system("restran_mhc")
    long = demo_run(system, system.faults[0], None, 400, changes=changes)
    short = demo_run(system, system.faults[0], None, 60, changes=changes)
    assert isinstance(long.scheduler, OneCycleLR)
    assert isinstance(short.scheduler, OneCycleLR)
    assert (long.scheduler.total_steps, short.scheduler.total_steps) == (401, 301)


def test_a_plain_run_whose_watched_values_are_nan_logs_to_its_end(tmp_path: Path) -> None:
    small = ["--set=channels=8", "--set=batch_size=2", "--set=mhc_blocks=1", "--set=steps_per_epoch=2"]
    fault = ["--fault=black_frames", "--set=black_frames=1.0", "--run-dir", str(tmp_path)]
    assert main(load_system("restran_mhc"), [*small, *fault, "--steps=4"]) == 0
    rows = read_log(tmp_path)
    assert [row["loss"] for row in rows] == [None] * 4
    assert set(rows[-1]["watched"].values()) == {None}


def radiodiff_options(folder: Path) -> list[str]:
    small = ["--set=data.image_size=32", "--set=data.batch_size=2", "--set=data.maps=34"]
    return [*small, "--set=first_stage.train_num_steps=2", "--save-every=1", "--run-dir", str(folder)]


def test_the_tenth_milestone_is_there_after_fourteen_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    system = load_system("radiodiff")
    for folder, options in ((tmp_path / "all", []), (tmp_path / "some", ["--keep=2"])):
        assert main(system, [*radiodiff_options(folder), "--steps=14", *options]) == 0
    names = {path.name for path in (tmp_path / "some" / "checkpoints").glob("step-*")}
    assert names == {f"step-0000{step}.safetensors" for step in (10, 13, 14)}
    capsys.readouterr()
    for name in ("all", "some"):
        again = [*radiodiff_options(tmp_path / name), "--steps=1", "--set=trainer.resume_milestone=10"]
        assert main(system, again) == 0
        assert "resumed after step 10" in capsys.readouterr().err
    log = (tmp_path / "all" / "latest.log").read_text()
    assert "precision: amp off, fp16 off, accelerate.yaml says bf16: weights in float32\n" in log
    assert "resumed after step 10" in log
    assert main(system, [*radiodiff_options(tmp_path / "none"), "--keep=0"]) == 2


@pytest.mark.slow
def test_the_stages_of_the_document_are_judged_on_the_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Epochs and batches are in the journal of a guarded run, so `nantrap check` knows its stages."""
    system = load_system("restran_mhc")
    options = ["--guard", "--set=channels=8", "--set=batch_size=4", "--set=mhc_blocks=1", "--epochs=6"]
    assert main(system, [*options, "--run-dir", str(tmp_path / "run")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "journal-r0.jsonl").read_text().splitlines()]
    assert [(row["epoch"], row["batch"]) for row in rows if "action" in row][8:12] == [(1, 8), (1, 9), (2, 0), (2, 1)]
    plan = system.config.with_name("stages.yaml")
    capsys.readouterr()
    code = nantrap(["check", str(tmp_path / "run"), "--expect", str(plan), "--json"])
    verdict = json.loads(capsys.readouterr().out)
    first, second = verdict["stages"]
    assert (first["span"], first["state"]) == ("epochs 1-5", "complete")
    assert second["span"] == "epochs 6-30"
    assert code == (1 if "fail" in json.dumps(verdict) else 0)
    (tmp_path / "strict.yaml").write_text(plan.read_text().replace("0.1", "0.001"))
    assert nantrap(["check", str(tmp_path / "run"), "--expect", str(tmp_path / "strict.yaml")]) == 1


def test_a_run_starts_before_the_nan_and_torch_reads_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--set=model.hidden_size=32", "--set=model.depth=1", "--seed=2"]
    system, where = load_system("pixeldlm"), ["--run-dir", str(tmp_path / "run"), *small]
    assert main(system, [*where, "--fault=mask_product", "--steps=16", "--save-every=1"]) == 0
    bad = next(row["step"] for row in read_log(tmp_path / "run") if row["loss"] is None)
    capsys.readouterr()
    assert main(system, [*where, "--resume=before-nan", "--steps=1"]) == 0
    assert f"resumed after step {bad}," in capsys.readouterr().err
    assert main(system, [*where, "--resume=before-nan", "--steps=1"]) == 2
    assert "has neither a bad loss nor an incident" in capsys.readouterr().err
    assert main(system, ["--resume=before-nan"]) == 2
    assert "--resume before-nan needs --run-dir" in capsys.readouterr().err
    model = torch.load(tmp_path / "run" / "checkpoints" / "model.pt")["model"]
    assert not any(torch.isnan(value).any() for value in model.values())
