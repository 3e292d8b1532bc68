"""`torch.distributed.checkpoint` under guard: FSDP2 shards and Stateful objects, each policy, on two real ranks."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import nantrap
from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings
from ranked import join, start
from sharding import needs_sharding

pytestmark = [pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file"), needs_sharding]
POLICIES = ("skip", "strict", "observe")


def train() -> tuple[nn.Module, torch.optim.Optimizer]:
    """FSDP2, two steps."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(3, 6)).square().mean().backward()
        optimizer.step()
    return model, optimizer


class App:
    """As the tutorial of `torch.distributed.checkpoint` writes it: makes its state when it is asked."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        weights, state = get_state_dict(self.model, self.optimizer)
        return {"model": weights, "optimizer": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


def worker(rank: int, folder: str) -> None:
    join(rank, folder, seconds=60)
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    results: dict[str, Any] = {}
    for policy in POLICIES:
        place = Path(folder, policy)
        said = io.StringIO()
        raised = {}
        with attached(RunSettings(run_dir=str(place / "run"), policy_name=policy)), contextlib.redirect_stderr(said):
            model, optimizer = train()
            dcp.save({"app": App(model, optimizer)}, checkpoint_id=str(place / "good"))
            dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=str(place / "plain"))
            if rank == 1:  # in the shard of one rank only
                with torch.no_grad():
                    last: Any = model.get_submodule("2").weight
                    last.to_local()[0, 0] = float("nan")
            for name, state in (
                ("good", {"app": App(model, optimizer)}),
                ("plain", {"model": get_model_state_dict(model)}),
            ):
                try:
                    dcp.save(state, checkpoint_id=str(place / name))
                except nantrap.NonFiniteError as error:
                    raised[name] = str(error).replace(str(place), "")
            future: Any = None
            try:
                future = dcp.async_save({"app": App(model, optimizer)}, checkpoint_id=str(place / "later"))
            except nantrap.NonFiniteError as error:
                raised["later"] = str(error).replace(str(place), "")
            if future is not None:
                future.result()
        results[policy] = {"said": said.getvalue().replace(str(place), ""), "raised": raised}
        dist.barrier()
    Path(folder, f"result-{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Every policy in turn, in two processes; and what each rank said and raised."""
    folder = tmp_path_factory.mktemp("saving")
    start(worker, str(folder))
    return folder, [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(2)]


def names(folder: Path, policy: str) -> list[str]:
    return sorted(path.name for path in (folder / policy).iterdir() if path.name != "run")


Saved = tuple[Path, list[dict[str, Any]]]


def test_a_bad_checkpoint_is_renamed_on_all_ranks(saved: Saved) -> None:
    folder, results = saved
    assert names(folder, "skip") == ["good", "good.nonfinite", "later", "plain", "plain.nonfinite"]
    said = results[0]["skip"]["said"]
    assert "/good would hold non-finite values (2.weight): saved as good.nonfinite instead" in said
    assert "what was there stays" in said
    assert "/later is being saved with non-finite values: 2.weight" in said
    assert not results[0]["skip"]["raised"]
    assert "non-finite" not in results[1]["skip"]["said"], "all ranks write one checkpoint, and one says so"


def test_strict_saves_nothing_on_any_rank(saved: Saved) -> None:
    folder, results = saved
    assert names(folder, "strict") == ["good", "plain"]
    assert results[0]["strict"]["raised"] == results[1]["strict"]["raised"]
    assert results[0]["strict"]["raised"]["good"] == "/good was not saved: these are not finite: 2.weight"
    assert sorted(results[0]["strict"]["raised"]) == ["good", "later", "plain"]


def test_observe_only_says_so(saved: Saved) -> None:
    folder, results = saved
    assert names(folder, "observe") == ["good", "later", "plain"]
    assert "/good is being saved with non-finite values: 2.weight" in results[0]["observe"]["said"]
    assert not results[0]["observe"]["raised"]
