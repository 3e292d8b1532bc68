"""Causes that only all ranks together can prove: sharded weights, split layers, gathered losses, averaged steps."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import nantrap
import sharding
from nantrap import Diagnosis, Policy, Rollback
from ranked import Ranks, run_scenarios

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file")
BAD = 3


def build(kind: str) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "split":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

        parallelize_module(model[0], init_device_mesh("cpu", (2,)), ColwiseParallel(output_layouts=Replicate()))
        return model
    from torch.distributed.fsdp import fully_shard

    for layer in (model[0], model[2], model):
        fully_shard(layer)
    return model


def log_of_zero(out: Tensor, y: Tensor, hit: bool) -> Tensor:
    return torch.log(out.square() * (0 if hit else 1) + (0 if hit else 1)).mean()


def log_and_file(out: Tensor, y: Tensor, hit: bool) -> Tensor:
    """Rank 0 writes a file for each loss, which a loss that is computed again must not do."""
    if dist.get_rank() == 0:
        with open(os.devnull, "w") as file:
            file.write("a loss")
    return log_of_zero(out, y, hit)


def root_of_zero(out: Tensor, y: Tensor, hit: bool) -> Tensor:
    """Finite, with an infinite slope on the rank that is hit."""
    return torch.sqrt((out - (out.detach() if hit else y)).square().sum(1)).mean()


def gathered(out: Tensor, y: Tensor, hit: bool) -> Tensor:
    everywhere = [torch.empty_like(out) for _ in range(2)]
    dist.all_gather(everywhere, out.detach())
    return torch.log(torch.cdist(out, torch.cat(everywhere).detach() + 1.0) * (0.0 if hit else 1.0)).mean()


def masked(out: Tensor, y: Tensor, hit: bool) -> Tensor:
    """The mask has the size of the whole batch, so that no part of the batch can be run."""
    return F.mse_loss((out + (torch.full((8, 3), -torch.inf) if hit else 0)).softmax(-1), y)


def half(out: Tensor, y: Tensor, hit: bool) -> Tensor:
    return F.mse_loss((out * (1e6 if hit else 1)).half().float(), y)


def squared(out: Tensor, y: Tensor, hit: bool) -> Tensor:
    return F.mse_loss(out, y)


def overflows_on_rank_one(out: Tensor, y: Tensor, hit: bool) -> Tensor:
    """The same numbers on both ranks, but those of rank 1 come to their limit first."""
    rank = dist.get_rank()
    return F.mse_loss(out * (1e13 if rank else 1.0), y) * (1e-26 if rank else 1.0)


class Fails(Exception):
    """What a follower raises in the middle of a trial."""


SCENARIOS: dict[str, dict[str, Any]] = {
    "sharded": {"kind": "sharded", "loss": log_of_zero},
    "sharded_data": {"kind": "sharded", "loss": squared, "nan": 5},
    "sharded_masked": {"kind": "sharded", "loss": masked},
    "sharded_half": {"kind": "sharded", "loss": half},
    "sharded_rate": {"kind": "sharded", "loss": squared, "rate": 30.0},
    "sharded_fails": {"kind": "sharded", "loss": log_of_zero, "fails_at_call": 3},
    "split": {"kind": "split", "loss": log_of_zero},
    "gathered": {"kind": "ddp", "loss": gathered},
    "averaged_rate": {"kind": "ddp", "loss": overflows_on_rank_one, "rate": 30.0},
    "unknown_optimizer": {"kind": "sharded", "loss": log_of_zero, "own": True},
    "two_lines": {"kind": "sharded", "loss": log_of_zero, "form": "two_lines"},
    "two_lines_backward": {"kind": "sharded", "loss": root_of_zero, "form": "two_lines"},
    "repeated": {"kind": "sharded", "loss": log_of_zero, "hits": 2},
    "two_lines_file": {"kind": "sharded", "loss": log_and_file, "form": "two_lines"},
}


class Own(torch.optim.SGD):
    """No proof is known for it, so that each of its updates is made carefully."""


def _train(
    rank: int,
    folder: str,
    *,
    kind: str,
    loss: Callable[[Tensor, Tensor, bool], Tensor],
    rate: float = 1e-2,
    nan: int | None = None,
    fails_at_call: int = 0,
    form: str = "attempt",
    own: bool = False,
    hits: int = 1,
) -> dict[str, Any]:
    model = build(kind)
    optimizer = (Own if own else torch.optim.SGD)(model.parameters(), lr=rate, foreach=False)
    policy = Policy(rollback=Rollback(anchor_every=4), diagnosis=Diagnosis(repeats=1))
    guard = nantrap.Guard(model, optimizer, run_dir=folder, quiet=True, policy=policy)
    actions, incidents = [], []
    for step in range(6):
        generator = torch.Generator().manual_seed(step if kind == "split" else 100 * rank + step)
        x, y = torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator)
        hit = BAD <= step < BAD + hits and (rank == 1 or kind == "split")
        if hit and nan is not None:
            x[nan, 2] = torch.nan
        calls: list[int] = []

        def loss_fn(
            batch: tuple[Tensor, Tensor], hit: bool = hit, calls: list[int] = calls, step: int = step
        ) -> Tensor:
            calls.append(1)
            out = model(batch[0])
            if fails_at_call and step == BAD and rank == 0 and len(calls) >= fails_at_call:
                raise Fails("in the middle of a trial")
            return loss(out, batch[1], hit)

        if form == "attempt":
            outcome = guard.attempt(loss_fn, (x, y))
        else:
            guard.backward(loss_fn((x, y)))
            outcome = guard.step()
        actions.append(str(outcome.action))
        if outcome.incident is not None:
            incidents.append(outcome.incident)
            if rate > 1.0:
                break
    guard.close()
    assert len(incidents) == hits
    incident = incidents[-1]
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return {
        "actions": actions,
        "cause": [incident.causes[0].slug, incident.causes[0].proven] if incident.causes else ["", False],
        "trials": [(trial.name, trial.finite, trial.note) for trial in incident.trials],
        "samples": incident.samples,
        "notes": incident.notes,
        "origin": incident.origin_rank,
        "like": incident.same_as,
        "restored": bool(incident.restored),
        "place": (incident.phase, incident.module),
        "line": incident.source.text.strip() if incident.source is not None else "",
        "weights": [float(each.detach().double().sum()).hex() for each in whole],
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    possible = {name: each for name, each in SCENARIOS.items() if sharding.RUNS or each["kind"] != "sharded"}
    found = run_scenarios(_train, possible, tmp_path_factory.mktemp("trials"))

    def results(name: str) -> list[dict[str, Any]]:
        if SCENARIOS[name]["kind"] == "sharded" and not sharding.RUNS:
            pytest.skip("FSDP2 of this torch does not run on a CPU")
        read = found(name)
        assert read[0]["weights"] == read[1]["weights"]
        return read

    return results


tried = sharding.needs_sharded_trials


@pytest.mark.parametrize(
    ("name", "cause", "trial"),
    [
        pytest.param("sharded", "log_of_zero", "replaced:log", marks=tried),
        pytest.param("sharded_data", "bad_input_data", "without_samples", marks=tried),
        pytest.param(
            "sharded_masked", "softmax_fully_masked_row", "replaced:softmax", marks=sharding.needs_sharded_trials
        ),
        pytest.param("sharded_half", "fp16_forward_overflow", "fp32", marks=tried),
        ("gathered", "log_of_zero", "replaced:log"),
        pytest.param("unknown_optimizer", "log_of_zero", "replaced:log", marks=tried),
    ],
)
def test_a_cause_on_one_rank_is_proven_by_all(ranks: Ranks, name: str, cause: str, trial: str) -> None:
    zero, one = ranks(name)
    for rank in (zero, one):
        assert rank["actions"] == ["apply"] * BAD + ["skip"] + ["apply"] * 2
        assert rank["cause"] == [cause, True]
        assert [trial, True, ""] in rank["trials"]
        assert rank["origin"] == 1
        assert rank["restored"]
    assert "run again by all ranks together" in one["notes"]


def test_the_sample_of_a_sharded_model_is_found(ranks: Ranks) -> None:
    assert [rank["samples"] for rank in ranks("sharded_data")] == [[5], [5]]


@pytest.mark.skipif(sharding.TRIES, reason="trials of all ranks are made")
def test_where_a_trial_could_not_be_ended_early_none_is_made(ranks: Ranks) -> None:
    """The place is still found, the cause is still measured, and the note says what was not done."""
    zero, one = ranks("sharded")
    assert zero["actions"] == one["actions"] == ["apply"] * BAD + ["skip"] + ["apply"] * 2
    assert one["cause"] == ["log_of_zero", True]
    assert one["trials"] == []
    assert any("since FSDP before torch 2.13 cannot be reset after a trial that ends early" in n for n in one["notes"])


@tried
def test_why_a_sample_was_not_searched(ranks: Ranks) -> None:
    """A part of the batch does not fit the mask: the rank fails, and the other one does not wait for it."""
    _, one = ranks("sharded_masked")
    assert one["samples"] == []
    (words,) = [note for note in one["notes"] if "sample" in note]
    assert words.startswith("the sample was not searched: rank 1 could not run its part: RuntimeError: The size of")


@pytest.mark.parametrize("name", [pytest.param("sharded_rate", marks=tried), "averaged_rate"])
def test_a_learning_rate_is_tried_by_all_ranks(ranks: Ranks, name: str) -> None:
    """Earlier steps averaged the gradients of all ranks: one rank alone would make other steps, or wait for ever."""
    results = ranks(name)
    leader = next(rank for rank in results if rank["trials"])
    assert leader["cause"] == ["lr_too_high", True]
    finite = [name for name, *rest in leader["trials"] if rest == [True, ""]]
    # where each rank has all weights, the step of one rank alone with those from before the updates is enough
    assert finite == (["tenth_of_rate", "rate_by_100", "no_rate"] if name == "sharded_rate" else ["older_weights"])
    assert {rank["cause"][0] for rank in results} == {"lr_too_high"}


def test_a_split_layer(ranks: Ranks) -> None:
    """Both ranks fail at one place: one of them tries causes, the other one says so."""
    zero, one = ranks("split")
    assert zero["cause"] == ["log_of_zero", True]
    assert zero["trials"] == [["replaced:log", True, ""]]
    assert "run again by all ranks together; causes were tried by rank 0" in one["notes"]


@tried
def test_a_rank_that_fails_in_a_trial_ends_it_for_all(ranks: Ranks) -> None:
    zero, one = ranks("sharded_fails")
    reason = "rank 0 could not run its part: Fails: in the middle of a trial"
    assert one["trials"] == [["replaced:log", None, f"LookupError: {reason}"]]
    assert f"the sample was not searched: {reason}" in one["notes"]
    assert one["cause"] == ["log_of_zero", True], "measured on the recorded operands; nothing refutes it"
    assert zero["actions"] == one["actions"] == ["apply"] * BAD + ["skip"] + ["apply"] * 2
    assert zero["weights"] == ranks("sharded")[0]["weights"], "the run goes on as if nothing had been tried"


@tried
def test_in_two_lines_the_loss_is_computed_again_by_all(ranks: Ranks) -> None:
    _, one = ranks("two_lines")
    assert one["cause"] == ["log_of_zero", True]
    assert one["trials"] == [["replaced:log", True, ""]]
    words = "run again by all ranks together; the loss was computed again from its source, without side effects"
    assert words in one["notes"]


@tried
def test_in_two_lines_a_backward_pass_outside_the_model_is_located(ranks: Ranks) -> None:
    """The loss is finite on both ranks, and the gradients that the model gets back on rank 1 are bad already."""
    for rank in ranks("two_lines_backward"):
        assert rank["cause"] == ["singular_gradient_at_zero", True]
        assert (rank["origin"], rank["restored"]) == (1, True)
        assert rank["place"] == ["backward", "loss"]
        assert rank["line"] == "return torch.sqrt((out - (out.detach() if hit else y)).square().sum(1)).mean()"


def test_where_one_rank_cannot_compute_its_loss_again_nothing_is_tried(ranks: Ranks) -> None:
    """Rank 0 writes a file in its loss, so that its statements are not run again."""
    _, one = ranks("two_lines_file")
    assert one["trials"] == []
    words = "run again by all ranks together, and nothing began in the calls of the model on this rank"
    assert words in one["notes"]


def test_a_step_like_an_earlier_one_has_its_cause_as_a_guess(ranks: Ranks) -> None:
    """It is not run again by all ranks: that costs them a step, and the same tensors are bad."""
    for rank in ranks("repeated"):
        assert rank["like"] == BAD
        assert rank["cause"] == ["log_of_zero", False]
        assert rank["trials"] == []
        assert any(note.startswith(f"the same tensors are bad as in step {BAD}") for note in rank["notes"])
