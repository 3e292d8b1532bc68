"""What is saved comes back to the last bit, in another process's objects too, and can be read without nantrap."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn
from torch.optim import lr_scheduler

import nantrap
from checkpoints.store.runs import INF, files_of, make_run
from nantrap.checkpoints import CheckpointStore
from nantrap.checkpoints.audit import audit


def test_a_resumed_run_continues_as_if_nothing_had_happened(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    run = make_run()
    run.train(7)
    path = store.save(step=7, **run.parts, data_position={"epoch": 1, "batch": 3}, extras={"best": INF})
    expected = run.train(9)
    other = make_run(seed=5)
    other.train(2)
    loaded = store.load(**other.parts)
    assert (loaded.step, loaded.path, loaded.instead_of) == (7, path, ())
    assert loaded.data_position == {"epoch": 1, "batch": 3}
    assert loaded.extras == {"best": INF}
    assert [loss.hex() for loss in other.train(9)] == [loss.hex() for loss in expected]
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name]), name
    assert torch.equal(run.model.seen, other.model.seen)
    assert run.scaler.state_dict() == other.scaler.state_dict()
    assert run.optimizer.param_groups[0]["lr"] == other.optimizer.param_groups[0]["lr"]


def test_the_folder_says_what_is_in_it(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    path = store.save(step=12, model=nn.Linear(2, 2))
    entry = json.loads((tmp_path / "manifest.json").read_text())["files"]["step-000012.safetensors"]
    assert entry["bytes"] == path.stat().st_size
    assert (entry["step"], entry["pinned"], entry["suspect"]) == (12, False, "")
    pointer = json.loads((tmp_path / "last-good.json").read_text())
    assert pointer == {
        "schema": "nantrap.last-good/1",
        "file": "step-000012.safetensors",
        "step": 12,
        "sha256": entry["sha256"],
    }
    good = store.last_good()
    assert good is not None
    assert (good.step, good.path, good.sha256) == (12, path, entry["sha256"])
    assert store.verify(good) == ""
    assert not [p.name for p in tmp_path.iterdir() if p.name.startswith(".writing")]


def test_the_safetensors_library_reads_it(tmp_path: Path) -> None:
    run = make_run()
    run.train(2)
    path = CheckpointStore(tmp_path).save(step=2, **run.parts)
    with safe_open(path, framework="pt") as file:
        assert torch.equal(file.get_tensor("model.first.weight"), run.model.first.weight)
        names = set(file.keys())
    assert "optimizer.state.0.exp_avg" in names
    # tied weights are stored once
    assert ("model.second.weight" in names) != ("model.third.weight" in names)


def test_the_audit_reads_it(tmp_path: Path) -> None:
    run = make_run()
    run.train(3)
    store = CheckpointStore(tmp_path)
    store.save(step=3, **run.parts)
    run.train(3)
    newest = store.save(step=6, **run.parts)
    report = audit(tmp_path)
    assert [c.format for c in report.checkpoints] == ["nantrap", "nantrap"]
    assert report.healthy
    assert report.last_good == str(newest)
    facts = report.checkpoints[-1].facts
    assert facts["step"] == 6
    assert facts["optimizer_step"] == 6
    assert facts["lr"] == [run.optimizer.param_groups[0]["lr"]]
    assert facts["scale"] == run.scaler.get_scale()


def test_the_audit_judges_each_tensor_by_its_role(tmp_path: Path) -> None:
    state = {"state": {0: {"exp_avg_sq": torch.tensor([1.0, -1.0])}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    CheckpointStore(tmp_path).save(step=1, model={"weight": torch.ones(2)}, optimizer=state)
    (problem,) = audit(tmp_path).problems
    assert (problem.code, problem.tensor, problem.role) == ("NT904", "optimizer.state.0.exp_avg_sq", "optimizer")


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(2.5, dtype=torch.bfloat16),
        torch.randn(3, 2).t(),
        torch.zeros(0, 3),
        torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128),
        torch.ones(2).to(torch.float8_e4m3fn),
        torch.tensor([True, False]),
    ],
    ids=["bfloat16", "transposed", "empty", "complex", "float8", "bool"],
)
def test_tensors_of_every_kind_come_back(tmp_path: Path, value: torch.Tensor) -> None:
    store = CheckpointStore(tmp_path)
    store.save(step=0, extras={"tensor": value})
    back = store.load().extras["tensor"]
    assert back.dtype == value.dtype
    assert back.shape == value.shape
    assert back.to(torch.complex128).equal(value.to(torch.complex128))


def test_values_of_every_kind_come_back(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "numbers": [1, -0.0, 0.1, 2**70, True, None, "ä"],
        "nested": ({1: "one", (2, 3): "two"}, Counter({30: 2}), {4, 5}),
        "array": np.arange(6, dtype=np.int16).reshape(2, 3),
        "numpy number": np.float32(0.5),
        "bytes": b"\x00\xff",
        "dtype": torch.bfloat16,
        "odd": [INF, math.pi],
    }
    store = CheckpointStore(tmp_path)
    store.save(step=0, extras=values)
    back = dict(store.load().extras)
    assert np.array_equal(back.pop("array"), values.pop("array"))
    assert back == values
    assert math.copysign(1, back["numbers"][1]) == -1


SCHEDULERS = {
    "one_cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=50),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=50),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "milestones": lambda o: lr_scheduler.MultiStepLR(o, milestones=[2, 5]),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.CosineAnnealingLR(o, 40)], milestones=[3]
    ),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=4, cycle_momentum=False),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedules_come_back(tmp_path: Path, name: str) -> None:
    def make() -> tuple[Any, Any]:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
        return optimizer, SCHEDULERS[name](optimizer)

    def rates(optimizer: Any, scheduler: Any, count: int) -> list[float]:
        seen = []
        for _ in range(count):
            optimizer.step()
            scheduler.step(*([1.0] if name == "plateau" else []))
            seen.append(optimizer.param_groups[0]["lr"])
        return seen

    optimizer, scheduler = make()
    rates(optimizer, scheduler, 4)
    store = CheckpointStore(tmp_path)
    store.save(step=4, optimizer=optimizer, scheduler=scheduler)
    expected = rates(optimizer, scheduler, 6)
    other, other_scheduler = make()
    store.load(optimizer=other, scheduler=other_scheduler)
    assert rates(other, other_scheduler, 6) == expected


def test_float32_moments_of_half_weights_stay_float32(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.state[weight]["master"] = torch.tensor([1.001, 1.002, 1.003])
    store = CheckpointStore(tmp_path)
    store.save(step=1, optimizer=optimizer)
    other = torch.optim.SGD([nn.Parameter(torch.ones(3, dtype=torch.bfloat16))], lr=0.1)
    store.load(optimizer=other)
    (state,) = other.state.values()
    assert torch.equal(state["master"], torch.tensor([1.001, 1.002, 1.003]))


def test_a_compiled_and_a_plain_model_have_the_same_keys(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    store = CheckpointStore(tmp_path)
    store.save(step=1, model=torch.compile(model, backend="eager"))
    plain = nn.Linear(2, 2)
    store.load(model=plain)
    assert torch.equal(plain.weight, model.weight)


def test_the_file_holds_no_pickle(tmp_path: Path) -> None:
    run = make_run()
    run.train(1)
    path = CheckpointStore(tmp_path).save(step=1, **run.parts)
    code = (
        "import builtins, pickle, sys\n"
        "def refuse(*a, **k): raise AssertionError('unpickled')\n"
        "import torch, nantrap.checkpoints as c\n"
        "pickle.load = pickle.loads = pickle.Unpickler = torch.load = refuse\n"
        "print(c.CheckpointStore(sys.argv[1]).load(rng=False).step)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert result.stdout.strip() == "1"
    assert path.exists()


# ---- which one


def filled(tmp_path: Path, steps: tuple[int, ...] = (100, 200, 300), **options: Any) -> CheckpointStore:
    store = CheckpointStore(tmp_path / "store", **options)
    for step in steps:
        store.save(step=step, model={"weight": torch.full((4,), float(step))}, rng=False)
    return store


def test_resume_by_word_step_and_path(tmp_path: Path) -> None:
    store = filled(tmp_path)
    assert store.load().step == 300
    assert store.load("latest").step == 300
    assert store.load(200).step == 200
    assert store.load(store.folder / "step-000100.safetensors").step == 100
    assert store.load("step-000100.safetensors").step == 100
    with pytest.raises(nantrap.UsageError, match="has no checkpoint of step 250; there are steps 300, 200, 100"):
        store.load(250)
    with pytest.raises(nantrap.UsageError, match=r"resume='best': neither last_good, latest, a step .* nor a file"):
        store.load("best")


def test_an_empty_store_says_so(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "nothing")
    assert store.last_good() is None
    assert not (tmp_path / "nothing").exists()
    with pytest.raises(nantrap.UsageError, match="has no checkpoint; save one first"):
        store.load()


def test_the_last_save_counts_not_the_highest_step(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.save(step=150, model={"weight": torch.zeros(4)})  # after going back to 100
    assert store.load().step == 150


def test_the_same_step_twice_overwrites_nothing(tmp_path: Path) -> None:
    store = filled(tmp_path, (100,))
    again = store.save(step=100, model={"weight": torch.zeros(4)})
    assert again.name == "step-000100-2.safetensors"
    assert files_of(store.folder) == {"step-000100.safetensors", "step-000100-2.safetensors"}
    assert store.load(100).state["model"]["weight"].sum() == 0


def test_a_suspect_one_is_skipped_but_not_removed(tmp_path: Path) -> None:
    store = filled(tmp_path, keep=1)
    assert files_of(store.folder) == {"step-000300.safetensors"}
    store.mark_suspect(store.checkpoints()[0], "the run diverged from it twice")
    assert store.last_good() is None
    with pytest.raises(
        nantrap.UsageError, match=r"no good checkpoint left \(step-000300.safetensors: the run diverged"
    ):
        store.load()
    assert store.load("latest").step == 300


# ---- what is kept


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    store = filled(tmp_path, (1, 2, 3, 4, 5), keep=2)
    assert [saved.step for saved in store.checkpoints()] == [5, 4]
    assert files_of(store.folder) == {"step-000004.safetensors", "step-000005.safetensors"}


def test_a_pinned_one_is_kept_until_it_is_let_go(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    store.save(step=1, model={"w": torch.ones(1)}, pin=True)
    store.save(step=2, model={"w": torch.ones(1)})
    store.save(step=3, model={"w": torch.ones(1)})
    assert [saved.step for saved in store.checkpoints()] == [3, 1]
    store.pin(store.checkpoints()[1], pinned=False)
    store.save(step=4, model={"w": torch.ones(1)})
    assert [saved.step for saved in store.checkpoints()] == [4]


def test_the_last_good_one_is_kept_beyond_the_number(tmp_path: Path) -> None:
    store = filled(tmp_path, (1, 2, 3), keep=3)
    for saved in store.checkpoints()[:2]:
        store.mark_suspect(saved, "diverged")
    store.keep = 2
    for step in (4, 5, 6):
        store.save(step=step, model={"w": torch.ones(1)})
        store.mark_suspect(store.checkpoints()[0], "diverged")
    good = store.last_good()
    assert good is not None
    assert good.step == 1
    assert good.path.exists()


# ---- wrong use


def test_wrong_use_is_reported(tmp_path: Path) -> None:
    with pytest.raises(nantrap.UsageError, match=r"CheckpointStore\(keep=0\): expected an integer, at least 1"):
        CheckpointStore(tmp_path, keep=0)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(nantrap.UsageError, match="this is a file; give a folder"):
        CheckpointStore(file)
    store = CheckpointStore(tmp_path / "store")
    with pytest.raises(nantrap.UsageError, match=r"save\(step=-1\): the number of steps made so far"):
        store.save(step=-1, model=nn.Linear(1, 1))
    with pytest.raises(nantrap.UsageError, match="there is nothing to save; give at least model="):
        store.save(step=1)
    with pytest.raises(nantrap.UsageError, match=r"extras\.fn is a builtins\.function, which has no safe form on disk"):
        store.save(step=1, extras={"fn": lambda: None})
    with pytest.raises(nantrap.UsageError, match=r"model\.w is on the meta device"):
        store.save(step=1, model={"w": torch.empty(1, device="meta")})
    with pytest.raises(nantrap.UsageError, match=r"save\(ema=function\): expected something with state_dict"):
        store.save(step=1, ema=lambda: None)
    with pytest.raises(nantrap.UsageError, match=r"two tensors are named extras\.a\.b: a key with a dot"):
        store.save(step=1, extras={"a": {"b": torch.ones(1)}, "a.b": torch.zeros(1)})
    assert store.checkpoints() == ()


def test_a_part_that_was_not_saved_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(step=1, model=nn.Linear(2, 2))
    model = nn.Linear(2, 2)
    before = model.weight.clone()
    with pytest.raises(nantrap.UsageError, match=r"holds no optimizer state \(it holds model\); leave optimizer= out"):
        store.load(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert torch.equal(model.weight, before)


def test_a_model_that_does_not_fit(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(step=1, model=nn.Linear(2, 2))
    with pytest.raises(
        nantrap.UsageError, match=r"does not fit the model it is loaded into: [\s\S]*size mismatch for weight"
    ):
        store.load(model=nn.Linear(3, 2))


class Sharded(torch.Tensor):
    """As a DTensor looks to us: a tensor of which this rank holds a part."""

    def to_local(self) -> torch.Tensor:
        return torch.ones(1)


def test_sharded_state_is_refused_with_a_remedy(tmp_path: Path) -> None:
    sharded = torch.ones(2).as_subclass(Sharded)
    with pytest.raises(nantrap.UsageError, match=r"model\.w is a Sharded: .*torch\.distributed\.checkpoint"):
        CheckpointStore(tmp_path).save(step=1, model={"w": sharded})


def test_another_programs_manifest_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"name": "web app"}')
    with pytest.raises(nantrap.UsageError, match="is not a manifest of nantrap"):
        CheckpointStore(tmp_path).save(step=1, model=nn.Linear(1, 1))
    assert (tmp_path / "manifest.json").read_text() == '{"name": "web app"}'


def test_a_default_device_changes_nothing(tmp_path: Path) -> None:
    """Programs set it once for all (`torch.set_default_device("cuda")`); what a file holds is read on the host."""
    store = CheckpointStore(tmp_path)
    run = make_run()
    run.train(3)
    store.save(step=3, **run.parts)
    other = make_run(seed=5)
    with torch.device("meta"):
        assert store.load(**other.parts).step == 3
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name]), name
