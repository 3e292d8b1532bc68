"""The rules find what is wrong and stay silent on what is ordinary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from checkpoints.audit.states import lightning_state, training_state
from nantrap.checkpoints.audit import CheckpointAudit, audit
from nantrap.checkpoints.audit.verdict import CheckpointProblem


def audit_one(value: Any, path: Path) -> CheckpointAudit:
    torch.save(value, path)
    return audit(path).checkpoints[0]


def only(value: Any, path: Path) -> CheckpointProblem:
    result = audit_one(value, path)
    assert len(result.problems) == 1, result.problems
    return result.problems[0]


def causal(value: float, size: int = 8) -> torch.Tensor:
    return torch.full((size, size), value).triu(1)


HEALTHY: dict[str, Any] = {
    "training state": training_state(),
    "untrained": training_state(steps=0),
    "lightning": lightning_state(),
    "float16 model": {"model": {"a.weight": torch.randn(8, 8).half()}},
    "bfloat16 with float32 norms": {"a.weight": torch.randn(8, 8).bfloat16(), "norm.weight": torch.ones(8)},
    "float8 at its limit": {"a.weight": (torch.rand(8, 8) * 448).to(torch.float8_e4m3fn)},
    "zeros in the moments": {"optimizer": {"state": {0: {"exp_avg": torch.zeros(64, 64)}}, "param_groups": []}},
    "plateau scheduler": {"scheduler": {"best": float("inf"), "mode_worse": float("inf"), "last_epoch": 3}},
    "best loss": {"model": {"w": torch.randn(4)}, "best_loss": torch.tensor(torch.inf)},
    "finite mask": {"model": {"w": torch.randn(4), "mask": causal(torch.finfo(torch.float32).min)}},
    "large buffer": {"model": {"bn.running_var": torch.full((4,), 1e9)}},
    "rng": {"rng_state": torch.get_rng_state(), "model": {"w": torch.randn(2)}},
    "integers and nothing": {"model": {"n": torch.tensor(3), "empty": torch.empty(0)}},
    "tiny constants": {"model": {"weight": torch.ones(4, 4), "bias": torch.zeros(4)}},
    "weight decay of zero": {"optimizer": {"state": {}, "param_groups": [{"lr": 0.0}]}},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_checkpoints_raise_no_problem(name: str, tmp_path: Path) -> None:
    result = audit_one(HEALTHY[name], tmp_path / "a.pt")
    assert result.problems == ()
    assert result.healthy


@pytest.mark.parametrize("section", ["model", "optimizer", "ema", "scaler", "extra"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_poison_is_found_in_every_section(section: str, value: float, tmp_path: Path, state: dict[str, Any]) -> None:
    if section == "optimizer":
        state["optimizer"]["state"][0]["exp_avg"][1, 2] = value
        name, index = "optimizer.state.0.exp_avg", (1, 2)
    elif section == "scaler":
        state["scaler"]["state"] = torch.tensor([1.0, value])
        name, index = "scaler.state", (1,)  # type: ignore[assignment]
    elif section == "extra":
        state["extra"] = {"memory": torch.tensor([0.5, 2.0, value])}
        name, index = "extra.memory", (2,)  # type: ignore[assignment]
    else:
        state[section]["4.weight"][3, 7] = value
        name, index = f"{section}.4.weight", (3, 7)
    problem = only(state, tmp_path / "a.pt")
    assert problem.severity == "error"
    assert problem.tensor == name
    assert problem.first_index == index
    assert problem.role == ("other" if section == "extra" else section)
    is_nan = value != value
    assert problem.code == ("NT901" if is_nan else "NT902")
    assert problem.to_dict()["nan"] == int(is_nan)
    assert problem.to_dict()["inf"] == int(not is_nan)


def test_the_message_says_how_many_and_where(tmp_path: Path) -> None:
    weight = torch.zeros(10, 10)
    weight[2, 3:6] = torch.nan
    problem = only({"model": {"layer.weight": weight}}, tmp_path / "a.pt")
    assert problem.message == "model.layer.weight: 3 of 100 values are NaN"
    assert problem.help == "do not resume from it; take the last good checkpoint"
    assert problem.title == "NaN in a checkpoint"
    both = torch.tensor([torch.nan, torch.inf, -torch.inf, 1.0])
    problem = only({"model": {"layer.weight": both}}, tmp_path / "a.pt")
    assert (problem.code, problem.nan, problem.posinf, problem.neginf) == ("NT901", 1, 1, 1)
    assert problem.message == "model.layer.weight: 1 of 4 values is NaN, 1 is +Inf, 1 is -Inf"


def test_a_mask_of_minus_inf_is_a_warning(tmp_path: Path) -> None:
    mask = only({"model": {"attn.mask": causal(-torch.inf)}}, tmp_path / "a.pt")
    assert (mask.code, mask.severity) == ("NT902", "warning")
    assert mask.message.endswith("it looks like a mask: all other values are the same")
    weight = torch.randn(8, 8)
    weight[0, 0] = -torch.inf
    assert only({"model": {"attn.weight": weight}}, tmp_path / "a.pt").severity == "error"


def test_a_nan_score_next_to_good_weights_is_a_warning(tmp_path: Path) -> None:
    state = lightning_state()
    state["callbacks"]["ModelCheckpoint"]["best_model_score"] = torch.tensor(torch.nan)
    assert only(state, tmp_path / "a.ckpt").severity == "warning"


@pytest.mark.parametrize(
    ("dtype", "value", "found"),
    [
        (torch.float32, 1e20, True), (torch.float32, 1e12, False), (torch.bfloat16, 1e20, True),
        (torch.float16, 65000.0, True), (torch.float16, 3000.0, False), (torch.float64, 1e20, True),
    ],
)  # fmt: skip
def test_absurd_magnitude(dtype: torch.dtype, value: float, found: bool, tmp_path: Path) -> None:
    weight = torch.randn(4, 4).to(dtype)
    weight[1, 1] = value
    result = audit_one({"model": {"a.weight": weight}}, tmp_path / "a.pt")
    assert [problem.code for problem in result.problems] == (["NT903"] if found else [])
    assert result.healthy is not found


def test_negative_second_moment_and_variance(tmp_path: Path, state: dict[str, Any]) -> None:
    state["optimizer"]["state"][0]["exp_avg_sq"][0, 0] = -1e-8
    problem = only(state, tmp_path / "a.pt")
    assert (problem.code, problem.severity) == ("NT904", "error")
    assert problem.message == ("optimizer.state.0.exp_avg_sq: least value -1e-08, but exp_avg_sq is a mean of squares")
    assert only({"model": {"bn.running_var": torch.tensor([1.0, -1.0])}}, tmp_path / "a.pt").code == "NT904"


def test_constant_weights_are_a_warning(tmp_path: Path) -> None:
    problem = only({"model": {"a.weight": torch.zeros(16, 16)}}, tmp_path / "a.pt")
    assert (problem.code, problem.severity) == ("NT905", "warning")
    assert problem.message == "model.a.weight: all values are 0"


def test_odd_mixes_of_dtypes_are_a_warning(tmp_path: Path) -> None:
    mixed = {"model": {"a.weight": torch.randn(2, 2).half(), "b.weight": torch.randn(2, 2).bfloat16()}}
    problem = only(mixed, tmp_path / "a.pt")
    assert (problem.code, problem.severity) == ("NT906", "warning")
    assert problem.message == "the weights mix float16 and bfloat16: 1 × float16, 1 × bfloat16"
    double = {"model": {"a.weight": torch.randn(2, 2), "b.weight": torch.randn(2, 2).double()}}
    assert "float64 together with smaller floats" in only(double, tmp_path / "a.pt").message


def test_rates_and_scales_must_be_finite(tmp_path: Path, state: dict[str, Any]) -> None:
    state["optimizer"]["param_groups"][0]["lr"] = float("nan")
    state["scaler"]["scale"] = float("inf")
    first, second = audit_one(state, tmp_path / "a.pt").problems
    assert (first.code, first.message) == ("NT901", "optimizer.param_groups.0.lr is NaN")
    assert (second.code, second.message) == ("NT902", "scaler.scale is +Inf")
    state["optimizer"]["param_groups"][0]["lr"] = 1e-3
    state["scaler"]["scale"] = 4.5e-44
    problem = only(state, tmp_path / "a.pt")
    assert (problem.code, problem.severity) == ("NT903", "warning")
    assert problem.message.startswith("the loss scale has collapsed to 4.5e-44")


def test_facts(tmp_path: Path, state: dict[str, Any]) -> None:
    facts = audit_one(state, tmp_path / "a.pt").facts
    rate = state["optimizer"]["param_groups"][0]["lr"]
    assert facts == {
        "step": 3, "epoch": 1, "lr": [rate], "optimizer_step": 3, "scheduler_step": 3, "scheduler_lr": [rate],
        "base_lr": state["scheduler"]["base_lrs"], "scale": 1024.0,
    }  # fmt: skip


def test_safetensors_are_judged_alike(tmp_path: Path) -> None:
    weight = torch.randn(4, 4)
    weight[1, 2] = torch.inf
    save_file({"a.weight": weight}, tmp_path / "a.safetensors")
    problem = audit(tmp_path / "a.safetensors").problems[0]
    assert (problem.code, problem.tensor, problem.first_index) == ("NT902", "a.weight", (1, 2))


def test_a_tensor_that_was_saved_alone_has_no_name(tmp_path: Path) -> None:
    torch.save(torch.tensor([1.0, float("nan")]), tmp_path / "a.pt")
    assert audit(tmp_path / "a.pt").problems[0].message == "the saved tensor: 1 of 2 values is NaN"
