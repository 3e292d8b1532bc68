"""Nothing non-finite is saved, the refusal names it, and what is deliberate passes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import nantrap
from checkpoints.store.runs import INF, NAN, files_of, make_run
from nantrap.checkpoints import CheckpointStore, finite_gate


def test_the_refusal_names_the_tensors_and_writes_nothing(tmp_path: Path) -> None:
    run = make_run()
    run.train(2)
    store = CheckpointStore(tmp_path)
    store.save(step=2, **run.parts)
    with torch.no_grad():
        run.model.first.weight[1, 2] = NAN
        run.optimizer.state[run.model.first.bias]["exp_avg_sq"][0] = INF
    with pytest.raises(nantrap.NonFiniteError) as caught:
        store.save(step=3, **run.parts)
    assert str(caught.value) == (
        "step 3 was not saved: 2 tensors are not finite\n"
        "  model.first.weight: 1 of 32 values is NaN\n"
        "  optimizer.state.1.exp_avg_sq: 1 of 8 values is +Inf\n"
        "Nothing was written, earlier checkpoints are untouched. Resume from the last good one; if a value is meant to "
        "be non-finite, name it in allow="
    )
    incident = caught.value.incident
    assert incident.phase == "state"
    assert [(f.kind, f.name, f.first_index) for f in incident.findings] == [
        ("parameter", "model.first.weight", (1, 2)),
        ("optimizer_state", "optimizer.state.1.exp_avg_sq", (0,)),
    ]
    assert files_of(tmp_path) == {"step-000002.safetensors"}
    with pytest.raises(nantrap.NonFiniteError):
        store.save(step=3, **run.parts, asynchronous=True)  # immediately, not in the thread


@pytest.mark.parametrize("part", ["ema", "buffers", "scaler", "rate"])
def test_every_part_is_looked_at(tmp_path: Path, part: str) -> None:
    run = make_run()
    run.train(1)
    if part == "ema":
        run.ema.module.first.bias.data[0] = INF
    elif part == "buffers":
        assert run.model.norm.running_var is not None
        run.model.norm.running_var[0] = NAN
    elif part == "scaler":
        run.scaler._scale.fill_(INF)
    else:
        run.optimizer.param_groups[0]["lr"] = NAN
    with pytest.raises(nantrap.NonFiniteError) as caught:
        CheckpointStore(tmp_path).save(step=1, **run.parts)
    expected = {
        "ema": "ema.module.first.bias",
        "buffers": "model.norm.running_var",
        "scaler": "scaler.scale",
        "rate": "optimizer.param_groups.0.lr",
    }
    assert caught.value.incident.findings[0].name == expected[part]
    assert expected[part] in str(caught.value)


def test_more_than_five_are_counted() -> None:
    state = {f"t{i}": torch.tensor([NAN]) for i in range(7)}
    assert len(finite_gate(state)) == 7


def test_what_may_be_nonfinite_is_allowed_by_name(tmp_path: Path) -> None:
    model = nn.Module()
    model.register_buffer("running_min", torch.tensor([INF]))
    with pytest.raises(nantrap.NonFiniteError, match=r"model\.running_min: 1 of 1 values is \+Inf"):
        CheckpointStore(tmp_path).save(step=1, model=model)
    CheckpointStore(tmp_path, allow=["*.running_min"]).save(step=1, model=model)


def test_what_is_deliberate_passes() -> None:
    mask = torch.full((4, 4), -INF).triu(1)
    assert finite_gate({"model": {"mask": mask, "ones": torch.where(mask == 0, 1.0, -INF)}}) == []
    assert finite_gate({"extras": {"best": torch.tensor(INF)}, "scheduler": {"best": INF}}) == []
    assert finite_gate({"model": {"scale": torch.tensor(INF)}}) == ["model.scale"]
    assert finite_gate({"model": {"w": torch.tensor([[0.0, -INF], [0.5, 0.0]])}}) == ["model.w"]
    assert finite_gate({"model": {"mask": torch.tensor([[0.0, INF], [0.0, 0.0]])}}) == ["model.mask"]


def test_it_takes_whatever_people_save() -> None:
    @dataclass
    class Saved:
        weights: object
        step: int = 3

    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    assert finite_gate(model) == []
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    model.weight.data[0, 0] = NAN
    optimizer.state[model.bias]["momentum_buffer"].fill_(INF)
    assert finite_gate(model) == ["weight"]
    assert finite_gate(model.state_dict()) == ["weight"]
    assert finite_gate(Saved([model, optimizer])) == ["weights.0.weight", "weights.1.state.1.momentum_buffer"]
    assert finite_gate({"net": model, "epoch": 3, "note": "x"}) == ["net.weight"]
    assert finite_gate(torch.tensor([NAN])) == ["tensor"]
    assert finite_gate(torch.tensor([NAN], dtype=torch.complex64)) == ["tensor"]


def test_a_best_score_that_begins_at_infinity_passes_and_a_weight_does_not() -> None:
    """Lightning's `ModelCheckpoint(save_top_k=2)` keeps such a number until it has written two checkpoints."""
    callback = {"monitor": "loss", "best_k_models": {}, "kth_value": torch.tensor(INF)}
    state = {"state_dict": {"weight": torch.ones(2)}, "callbacks": {"ModelCheckpoint": callback}}
    assert finite_gate(state) == []
    callback["kth_value"] = torch.tensor(NAN)
    assert finite_gate(state) == ["callbacks.ModelCheckpoint.kth_value"]
    assert finite_gate({"temperature": torch.tensor(INF), "weight": torch.ones(2)}) == ["temperature"]
    assert finite_gate({"name": "adam", "lr": torch.tensor(INF)}) == ["lr"]
    assert finite_gate({"name": "run", "weight": torch.tensor([INF])}) == ["weight"]
