"""Where a value came from that was bad before the step: variables, containers, attributes, arrays, with their lines."""

from __future__ import annotations

import json
import math
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap.incident import Incident
from nantrap.locate.variables.provenance import first_bad, trace_back


class Rollout(NamedTuple):
    """What a buffer gives."""

    rewards: Tensor
    values: Tensor


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (torch.tensor([1.0, math.nan]), "x[1]"),
        (np.array([[1.0, 2.0], [3.0, math.nan]], dtype=np.float64), "x[1, 1]"),
        ([1.0, 2.0, math.nan], "x[2]"),
        (deque([1.0, math.inf]), "x[1]"),
        ({"adv": [0.0, math.nan]}, "x['adv'][1]"),
        (Rollout(torch.ones(2), torch.tensor([1.0, math.nan])), "x.values[1]"),
        (SimpleNamespace(old=torch.full((4,), math.nan), rewards=torch.tensor([1.0, math.nan])), "x.rewards[1]"),
        (SimpleNamespace(best=math.inf, rewards=[1.0, math.inf]), "x.rewards[1]"),
        (SimpleNamespace(best=math.nan), "x.best"),
        (math.nan, "x"),
    ],
)
def test_the_first_bad_place(value: object, path: str) -> None:
    found = first_bad(value, "x")
    assert found is not None
    assert found.path == path


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([1.0, -math.inf]), [1, 2], "nan", None, nn.Linear(2, 2), -math.inf,
        SimpleNamespace(best=math.inf, config={"print_every": math.inf}),
    ],
)  # fmt: skip
def test_what_is_not_bad(value: object) -> None:
    assert first_bad(value, "x") is None


def test_minus_inf_where_it_is_asked_for() -> None:
    found = first_bad([0.0, -math.inf], "logprobs", minus=True)
    assert found is not None
    assert (found.path, found.described) == ("logprobs[1]", "-Inf")


def test_objects_that_refer_to_each_other() -> None:
    """A trainer whose callbacks know it: the search ends, and still finds what is near."""
    trainer = SimpleNamespace(callbacks=[], rewards=torch.tensor([1.0, math.nan]))
    trainer.state = SimpleNamespace(trainer=trainer)
    found = first_bad(trainer, "trainer")
    assert found is not None
    assert found.path == "trainer.rewards[1]"
    del trainer.rewards
    assert first_bad(trainer, "trainer") is None


def test_a_wide_net_of_objects_is_not_searched_for_ever() -> None:
    nodes = [SimpleNamespace() for _ in range(60)]
    for node in nodes:
        node.__dict__.update({f"n{index}": SimpleNamespace(nodes=other) for index, other in enumerate(nodes)})
    assert first_bad(nodes[0], "node") is None


def words_of(tensor: Tensor, name: str) -> list[str]:
    return [link.words for link in trace_back(tensor, name)]


def reward_of(step: int) -> float:
    return math.nan if step == 5 else 1.0


def test_a_reward_of_a_rollout() -> None:
    rewards = torch.zeros(8)
    for step in range(8):
        reward = reward_of(step)
        rewards[step] = torch.tensor(reward)
    advantages = rewards - 2.0
    first, last = words_of(advantages, "advantages")
    assert first.startswith("rewards[5] (1 of 8 values is NaN), assigned at test_provenance.py:")
    assert first.endswith("rewards[step] = torch.tensor(reward); reward is taken from reward_of in line "
                          f"{test_a_reward_of_a_rollout.__code__.co_firstlineno + 3}")  # fmt: skip
    assert last.endswith(": advantages = rewards - 2.0")


def test_a_branch_that_was_not_taken() -> None:
    kind, targets = "a", torch.ones(3)
    if kind == "a":
        targets = torch.log(torch.tensor([1.0, -1.0, 2.0]))
    if kind == "b":
        targets = torch.zeros(3)
    (only,) = words_of(targets, "targets")
    assert only.endswith("targets = torch.log(torch.tensor([1.0, -1.0, 2.0]))")


def test_numpy_and_lists() -> None:
    returns = [1.0, 2.0]
    returns.append(math.nan)
    table = np.asarray(returns) * 2
    targets = torch.from_numpy(table)
    paths = [words.partition(" ")[0] for words in words_of(targets, "targets")]
    assert paths == ["returns[2]", "table[2]", "targets[2]"]


def test_an_argument_is_followed_to_the_caller() -> None:
    def inner(batch: dict[str, Tensor]) -> list[str]:
        advantages = batch["advantages"]
        return words_of(advantages, "advantages")

    made = {"advantages": torch.tensor([0.0, math.nan])}
    found = inner(made)
    paths = [words.partition(" ")[0] for words in found]
    assert paths == ["made['advantages'][1]", "batch['advantages'][1]", "advantages[1]"]


def test_a_finite_tensor_has_no_way() -> None:
    fine = torch.ones(3)
    assert words_of(fine, "fine") == []


def normalised(rewards: Tensor, size: int) -> Tensor:
    groups = rewards.view(-1, size)
    return ((groups - groups.mean(1, keepdim=True)) / groups.std(1, keepdim=True)).flatten()


def incident_of(folder: Path, size: int, rewards: Tensor) -> Incident:
    torch.manual_seed(0)
    policy = nn.Linear(4, 2)
    guard = nantrap.Guard(policy, torch.optim.SGD(policy.parameters(), 0.1), run_dir=folder, quiet=True)
    obs, actions = torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
    advantages = normalised(rewards, size)
    for _ in range(1):
        logprobs = policy(obs).log_softmax(1).gather(1, actions[:, None])[:, 0]
        loss = -(logprobs * advantages).mean()
        guard.backward(loss)
        guard.step()
    guard.close()
    (path,) = folder.glob("incidents/*/incident.json")
    return Incident.from_dict(json.loads(path.read_text()))


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize(
    ("size", "rewards", "slug", "op"),
    [
        pytest.param(1, torch.arange(8.0), "std_of_one_element", "aten.std", id="groups of one"),
        pytest.param(
            4, torch.tensor([1.0] * 4 + [1, 2, 3, 4]), "division_by_zero", "aten.div", id="group without variance"
        ),
    ],
)
def test_the_statement_that_made_it_is_run_again(
    tmp_path: Path, size: int, rewards: Tensor, slug: str, op: str
) -> None:
    incident = incident_of(tmp_path, size, rewards)
    assert (incident.causes[0].slug, incident.causes[0].proven, incident.op) == (slug, True, op)
    assert incident.source is not None
    assert incident.source.function == "normalised"
    assert incident.provenance[-1].endswith("from normalised: advantages = normalised(rewards, size)")
    assert any("the statement is finite" in each.text for each in incident.causes[0].evidence)
    assert incident.causes[0].fix is not None
    assert "the step is finite" not in incident.causes[0].fix.words


def test_a_bad_reward_is_named(tmp_path: Path) -> None:
    rewards = torch.arange(8.0)
    rewards[6] = math.nan
    incident = incident_of(tmp_path, 4, rewards)
    assert incident.provenance[0].startswith("rewards[6] (1 of 8 values is NaN)")
