"""`--clip`, `--save-every` and `--rollback` under `nantrap run` do what they do for a `Guard`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LinearLR, SequentialLR

import nantrap
from launch.loops import Batches, Net, batches, state
from nantrap.errors import FormatError, UsageError
from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings, as_environment, read_settings
from nantrap.launch.summary import RunSummary


def train(data: Batches, *, clip: float | None = None, scaler: Any = None) -> list[Tensor]:
    torch.manual_seed(3)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for x, y in data:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        if scaler is None:
            loss.backward()
        else:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    return state(net)


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def lines(run_dir: Path, key: str = "action") -> list[dict[str, Any]]:
    text = (run_dir / "journal-r0.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, text) if key in line]


@pytest.mark.parametrize("scaled", [False, True])
def test_clip_is_the_same_as_clipping_in_the_script(tmp_path: Path, scaled: bool) -> None:
    def scaler() -> Any:
        return torch.amp.GradScaler("cpu", init_scale=256.0) if scaled else None

    plain, wanted = train(batches(), scaler=scaler()), train(batches(), clip=0.5, scaler=scaler())
    with attached(RunSettings(run_dir=str(tmp_path), clip=0.5)):
        clipped = train(batches(), scaler=scaler())
    assert same(clipped, wanted)
    assert not same(clipped, plain)
    assert max(line["grad_norm"] for line in lines(tmp_path)) > 0.5, "the journal has the norm before the clipping"


def test_a_script_that_clips_itself_is_clipped_to_the_lower_norm(tmp_path: Path) -> None:
    wanted = train(batches(), clip=0.25)
    with attached(RunSettings(run_dir=str(tmp_path), clip=1.0)):
        assert same(train(batches(), clip=0.25), wanted), "already below"
    with attached(RunSettings(run_dir=str(tmp_path), clip=0.25)):
        again = train(batches(), clip=1.0)
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(again, wanted, strict=True))


def test_save_every_keeps_finite_checkpoints_of_all_that_takes_part(tmp_path: Path) -> None:
    with attached(RunSettings(run_dir=str(tmp_path), save_every=4)) as attachment:
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        warm = LinearLR(optimizer, total_iters=3)
        schedule = SequentialLR(optimizer, [warm, LinearLR(optimizer, total_iters=9)], [3])
        kept: dict[str, Tensor] = {}
        for number, (x, y) in enumerate(batches(bad=5)):
            if number == 8:
                kept = {name: value.clone() for name, value in net.state_dict().items()}
                rate = optimizer.param_groups[0]["lr"]
            optimizer.zero_grad()
            F.mse_loss(net(x), y).backward()
            optimizer.step()
            schedule.step()
        summary = RunSummary.of(attachment)
    store = nantrap.CheckpointStore(tmp_path / "checkpoints")
    assert [saved.step for saved in store.checkpoints()] == [12, 8, 4]
    assert f"last good checkpoint: {tmp_path}/checkpoints/step-000012.safetensors (step 12)" in summary.lines(0)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    schedule = SequentialLR(
        optimizer, [LinearLR(optimizer, total_iters=3), LinearLR(optimizer, total_iters=9)], milestones=[3]
    )
    store.load(8, model=net, optimizer=optimizer, scheduler=schedule)
    assert all(torch.equal(value, kept[name]) for name, value in net.state_dict().items())
    # the checkpoint is made within optimizer.step(), so before schedule.step(); the sixth step was refused and held
    assert schedule.last_epoch == 6
    assert rate == pytest.approx(schedule.get_last_lr()[0], rel=0.2)


def test_plain_tensors_are_saved_by_name(tmp_path: Path) -> None:
    with attached(RunSettings(run_dir=str(tmp_path), save_every=2)):
        weight = torch.zeros(6, 1, requires_grad=True)
        optimizer = torch.optim.SGD([weight], 0.1)
        for x, y in batches(2):
            optimizer.zero_grad()
            F.mse_loss(x @ weight, y).backward()
            optimizer.step()
    saved = nantrap.CheckpointStore(tmp_path / "checkpoints").load().state["model"]
    assert torch.equal(saved["tensor0"], weight.detach())


def test_a_rollback_lowers_the_rate_for_good_although_the_script_has_a_schedule(tmp_path: Path) -> None:
    """`LambdaLR` computes each rate from its own base: it has to be lowered as well."""
    settings = RunSettings(run_dir=str(tmp_path), rollback=True, max_skips=1)
    with attached(settings) as attachment:
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), 0.01)
        schedule = LambdaLR(optimizer, lambda step: 1.0)
        for number, (x, y) in enumerate(batches(12)):
            optimizer.zero_grad()
            F.mse_loss(net(x * (torch.nan if number in (5, 6) else 1.0)), y).backward()
            optimizer.step()
            schedule.step()
        (loop,) = attachment.registry
        assert loop.tally.rollbacks == 1
    rates = [line["lr"][0] for line in lines(tmp_path)]
    assert rates[:5] == [0.01] * 5
    assert rates[7:] == [0.005] * 5


class Growing(nn.Module):
    """An output in float16 that grows by a factor in each pass."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor, self.passes = factor, 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return (x * self.factor**self.passes).half()


@pytest.mark.parametrize(("headroom", "factor", "warns"), [(4, 1.2, True), (4, 1.0, False), (0, 1.2, False)])
def test_headroom_warns_before_an_output_overflows(
    headroom: int, factor: float, warns: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    with attached(RunSettings(run_dir=str(tmp_path), headroom=headroom)):
        net = nn.Sequential(nn.Linear(2, 2), Growing(factor))
        optimizer = torch.optim.SGD(net.parameters(), 1e-9)
        for _ in range(40):
            optimizer.zero_grad()
            (1e-6 * net(torch.ones(1, 2)).float().square().mean()).backward()
            optimizer.step()
    assert ("bits of headroom left and overflows in about" in capsys.readouterr().err) is warns


def test_the_options_are_read_from_all_places(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.nantrap.run]\nclip = 2\nsave-every = 50\nresume-lr = 'configured'\n"
    )
    found = read_settings({}, environment={"NANTRAP_CLIP": "0.5"}, folder=tmp_path)
    assert (found.clip, found.save_every, found.resume_lr) == (0.5, 50, "configured")
    assert read_settings({}, environment=as_environment(found), folder=Path("/")) == found
    with pytest.raises(UsageError, match=r"clip is -1\.0: expected a positive number"):
        RunSettings(clip=-1.0)
    with pytest.raises(UsageError, match="save_every is -1: expected a number of steps, or 0 for never"):
        RunSettings(save_every=-1)
    with pytest.raises(FormatError, match="NANTRAP_CLIP is 'hard': expected a number"):
        read_settings({}, environment={"NANTRAP_CLIP": "hard"}, folder=tmp_path)
