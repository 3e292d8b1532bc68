"""`torch.compile` and two ranks that average gradients: no graph break more than without us, faults contained."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings
from ranked import join, start

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file")]
FORMS = ("step", "outside", "inside")
STEPS = 5
BAD = 3


def train(form: str, rank: int, *, bad: bool) -> dict[str, Any]:
    """What is compiled: the whole step, the model around DDP, or the model inside it."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    inner: Any = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    parameters = list(inner.parameters())
    if form == "inside":
        inner = torch.compile(inner, backend="eager")
    model: Any = DistributedDataParallel(inner)
    if form == "outside":
        model = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(parameters, lr=0.01)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        return loss.detach()

    run = torch.compile(step, backend="eager") if form == "step" else step
    for number in range(STEPS):
        x = torch.ones(5, 4) * (number + 1 + rank)
        if bad and number == BAD and rank == 1:
            x[2, 1] = float("nan")
        run(x)
    return {
        "breaks": sum(counters["graph_break"].values()),
        "graphs": counters["stats"]["unique_graphs"],
        "weights": [p.detach().double().sum().item().hex() for p in parameters],
        "finite": all(bool(p.isfinite().all()) for p in parameters),
    }


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # the compiler's own
    join(rank, folder, seconds=120)
    results: dict[str, Any] = {}
    for form in FORMS:
        results[form] = {"plain": train(form, rank, bad=False)}
        for name in ("guarded", "bad"):
            with attached(RunSettings(run_dir=f"{folder}/{form}-{name}", quiet=True)) as attachment:
                results[form][name] = train(form, rank, bad=name == "bad")
                (loop,) = attachment.registry
                results[form][name]["steps"] = [loop.tally.attempted, loop.tally.applied]
                results[form][name]["notes"] = loop.session.ranks.stands_down
    Path(folder, f"result-{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("compiled")
    start(worker, str(folder))
    return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_added_while_healthy(form: str, compiled: list[dict[str, Any]]) -> None:
    for rank in compiled:
        plain, guarded = rank[form]["plain"], rank[form]["guarded"]
        assert guarded["breaks"] <= plain["breaks"]
        assert guarded["graphs"] <= plain["graphs"]
        assert guarded["weights"] == plain["weights"]
        assert guarded["steps"] == [STEPS, STEPS]
        assert not guarded["notes"]


@pytest.mark.parametrize("form", FORMS)
def test_a_fault_on_one_rank_is_contained_on_both(form: str, compiled: list[dict[str, Any]]) -> None:
    zero, one = (rank[form]["bad"] for rank in compiled)
    assert zero["steps"] == one["steps"] == [STEPS, STEPS - 1]
    assert zero["weights"] == one["weights"]
    assert zero["finite"]
