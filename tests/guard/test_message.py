"""What the message of a bad step holds, in both forms: where the loop is, every loss term, the check of the batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nantrap import Bundle, Guard, Policy, probe
from nantrap.report import diagnostic


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        scaled = probe("scaled", self.layer(x) / x[:, :1])
        assert isinstance(scaled, Tensor)
        return scaled


@pytest.mark.parametrize("form", ["attempt", "two_line"])
def test_the_message_of_a_bad_step(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model = Net()
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), max_grad_norm=1.0)
    batch = {"image": torch.ones(3, 4), "label": torch.tensor([0, 1, 2])}
    batch["image"][1, 0] = 0.0

    def loss(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"fit": model(batch["image"]).square().mean(), "size": model.layer.weight.square().mean() * 0 + 0.25}

    guard.set_position(epoch=3, batch=118)
    if form == "attempt":
        guard.attempt(loss, batch)
    else:
        guard.backward(loss(batch))
        guard.step()
    said = " ".join(capsys.readouterr().err.split())
    assert "nantrap: step 0 skipped; epoch 3, batch 118; lr 0.01; 1 of 5 in a row error[NT202]: " in said
    assert "= where: step 0, epoch 3, batch 118, rank 0, forward" in said
    assert "= terms: fit +Inf, size 0.25" in said or "= terms: fit NaN, size 0.25" in said
    if form == "attempt":
        assert "= batch: image 3×4 float32 from 0 to 1, label 3 int64 from 0 to 2; all finite" in said
    else:
        assert "= input: x 3×4 float32 from 0 to 1; all finite" in said
    assert "= probe: scaled: " in said
    assert "shape 3×2, float32; finite values from" in said
    assert ", mean " in said
    assert "= risk: medium" in said
    assert "= did: nantrap skipped the step and restored the training state" in said


def test_the_printed_message_is_brief_and_says_where_the_rest_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NANTRAP_VERBOSE")
    model = Net()
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.01))
    image = torch.ones(3, 4)
    image[1, 0] = 0.0
    outcome = guard.attempt(lambda batch: model(batch).square().mean(), image)
    printed = capsys.readouterr().err
    lines = printed[printed.index("nantrap: step 0 skipped; ") :].splitlines()
    labels = [line.split(":")[0].strip("= ") for line in lines if line.startswith("   = ")]
    assert set(labels) == {"proof", "where", "sample", "probe", "did"}  # the probe is where the first NaN was made
    assert outcome.incident is not None
    assert [line.split(":")[0] for line in lines[:2]] == ["nantrap", "error[NT202]"]
    assert Path(lines[2].removeprefix("  --> ").split(":")[0]).name == Path(__file__).name
    assert sum("NT202" in line and "zero" in line for line in lines) == 1  # what happened is said once
    said = diagnostic(outcome.incident)
    hidden = sum(note.detail for note in said.notes) + (said.advice != said.help)
    assert hidden >= 4  # terms, found, risk, batch
    assert lines[-1] == f"more: nantrap explain NT202 · {hidden} more lines with NANTRAP_VERBOSE=1"


def test_without_a_known_cause_everything_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NANTRAP_VERBOSE")
    model = nn.Linear(4, 1)
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), policy=Policy(diagnose="locate"))
    outcome = guard.attempt(lambda batch: (model(batch) / 0.0).sum(), torch.ones(2, 4))
    assert outcome.incident is not None
    head, _, rest = str(outcome.incident).partition("  --> ")
    printed = capsys.readouterr().err
    assert head in printed
    assert rest.partition("\n")[2] in printed


@pytest.mark.parametrize(("form", "kept"), [("attempt", True), ("two_line", False)])
def test_only_a_batch_that_was_given_to_attempt_is_written(form: str, kept: bool, tmp_path: Path) -> None:
    """In the two-line form no batch is known with which a function could be called: the replay says so."""
    model = nn.Linear(4, 1)
    policy = Policy(bundle=Bundle(kind="full", data=True))
    with Guard(
        model, torch.optim.SGD(model.parameters(), lr=0.01), run_dir=tmp_path, policy=policy, quiet=True
    ) as guard:
        for number in range(2):
            batch = {"x": torch.ones(3, 4), "count": torch.tensor(float(1 - number))}

            def loss(batch: dict[str, Tensor]) -> Tensor:
                return model(batch["x"]).sum() / batch["count"]

            if form == "attempt":
                guard.attempt(loss, batch)
            else:
                guard.backward(loss(batch))
                guard.step()
    (bundle,) = (tmp_path / "incidents").iterdir()
    assert (bundle / "batch.safetensors").exists() is kept
