"""`nantrap run --watch`: values of an unchanged script followed by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import nantrap
from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.alpha


def test_a_limit_that_is_crossed_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Scaled()
    with attached(RunSettings(run_dir=str(tmp_path), watch="al*<1, beta")):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
        for _ in range(5):
            optimizer.zero_grad()
            (-model(torch.ones(2))).mean().backward()
            optimizer.step()
    said = capsys.readouterr().err
    assert said.count("watched value alpha: 1.25 is above 1") == 1
    assert "--watch beta: no parameter or buffer of Scaled has such a name; names look like alpha" in said
    lines = [json.loads(line) for line in (tmp_path / "journal-r0.jsonl").read_text().splitlines()]
    assert [line["watch"]["alpha"] for line in lines if "watch" in line] == [0.5, 0.75, 1.0, 1.25, 1.5]


@pytest.mark.parametrize("text", ["<1", "alpha<", "alpha<big", "alpha>nan"])
def test_a_wrong_text_is_refused_before_the_script_runs(text: str) -> None:
    with pytest.raises(nantrap.UsageError, match="expected a name, NAME<LARGEST or NAME>LEAST"):
        RunSettings(watch=text)
