"""The finite gate: a poisoned state never takes the place of a good file, and data may hold what they like."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from nantrap import NonFiniteError
from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings


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
    assert "saved as model.nonfinite.pt instead, the last good file of that name stays" in err


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
