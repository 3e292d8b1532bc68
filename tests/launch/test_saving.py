"""The finite gate: a poisoned state never takes the place of a good file, and data may hold what they like."""

from __future__ import annotations

import copy
import io
import math
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

import nantrap
from nantrap import NonFiniteError
from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings
from nantrap.locate.hooks import Hook


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and an optimizer that made a step, so that they are known."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def poison(model: nn.Module) -> None:
    with torch.no_grad():
        next(model.parameters())[0, 0] = math.nan


@pytest.mark.parametrize("kind", ["state_dict", "nested", "module", "optimizer", "wrapped"])
def test_a_bad_state_is_saved_under_another_name_and_the_last_good_file_stays(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.pt"
    with attached(RunSettings(run_dir=str(tmp_path / "run"))):
        model, optimizer = trained()

        def save() -> None:
            wrapped = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
            states = {
                "state_dict": model.state_dict(), "nested": {"epoch": 3, "model": model.state_dict()}, "module": model,
                "optimizer": {"optimizer": optimizer.state_dict()}, "wrapped": wrapped,
            }  # fmt: skip
            torch.save(states[kind], path)

        save()
        good = path.read_bytes()
        poison(model)
        if kind == "optimizer":
            optimizer.state[next(model.parameters())]["exp_avg"][0, 0] = math.inf
        save()
    assert path.read_bytes() == good
    assert (tmp_path / "model.nonfinite.pt").exists()
    err = capsys.readouterr().err
    assert f"nantrap: {path} would hold non-finite values (" in err
    assert "saved as model.nonfinite.pt instead, the file that was there stays" in err


def test_strict_refuses_and_observe_only_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.pt"
    with attached(RunSettings(run_dir=str(tmp_path / "run"), policy_name="strict")):
        model, _ = trained()
        poison(model)
        with pytest.raises(NonFiniteError, match=r"model\.pt was not saved: 1 value is not finite"):
            torch.save(model.state_dict(), path)
    assert not path.exists()
    with attached(RunSettings(run_dir=str(tmp_path / "run2"), policy_name="observe")):
        model, _ = trained()
        poison(model)
        torch.save(model.state_dict(), path)
    assert path.exists()
    assert f"nantrap: {path} is being saved with non-finite values: weight" in capsys.readouterr().err


def test_safetensors_pass_the_same_gate(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with attached(RunSettings(run_dir=str(tmp_path / "run"), quiet=True)):
        model, _ = trained()
        safetensors.torch.save_file(model.state_dict(), path)
        good = path.read_bytes()
        poison(model)
        safetensors.torch.save_file(model.state_dict(), path)
    assert path.read_bytes() == good
    assert (tmp_path / "model.nonfinite.safetensors").exists()


def test_data_and_strangers_may_hold_nan(tmp_path: Path) -> None:
    with attached(RunSettings(run_dir=str(tmp_path / "run"), policy_name="strict", quiet=True)):
        trained()
        torch.save({"embeddings": torch.full((4, 3), math.nan)}, tmp_path / "cache.pt")
        torch.save(torch.tensor([math.inf]), tmp_path / "scores.pt")
    assert torch.load(tmp_path / "cache.pt")["embeddings"].isnan().all()


def test_a_mask_that_was_infinite_from_the_start_is_saved(tmp_path: Path) -> None:
    class Masked(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 3)
            self.register_buffer("mask", torch.tensor([0.0, 2.0, -math.inf]))

    with attached(RunSettings(run_dir=str(tmp_path / "run"), policy_name="strict", quiet=True)):
        model = Masked()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        torch.save(model.state_dict(), tmp_path / "model.pt")
    assert (tmp_path / "model.pt").exists()


def test_a_stream_is_written_with_a_warning_or_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for policy in ("skip", "strict"):
        with attached(RunSettings(run_dir=str(tmp_path / policy), policy_name=policy)):
            model, _ = trained()
            poison(model)
            stream = io.BytesIO()
            if policy == "skip":
                torch.save(model.state_dict(), stream)
                assert stream.getvalue()
            else:
                with pytest.raises(NonFiniteError, match="a checkpoint was not saved"):
                    torch.save(model.state_dict(), stream)
    assert "nantrap: a checkpoint is being saved with non-finite values: weight" in capsys.readouterr().err


def test_what_the_gate_cannot_look_at_is_saved_anyway(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Odd:
        def state_dict(self) -> dict[str, int]:
            raise LookupError("not now")

        def __reduce__(self) -> tuple[type[dict], tuple[()]]:  # type: ignore[type-arg]
            return dict, ()

    with attached(RunSettings(run_dir=str(tmp_path / "run"))):
        model, _ = trained()
        torch.save({"model": model.state_dict(), "kind": nn.Linear}, tmp_path / "class.pt")
        assert "unseen" not in capsys.readouterr().err
        torch.save({"model": model.state_dict(), "odd": Odd()}, tmp_path / "odd.pt")
    assert f"nantrap: {tmp_path / 'odd.pt'} is saved unchecked: LookupError: not now" in capsys.readouterr().err
    assert (tmp_path / "class.pt").exists()
    assert (tmp_path / "odd.pt").exists()


@pytest.mark.parametrize("rename", [os.replace, os.rename, shutil.move, lambda old, new: Path(old).replace(new)])
def test_a_temporary_file_that_is_renamed_does_not_replace_a_good_one(
    rename: Callable[[str, str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, temporary = tmp_path / "model.pt", tmp_path / "model.pt.tmp"
    with attached(RunSettings(run_dir=str(tmp_path / "run"))):
        rename_now = getattr(os, rename.__name__) if rename.__name__ in ("replace", "rename") else rename
        model, _ = trained()
        for bad in (False, True):
            if bad:
                good = path.read_bytes()
                poison(model)
            torch.save(model.state_dict(), temporary)
            rename_now(str(temporary), str(path))
    assert path.read_bytes() == good
    assert torch.load(tmp_path / "model.nonfinite.pt")["weight"].isnan().any()
    assert not list(tmp_path.glob("*.tmp"))
    assert "was renamed to model.nonfinite.pt instead" in capsys.readouterr().err


def test_a_pickled_model_with_our_hooks_opens_without_nantrap(tmp_path: Path) -> None:
    class Owner:
        def called(self, *_: Any) -> None:
            raise AssertionError

    owner, model = Owner(), nn.Sequential(nn.Linear(2, 2))
    model[0].register_forward_hook(Hook(owner.called))
    model.register_forward_pre_hook(Hook(owner.called))
    model.register_load_state_dict_post_hook(Hook(owner.called))
    torch.save(model, tmp_path / "model.pt")
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(copy.deepcopy(model)))
    assert nantrap.audit(tmp_path / "model.pt").checkpoints[0].verdict == "ok"
    code = (
        "import sys; sys.modules['nantrap'] = None\n"
        "import pickle, torch\n"
        "for model in (torch.load('model.pt', weights_only=False), pickle.load(open('model.pkl', 'rb'))):\n"
        "    model.load_state_dict(model.state_dict()); assert model(torch.ones(1, 2)).shape == (1, 2)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=120)
