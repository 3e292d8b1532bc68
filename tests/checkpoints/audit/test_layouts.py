"""Which files make a checkpoint: the folders of each framework, and a folder of mixed things."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from checkpoints.audit.states import lightning_state, training_state
from nantrap.checkpoints.audit import CheckpointAudit, audit
from nantrap.errors import UsageError


def poison(tensor: torch.Tensor) -> torch.Tensor:
    bad = tensor.clone()
    bad.view(-1)[-1] = torch.nan
    return bad


def one(path: Path | str) -> CheckpointAudit:
    report = audit(path)
    assert len(report.checkpoints) == 1, [c.path for c in report.checkpoints]
    return report.checkpoints[0]


def codes(checkpoint: CheckpointAudit) -> list[tuple[str, str, str | None]]:
    return [(p.code, p.severity, p.file) for p in checkpoint.problems]


def sharded(folder: Path, model: dict[str, torch.Tensor], suffix: str = "safetensors") -> None:
    """As Hugging Face saves a model in three shards with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    weight_map: dict[str, str] = {}
    names = sorted(model)
    for number in range(3):
        file = f"{stem}-{number + 1:05d}-of-00003.{suffix}"
        part = {name: model[name] for name in names[number::3]}
        weight_map |= dict.fromkeys(part, file)
        save_file(part, folder / file) if suffix == "safetensors" else torch.save(part, folder / file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_a_sharded_folder(tmp_path: Path, state: dict[str, Any], suffix: str) -> None:
    sharded(tmp_path, state["model"], suffix)
    good = one(tmp_path)
    assert good.healthy
    assert good.format == ("safetensors-sharded" if suffix == "safetensors" else "torch-sharded")
    assert good.tensors == len(state["model"])
    by_index = one(next(tmp_path.glob("*.index.json")))
    assert (by_index.healthy, by_index.tensors) == (True, good.tensors)
    state["model"]["4.weight"] = poison(state["model"]["4.weight"])
    sharded(tmp_path, state["model"], suffix)
    problem = one(tmp_path).problems[0]
    assert (problem.code, problem.tensor) == ("NT901", "4.weight")
    assert problem.file is not None
    assert "-of-00003" in problem.file


def test_a_missing_an_unexpected_and_a_wrong_shard(tmp_path: Path, state: dict[str, Any]) -> None:
    sharded(tmp_path, state["model"])
    (tmp_path / "model-00002-of-00003.safetensors").rename(tmp_path / "model-00007-of-00009.safetensors")
    result = one(tmp_path)
    assert codes(result)[0] == ("NT907", "error", "model-00002-of-00003.safetensors")
    assert result.problems[0].message.startswith("model-00002-of-00003.safetensors is missing: ")
    assert ("NT907", "warning", "model-00007-of-00009.safetensors") in codes(result)
    (tmp_path / "model-00007-of-00009.safetensors").unlink()
    save_file({"other": torch.ones(2)}, tmp_path / "model-00002-of-00003.safetensors")
    messages = [problem.message for problem in one(tmp_path).problems]
    assert any(m.endswith("should be in model-00002-of-00003.safetensors and is not") for m in messages)


def test_tied_weights_are_not_missing_from_their_shard(tmp_path: Path) -> None:
    shared = torch.randn(4, 4)
    tied = {"embed.weight": shared, "head.weight": shared.detach()}
    torch.save(tied, tmp_path / "pytorch_model-00001-of-00001.bin")
    index = {"weight_map": dict.fromkeys(tied, "pytorch_model-00001-of-00001.bin")}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert one(tmp_path).problems == ()


def test_a_broken_index(tmp_path: Path, state: dict[str, Any]) -> None:
    sharded(tmp_path, state["model"])
    (tmp_path / "model.safetensors.index.json").write_text("{")
    problem = one(tmp_path).problems[0]
    assert problem.code == "NT908"
    assert problem.message.startswith("model.safetensors.index.json does not say which tensor is in which file")


def test_shards_without_an_index(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "model-00001-of-00002.safetensors")
    assert codes(one(tmp_path)) == [("NT907", "error", "model-00002-of-00002.safetensors")]


def transformers_folder(folder: Path, state: dict[str, Any], step: int = 500) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(state["model"], folder / "model.safetensors")
    torch.save(state["optimizer"], folder / "optimizer.pt")
    torch.save(state["scheduler"], folder / "scheduler.pt")
    torch.save(state["scaler"], folder / "scaler.pt")
    torch.save({"python": (3, (1, 2), None), "cpu": torch.get_rng_state()}, folder / "rng_state.pth")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "epoch": 2.5}))
    (folder / "config.json").write_text("{}")


def test_a_transformers_folder(tmp_path: Path, state: dict[str, Any]) -> None:
    transformers_folder(tmp_path / "checkpoint-500", state)
    result = one(tmp_path / "checkpoint-500")
    assert (result.format, result.healthy, result.problems) == ("transformers", True, ())
    assert result.facts["step"] == 500
    assert result.facts["epoch"] == 2.5
    assert result.facts["scale"] == 1024.0
    assert result.facts["optimizer_step"] == 3
    state["optimizer"]["state"][2]["exp_avg_sq"] = poison(state["optimizer"]["state"][2]["exp_avg_sq"])
    transformers_folder(tmp_path / "checkpoint-500", state)
    problem = one(tmp_path / "checkpoint-500").problems[0]
    assert (problem.file, problem.role, problem.tensor) == ("optimizer.pt", "optimizer", "state.2.exp_avg_sq")


def test_a_trainers_output_folder(tmp_path: Path) -> None:
    for step in (500, 1000, 1500):
        state = training_state()
        if step == 1500:
            state["model"]["0.weight"] = poison(state["model"]["0.weight"])
        transformers_folder(tmp_path / f"checkpoint-{step}", state, step)
    report = audit(tmp_path)
    assert [Path(c.path).name for c in report.checkpoints] == ["checkpoint-500", "checkpoint-1000", "checkpoint-1500"]
    assert [c.healthy for c in report.checkpoints] == [True, True, False]
    assert report.last_good == str(tmp_path / "checkpoint-1000")


def test_an_accelerate_folder(tmp_path: Path, state: dict[str, Any]) -> None:
    save_file(state["model"], tmp_path / "model.safetensors")
    torch.save(state["optimizer"], tmp_path / "optimizer.bin")
    torch.save(state["scheduler"], tmp_path / "scheduler.bin")
    torch.save({"random_state": (3, (1,), None)}, tmp_path / "random_states_0.pkl")
    torch.save({"ema.weight": poison(torch.ones(3))}, tmp_path / "custom_checkpoint_0.pkl")
    result = one(tmp_path)
    assert result.format == "accelerate"
    assert [(p.code, p.file) for p in result.problems] == [("NT901", "custom_checkpoint_0.pkl")]


def save_dcp(state: dict[str, Any], folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=str(folder))


def test_a_distributed_checkpoint(tmp_path: Path, state: dict[str, Any]) -> None:
    state = {"model": state["model"], "optim": state["optimizer"], "step": 7}
    save_dcp(state, tmp_path / "a")
    result = one(tmp_path / "a")
    assert (result.format, result.healthy, result.problems) == ("dcp", True, ())
    assert result.tensors == len(state["model"]) + 3 * 6 + 6
    assert result.facts["step"] == 7
    assert result.facts["lr"] == [state["optim"]["param_groups"][0]["lr"]]
    state["optim"]["state"][0]["exp_avg"] = poison(state["optim"]["state"][0]["exp_avg"])
    save_dcp(state, tmp_path / "b")
    problem = one(tmp_path / "b").problems[0]
    assert (problem.code, problem.tensor, problem.role) == ("NT901", "optim.state.0.exp_avg", "optimizer")
    assert problem.file is not None
    assert problem.file.endswith(".distcp")


def test_a_damaged_distributed_checkpoint(tmp_path: Path, state: dict[str, Any]) -> None:
    save_dcp({"model": state["model"]}, tmp_path / "a")
    shard = next((tmp_path / "a").glob("*.distcp"))
    raw = shard.read_bytes()
    shard.write_bytes(raw[:-500])
    assert {problem.code for problem in one(tmp_path / "a").problems} == {"NT909"}
    shard.rename(tmp_path / "a" / "__7_0.distcp")
    assert sorted(codes(one(tmp_path / "a"))) == [
        ("NT907", "error", "__0_0.distcp"),
        ("NT907", "warning", "__7_0.distcp"),
    ]
    metadata = tmp_path / "a" / ".metadata"
    metadata.write_bytes(metadata.read_bytes()[:-50])
    problem = one(tmp_path / "a").problems[0]
    assert (problem.code, problem.file) == ("NT909", ".metadata")


def test_fsdp_folders_of_accelerate(tmp_path: Path, state: dict[str, Any]) -> None:
    save_dcp({"model": state["model"]}, tmp_path / "pytorch_model_fsdp_0")
    save_dcp({"optimizer": state["optimizer"]}, tmp_path / "optimizer_0")
    torch.save({"random_state": (3, (1,), None)}, tmp_path / "random_states_0.pkl")
    result = one(tmp_path)
    assert (result.format, result.healthy) == ("accelerate", True)
    assert result.tensors == len(state["model"]) + 3 * 6 + 6
    (tmp_path / "optimizer_0" / ".metadata").unlink()
    assert "optimizer_0 has no .metadata" in one(tmp_path).problems[0].message


def test_a_deepspeed_folder(tmp_path: Path, state: dict[str, Any]) -> None:
    folder = tmp_path / "global_step100"
    folder.mkdir()
    torch.save({"module": state["model"], "global_steps": 100}, folder / "mp_rank_00_model_states.pt")
    for rank in (0, 1, 3):
        flat = {"optimizer_state_dict": {"single_partition_of_fp32_groups": [torch.randn(10)]}}
        torch.save(flat, folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    (tmp_path / "latest").write_text("global_step100")
    result = one(tmp_path)
    assert (result.format, result.facts["step"]) == ("deepspeed", 100)
    assert codes(result) == [("NT907", "error", "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt")]


def test_lightning(tmp_path: Path) -> None:
    torch.save(lightning_state(), tmp_path / "epoch=0-step=3.ckpt")
    result = one(tmp_path)
    assert (result.format, result.healthy) == ("lightning", True)
    assert result.facts["step"] == 3


class Config:
    """A class of the user's, as Lightning pickles one among the hyper-parameters."""

    def __init__(self) -> None:
        self.depth = 3
        self.prior = poison(torch.ones(4))


def test_a_class_of_the_users_does_not_hide_the_tensors(tmp_path: Path) -> None:
    state = lightning_state()
    state["hyper_parameters"] = {"config": Config()}
    state["state_dict"]["0.weight"] = poison(state["state_dict"]["0.weight"])
    torch.save(state, tmp_path / "a.ckpt")
    problems = one(tmp_path / "a.ckpt").problems
    assert [(p.code, p.tensor) for p in problems] == [
        ("NT901", "state_dict.0.weight"),
        ("NT901", "hyper_parameters.config.prior"),
        ("NT910", None),
    ]
    # a note if the source of the class can be read from here, which depends on where pytest was started
    assert [p.severity for p in problems[:2]] == ["error", "error"]
    assert problems[2].severity in ("note", "warning")
    assert problems[2].imports == (f"{Config.__module__}.Config",)


def test_a_folder_of_mixed_things(tmp_path: Path, state: dict[str, Any]) -> None:
    torch.save(state, tmp_path / "step_1.pt")
    (tmp_path / "README.md").write_text("notes")
    (tmp_path / "events.out.tfevents").write_bytes(b"\0" * 10)
    (tmp_path / "notes.pt").write_text("not a checkpoint at all")
    (tmp_path / "empty.pt").touch()
    (tmp_path / "logs").mkdir()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    save_file(state["model"], tmp_path / "deep" / "er" / "übung 模型.safetensors")
    report = audit(tmp_path)
    found = {Path(c.path).name: [p.code for p in c.problems] for c in report.checkpoints}
    assert found == {"step_1.pt": [], "notes.pt": ["NT911"], "empty.pt": ["NT909"], "übung 模型.safetensors": []}


def test_globs_match_checkpoints_only(tmp_path: Path, state: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a1.pt", "a2.pt", "b.pt"):
        torch.save(state, tmp_path / name)
    torch.save(state, tmp_path / "a3")  # without an ending, but it begins like one
    (tmp_path / "a.txt").write_text("x")
    report = audit(str(tmp_path / "a*"))
    assert sorted(Path(c.path).name for c in report.checkpoints) == ["a1.pt", "a2.pt", "a3"]
    monkeypatch.chdir(tmp_path)
    assert audit("b.pt").last_good == "b.pt"


def test_a_file_named_with_glob_characters_is_taken_as_it_is(tmp_path: Path, state: dict[str, Any]) -> None:
    torch.save(state, tmp_path / "a[1].pt")
    assert one(tmp_path / "a[1].pt").healthy


def test_links(tmp_path: Path, state: dict[str, Any]) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    torch.save(state, runs / "epoch=1.ckpt")
    os.symlink("epoch=1.ckpt", runs / "a-last.ckpt")  # the same checkpoint under a second name
    os.symlink("nowhere.ckpt", runs / "dead.ckpt")
    os.symlink("..", runs / "up")  # a loop of folders
    report = audit(runs)
    assert {Path(c.path).name: [p.code for p in c.problems] for c in report.checkpoints} == {
        "epoch=1.ckpt": [],
        "dead.ckpt": ["NT912"],
    }
    assert report.checkpoints[0].problems[0].message == "not read: No such file or directory"
    assert one(runs / "a-last.ckpt").healthy


@pytest.mark.parametrize("protocol", ["memory", "file"])
def test_urls(tmp_path: Path, state: dict[str, Any], protocol: str) -> None:
    root = "memory://nantrap-test" if protocol == "memory" else f"file://{tmp_path}"
    bad = dict(state, model={"w": poison(torch.ones(3, 3))})
    for name, value in (("step_1.pt", state), ("step_2.pt", bad)):
        with fsspec.open(f"{root}/run/{name}", "wb", auto_mkdir=True) as file:
            torch.save(value, file)
    report = audit(f"{root}/run")
    assert [c.healthy for c in report.checkpoints] == [True, False]
    assert report.last_good is not None
    assert report.last_good.endswith("/run/step_1.pt")
    assert report.last_good.startswith(f"{protocol}://")
    assert len(audit(f"{root}/run/*_2.pt").checkpoints) == 1
    with pytest.raises(UsageError, match="does not exist"):
        audit(f"{root}/run/step_9.pt")


def test_wrong_use_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.pt does not exist; give a file, a folder, a glob in quotes or a URL"):
        audit(tmp_path / "none.pt")
    with pytest.raises(UsageError, match=r"no checkpoint in .*; looked for files ending in \.pt"):
        audit(tmp_path)
    with pytest.raises(UsageError, match="no path was given"):
        audit([])
    with pytest.raises(UsageError, match="cannot open nosuch:// addresses"):
        audit("nosuch://bucket/a.pt")
