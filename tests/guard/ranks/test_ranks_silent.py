"""Ranks whose averaged gradients tell everything exchange nothing, and still refuse a step together."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import nantrap
from nantrap.guard.ranks import averaged_flags
from ranked import Ranks, policy_of, run_scenarios

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file")
NAN = float("nan")
EMPTY = 4
"""The step in which one rank has no label: a NaN loss, and gradients of exactly 0."""


class Net(nn.Module):
    """Counts energy in a buffer that takes no part in the loss."""

    energy: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 16)
        self.head = nn.Linear(16, 3)
        self.register_buffer("energy", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.energy += x.detach().mul(1e30).square().sum() if x.detach().abs().max() > 1e10 else 1.0
        return self.head(torch.tanh(self.body(x)))


class Counter:
    """Counts the calls of `torch.distributed.all_reduce`; DDP averages gradients below it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        original = dist.all_reduce

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(dist, "all_reduce", counted)


def _train(
    rank: int,
    folder: str,
    *,
    fault: str = "",
    step_of_fault: int = EMPTY,
    steps: int = 8,
    policy: dict[str, Any] | None = None,
    form: str = "two_lines",
    scaler: bool = False,
    leaves_out: bool = False,
    hook: bool = False,
    every: int = 1000,
) -> dict[str, Any]:
    torch.manual_seed(0)
    inner = Net()
    model = DistributedDataParallel(inner)
    if hook:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        model.register_comm_hook(None, allreduce_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = torch.amp.GradScaler("cpu", init_scale=8.0) if scaler else None
    chosen = policy_of({"diagnose": "off", "rank_flags": "averaged", **(policy or {})})
    guard = nantrap.Guard(model, optimizer, scaler=losses, policy=chosen, quiet=True, max_grad_norm=9.0)
    made: dict[str, Any] = {"actions": [], "calls": [], "norms": [], "ranks": [], "findings": [], "error": ""}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(averaged_flags, "SECONDS", 2.0)
        monkeypatch.setattr(averaged_flags, "EVERY", every)
        counter = Counter(monkeypatch)
        for step in range(steps):
            hit = step == step_of_fault and rank == 1
            if step == step_of_fault and leaves_out:
                continue
            generator = torch.Generator().manual_seed(1000 * rank + step)
            x = torch.randn(8, 6, generator=generator)
            labels = torch.randint(0, 3, (8,), generator=generator)
            if hit and fault == "empty":
                labels[:] = -100
            if hit and fault == "buffer":
                x[0, 0] = 1e11

            def loss_fn(x: Tensor, labels: Tensor = labels, hit: bool = hit) -> Tensor:
                loss = nn.functional.cross_entropy(model(x), labels)
                return loss * NAN if hit and fault == "loss" else loss

            before = counter.calls
            try:
                if form == "attempt":
                    outcome = guard.attempt(loss_fn, x)
                else:
                    guard.backward(loss_fn(x))
                    if hit and fault == "alone":  # after the averaging, on this rank only
                        inner.body.weight.grad[0, 0] = NAN  # type: ignore[index]
                    outcome = guard.step()
            except nantrap.NantrapError as error:
                made["error"] = f"{type(error).__name__}: {error}"
                break
            made["calls"].append(counter.calls - before)
            made["actions"].append(str(outcome.action))
            made["norms"].append(outcome.grad_norm)
            made["ranks"].append(outcome.incident.origin_rank if outcome.incident else None)
            if outcome.incident is not None and rank == 1:
                made["findings"] += [f"{found.kind} {found.name}" for found in outcome.incident.findings]
    made["weights"] = [float(p.detach().double().sum()).hex() for p in inner.parameters()]
    made["finite"] = all(bool(value.isfinite().all()) for value in inner.state_dict().values())
    made["probes"] = guard.tally.scaler_probes
    return made


SCENARIOS: dict[str, dict[str, Any]] = {
    "healthy": {},
    "empty": {"fault": "empty"},
    "empty_attempt": {"fault": "empty", "form": "attempt"},
    "left_out": {"leaves_out": True},
    "buffer": {"fault": "buffer"},
    "loss_scaled": {"fault": "loss", "scaler": True},
    "skips_spikes": {"policy": {"spikes": "skip"}},
    "observes": {"fault": "empty", "policy": {"on_incident": "observe"}},
    "hook": {"hook": True},
    "every": {"every": 3},
    "undone": {"policy": {"rollback": {"undo": "always"}}},
    "alone": {"fault": "alone", "steps": EMPTY + 1},
    "by_default": {"fault": "alone", "policy": {"rank_flags": "every_step"}},
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    return run_scenarios(_train, SCENARIOS, tmp_path_factory.mktemp("silent"))


def test_healthy_steps_exchange_nothing(ranks: Ranks) -> None:
    for result in ranks("healthy"):
        first, second, *others = result["calls"]
        assert (first, second) == (3, 1)  # flags, flags after a careful update, checksums; then flags once more
        assert others == [0] * 6
        assert set(result["actions"]) == {"apply"}


@pytest.mark.parametrize("name", ["empty", "empty_attempt"])
def test_a_loss_without_a_gradient_is_refused_by_both(ranks: Ranks, name: str) -> None:
    """No gradient shows it: the rank says so with its own, and the others never see that in their findings."""
    zero, one = ranks(name)
    assert zero["actions"] == one["actions"] == ["apply"] * EMPTY + ["skip"] + ["apply"] * 3
    assert zero["ranks"] == one["ranks"] == [None] * EMPTY + [1] + [None] * 3
    assert one["findings"] == ["loss loss"]
    assert zero["norms"] == one["norms"]
    assert 0.0 < zero["norms"][EMPTY] < 10.0
    assert zero["weights"] == one["weights"]
    assert zero["weights"] == ranks("left_out")[0]["weights"], "as if the step had never been made"


def test_a_bad_buffer_of_one_rank_is_refused_by_both(ranks: Ranks) -> None:
    zero, one = ranks("buffer")
    assert zero["actions"] == one["actions"] == ["apply"] * EMPTY + ["skip"] + ["apply"] * 3
    assert (zero["ranks"][EMPTY], one["ranks"][EMPTY]) == (1, 1)
    assert one["findings"] == ["buffer energy"]
    assert zero["weights"] == one["weights"]
    assert zero["finite"]
    assert one["finite"]


def test_a_bad_loss_under_a_scaler(ranks: Ranks) -> None:
    """One rank has a reason, the other sees an overflow: both must ask the same questions."""
    zero, one = ranks("loss_scaled")
    assert zero["actions"] == one["actions"] == ["apply"] * EMPTY + ["skip"] + ["apply"] * 3
    assert (zero["ranks"][EMPTY], one["ranks"][EMPTY]) == (1, 1)
    assert zero["weights"] == one["weights"]
    assert (zero["probes"], one["probes"]) == (0, 0)


@pytest.mark.parametrize("name", ["skips_spikes", "hook", "undone"])
def test_where_gradients_do_not_tell_all_the_ranks_exchange_flags(ranks: Ranks, name: str) -> None:
    for result in ranks(name):
        assert min(result["calls"]) >= 1
        assert set(result["actions"]) == {"apply"}


def test_a_policy_that_observes_changes_no_gradient(ranks: Ranks) -> None:
    zero, one = ranks("observes")
    assert zero["ranks"][EMPTY] == one["ranks"][EMPTY] == 1
    assert set(zero["actions"]) == set(one["actions"]) == {"apply"}
    assert zero["finite"]
    assert zero["weights"] == one["weights"]


def test_flags_are_exchanged_again_after_a_while(ranks: Ranks) -> None:
    for result in ranks("every"):
        assert result["calls"] == [3, 1, 0, 0, 0, 3, 1, 0]


def test_gradients_that_are_bad_on_one_rank_alone_end_with_words(ranks: Ranks) -> None:
    zero, one = ranks("alone")
    assert zero["error"] == ""
    assert one["error"] == (
        "RankLostError: the averaged gradients, or the update made from them, are bad on rank 1 alone: the other ranks "
        "hold the same gradients and found nothing. A memory or communication fault of this rank does that, and so "
        "does code that changes gradients on one rank only"
    )
    assert one["finite"]


def test_by_default_gradients_that_are_bad_on_one_rank_alone_are_skipped_by_both(ranks: Ranks) -> None:
    zero, one = ranks("by_default")
    assert zero["actions"] == one["actions"] == ["apply"] * EMPTY + ["skip"] + ["apply"] * 3
    assert min(zero["calls"]) >= 1
    assert zero["weights"] == one["weights"] == ranks("left_out")[0]["weights"]
