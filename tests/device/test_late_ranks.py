"""Two ranks on the device: no healthy step waits, and both skip the same bad one."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from device import host_group, simulated
from guard.ranks import test_ranks_late as late
from ranked import start

pytestmark = pytest.mark.slow
FORMS = ("attempt", "script")
SCENARIOS: dict[str, dict[str, Any]] = {
    "plain": {"form": "script", "guarded": False},
    **{f"healthy_{form}": {"form": form, "sync": "auto"} for form in FORMS},
    **{f"bad_{form}_step": {"form": form, "sync": "step", "fault": "gradient"} for form in FORMS},
    **{f"bad_{form}_auto": {"form": form, "sync": "auto", "fault": "gradient"} for form in FORMS},
}  # fmt: skip


def _train_all(rank: int, folder: str) -> None:
    simulated.start()
    host_group.register()
    plain_between = late.between
    seen: dict[str, Any] = {}

    def counting(rank: int, net: Any, step: int, fault: str) -> None:
        """Counts the steps between the first that is read late and the last."""
        if step == late.FIRST + 1:
            torch.ops.sim.reset()
            host_group.exchanges = 0
        if step == late.STEPS - 1:
            seen["waits"] = simulated.counts().waits
            seen["exchanges"] = host_group.exchanges
        plain_between(rank, net, step, fault)

    late.between = counting
    for name, options in SCENARIOS.items():
        dist.init_process_group(
            "host",
            init_method=f"file://{folder}/{name}.rendezvous",
            rank=rank,
            world_size=2,
            timeout=datetime.timedelta(seconds=90),
        )
        try:
            result = late.train(rank, f"{folder}/{name}", device="sim", **options) | seen
            dist.barrier()
        except Exception as error:
            result = {"failed": f"{type(error).__name__}: {error}"}
        dist.destroy_process_group()
        Path(folder, f"{name}-{rank}.json").write_text(json.dumps(result))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("ranks")
    start(_train_all, str(folder))
    read = {name: [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(2)] for name in SCENARIOS}
    failed = {name: results for name, results in read.items() if any("failed" in each for each in results)}
    assert not failed, failed
    return read


@pytest.mark.parametrize("form", FORMS)
def test_a_healthy_step_waits_for_nothing_and_is_bit_identical(form: str, found: Any) -> None:
    """The flags of a step are one collective more. Its copy through the host stands for what a GPU queues."""
    steps = late.STEPS - 1 - (late.FIRST + 1)
    for plain, guarded in zip(found["plain"], found[f"healthy_{form}"], strict=True):
        assert guarded["state"] == plain["state"]
        assert guarded["late"]
        assert guarded["exchanges"] - plain["exchanges"] == steps
        added = {name: count - plain["waits"].get(name, 0) for name, count in guarded["waits"].items()}
        assert {name: count for name, count in added.items() if count} == {
            "copy to host": steps,
            "copy to device": steps,
        }


@pytest.mark.parametrize("form", FORMS)
def test_both_ranks_skip_and_tell_the_same_as_at_once(form: str, found: Any) -> None:
    for at_once, read_late in zip(found[f"bad_{form}_step"], found[f"bad_{form}_auto"], strict=True):
        assert read_late["told"] == at_once["told"]
        assert read_late["told"][4] == 1
        assert read_late["state"] == at_once["state"]
