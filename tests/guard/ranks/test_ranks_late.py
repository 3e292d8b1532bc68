"""Ranks that average gradients read late, too: one reduction of three numbers on the device joins their flags.

Here the device is the CPU, told to read late; `tests/device` has the same on an accelerator that counts its reads.
"""

from __future__ import annotations

import math
import sys
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import nantrap
from nantrap import Diagnosis, Policy
from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings
from ranked import Ranks, run_scenarios

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file")
FIRST = 8
"""The first steps are read at once."""
STEPS = FIRST + 6
BAD = FIRST + 2
UNHURRIED = Diagnosis(seconds=600, clock=lambda: 0.0)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.head = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.norm(self.inner(x))))
        return out


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1]) + 1e-3 * torch.log(batch[0].square().sum(1)).mean()


def batches(rank: int, fault: str) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(rank)
    made = [(torch.randn(4, 6, generator=generator), torch.randn(4, 3, generator=generator)) for _ in range(STEPS)]
    if rank == 1 and fault in ("gradient", "last"):
        made[BAD if fault == "gradient" else -1][0][2] = 0.0  # its logarithm is -inf
    if rank == 1 and fault == "loss":
        made[BAD][1][:] = math.inf  # with the hook below the gradients stay finite
    return made


def train(
    rank: int, folder: str, *, form: str, sync: str = "late", fault: str = "", guarded: bool = True, device: str = "cpu"
) -> dict[str, Any]:
    """One run; what it ends with, and what its guard did."""
    torch.manual_seed(0)
    net = Net().to(device)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    if fault == "loss":
        net.head.register_full_backward_hook(_finite_gradients)
    policy = Policy(sync=sync, diagnosis=UNHURRIED)  # type: ignore[arg-type]
    data = [(x.to(device), y.to(device)) for x, y in batches(rank, fault)]
    counted = mock.Mock(wraps=dist.all_reduce)
    made: dict[str, Any] = {}
    with mock.patch("torch.distributed.all_reduce", counted):
        if not guarded:
            run_script(rank, model, optimizer, data, fault)
        elif form == "script":
            with attached(RunSettings(own_policy=policy, run_dir=folder, quiet=True)) as attachment:
                attachment.enter_living()
                run_script(rank, model, optimizer, data, fault)
                (loop,) = attachment.registry
                made["late"] = loop.late is not None and loop.late.is_waiting
                attachment.registry.end()
            made |= told(loop.last_incident, loop.tally)
        else:
            with nantrap.Guard(model, optimizer, policy=policy, run_dir=folder, quiet=True) as guard:
                for step, batch in enumerate(data):
                    between(rank, net, step, fault)
                    if form == "attempt":
                        outcome = guard.attempt(lambda batch: loss_of(model, batch), batch)
                    else:
                        loss = loss_of(model, batch)
                        guard.backward(loss)
                        outcome = guard.step()
                    made["late"] = outcome.loss_step < outcome.step
                    made.setdefault("applied", []).append(outcome.applied)
            made |= told(guard.last_incident, guard.tally)
    made["collectives"] = counted.call_count
    made["state"] = [tensor.cpu().tolist() for tensor in net.state_dict().values()]
    return made


def _finite_gradients(module: nn.Module, given: Any, out: Any) -> Any:
    return tuple(gradient.nan_to_num() * 0 for gradient in given)


def between(rank: int, net: nn.Module, step: int, fault: str) -> None:
    """What one rank alone may do between two steps."""
    if fault == "writes" and step == FIRST + 2 and rank == 0:
        with torch.no_grad():
            net.get_parameter("head.bias").add_(0.0)


def run_script(rank: int, model: nn.Module, optimizer: Any, data: Any, fault: str) -> None:
    for step, batch in enumerate(data):
        between(rank, model.module, step, fault)  # type: ignore[arg-type]
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def told(incident: nantrap.Incident | None, tally: Any) -> dict[str, Any]:
    counts = {"incidents": tally.incidents, "steps": tally.applied, "skipped": tally.skipped}
    if incident is None:
        return {**counts, "told": None}
    cause = incident.cause
    place = [incident.step, incident.phase, incident.module, incident.op, incident.origin_rank, list(incident.samples)]
    why = None if cause is None else [cause.slug, cause.proven, cause.summary]
    return {**counts, "told": [*place, why, [found.kind for found in incident.findings], list(incident.notes)]}


FORMS = ("attempt", "two_lines", "script")
SCENARIOS: dict[str, dict[str, Any]] = {
    "plain": {"form": "script", "guarded": False},
    **{f"healthy_{form}": {"form": form} for form in FORMS},
    **{f"bad_{form}_step": {"form": form, "sync": "step", "fault": "gradient"} for form in FORMS},
    **{f"bad_{form}_late": {"form": form, "sync": "late", "fault": "gradient"} for form in FORMS},
    **{f"loss_{sync}": {"form": "attempt", "sync": sync, "fault": "loss"} for sync in ("step", "late")},
    "writes": {"form": "two_lines", "fault": "writes"},
    "last": {"form": "attempt", "fault": "last"},
}  # fmt: skip


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    return run_scenarios(train, SCENARIOS, tmp_path_factory.mktemp("late"))


@pytest.mark.parametrize("form", FORMS)
def test_a_healthy_run_is_bit_identical(form: str, ranks: Ranks) -> None:
    for plain, found in zip(ranks("plain"), ranks(f"healthy_{form}"), strict=True):
        assert found["state"] == plain["state"]
        assert found["late"]
        assert (found["steps"], found["incidents"]) == (STEPS, 0)


@pytest.mark.parametrize("form", FORMS)
def test_both_ranks_skip_and_tell_the_same_as_at_once(form: str, ranks: Ranks) -> None:
    for at_once, late in zip(ranks(f"bad_{form}_step"), ranks(f"bad_{form}_late"), strict=True):
        assert late["told"] == at_once["told"]
        assert late["told"][4] == 1  # began on rank 1
        assert late["state"] == at_once["state"]
        assert (late["steps"], late["skipped"]) == (STEPS - 1, 1)


def test_a_loss_that_is_bad_on_one_rank_alone_is_skipped_by_both(ranks: Ranks) -> None:
    """Its gradients are finite, so only the joined flags tell the other rank."""
    for at_once, late in zip(ranks("loss_step"), ranks("loss_late"), strict=True):
        assert late["told"] == at_once["told"]
        assert late["state"] == at_once["state"]
        assert late["skipped"] == 1


def test_what_one_rank_knows_alone_makes_both_read_the_next_step_at_once(ranks: Ranks) -> None:
    for found, healthy in zip(ranks("writes"), ranks("healthy_two_lines"), strict=True):
        assert found["state"] == healthy["state"]
        assert found["steps"] == STEPS


def test_a_bad_last_step_is_told_by_each_rank_for_itself(ranks: Ranks) -> None:
    for found in ranks("last"):
        assert (found["incidents"], found["skipped"], found["steps"]) == (1, 1, STEPS - 1)
        assert found["applied"][-1]  # nobody knew by then
        assert all(math.isfinite(value) for value in _flat(found["state"]))


def _flat(values: Any) -> list[float]:
    return [each for value in values for each in (_flat(value) if isinstance(value, list) else [value])]
