"""Where a value came from that was bad before the step: variables, containers, attributes, arrays, with their lines."""

from __future__ import annotations

import json
import math
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

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


@pytest.mark.parametrize("again", [True, False])
def test_a_name_that_was_bound_again_does_not_hold_what_was_assigned_first(again: bool) -> None:
    rows = torch.zeros(4, 3)
    rows[1, 2] = math.nan
    for x in (rows[:2], rows[2:]):
        if again:
            x = x - x.mean()
        *_, link = trace_back(x, "x")
        where = link.words.partition(", assigned")[0]
        assert where == ("x (6 of 6 values are NaN by now)" if again else "x[1, 2] (1 of 6 values is NaN)")
        break


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
    if slug == "division_by_zero":
        assert "exactly 0 at 1 of 2 places (row 0), made by aten.std" in incident.causes[0].evidence[0].text


def test_a_bad_reward_is_named(tmp_path: Path) -> None:
    rewards = torch.arange(8.0)
    rewards[6] = math.nan
    incident = incident_of(tmp_path, 4, rewards)
    assert incident.provenance[0].startswith("rewards[6] (1 of 8 values is NaN)")
    assert incident.causes[0].summary.endswith("is non-finite: advantages")  # no function gave it
    assert incident.causes[0].fix is not None
    assert "where it is assigned" not in incident.causes[0].fix.text


def scored(texts: list[str]) -> list[float]:
    return [len(text) / 4 if text else math.nan for text in texts]


def test_the_function_that_gave_a_reward(tmp_path: Path) -> None:
    rewards = scored(["good", "fine", "", "well", "four", "more", "this", "that"])
    given = torch.tensor(rewards)
    incident = incident_of(tmp_path, 4, given)
    assert incident.causes[0].summary.endswith(": advantages, first in rewards[2]")
    assert incident.causes[0].fix is not None
    assert incident.causes[0].fix.text.startswith("fix rewards where it is assigned: test_provenance.py:")
    assert incident.causes[0].fix.text.endswith(", from scored")


class Rollouts:
    """A buffer of lists that no rule knows."""

    def __init__(self) -> None:
        self.lists: dict[str, list[Tensor]] = {}

    def add(self, **values: Tensor) -> None:
        for name, value in values.items():
            self.lists.setdefault(name, []).append(value)

    def batch(self) -> list[Tensor]:
        return [torch.stack(values) for values in self.lists.values()]


def incident_of_rollout(folder: Path, *, masked_action_at: int | None, old_at: int | None = None) -> Incident | None:
    """A policy whose forbidden actions have a log-probability of -Inf, and one step of it on a rollout of 16."""
    torch.manual_seed(0)
    policy = nn.Linear(6, 4)
    guard = nantrap.Guard(policy, torch.optim.SGD(policy.parameters(), 0.1), run_dir=folder, quiet=True)

    def logprobs(state: Tensor, allowed: Tensor) -> Tensor:
        scores: Tensor = policy(state).masked_fill(~allowed, -math.inf)
        return scores.log_softmax(-1)

    for _ in range(1):
        buffer = Rollouts()
        for t in range(16):
            state, allowed = torch.randn(6), torch.arange(4) != t % 4
            with torch.no_grad():
                all_of_them = logprobs(state, allowed)
                action = torch.tensor(t % 4) if t == masked_action_at else all_of_them.exp().multinomial(1)[0]
            old = all_of_them[action] * (math.nan if t == old_at else 1.0)
            buffer.add(state=state, action=action, allowed=allowed, old=old, advantage=torch.randn(()))
        states, actions, may, before, advantages = buffer.batch()
        ratio = (logprobs(states, may).gather(1, actions[:, None])[:, 0] - before).exp()
        loss = -(ratio * advantages).mean()
        guard.backward(loss)
        guard.step()
    guard.close()
    found = list(folder.glob("incidents/*/incident.json"))
    return Incident.from_dict(json.loads(found[0].read_text())) if found else None


def test_a_masked_action_in_a_buffer(tmp_path: Path) -> None:
    """What the loop variables hold now is that of the last round, and no part of the way."""
    incident = incident_of_rollout(tmp_path, masked_action_at=11)
    assert incident is not None
    assert (incident.causes[0].slug, incident.causes[0].proven) == ("bad_input_data", True)
    assert incident.op == "aten.sub"
    assert incident.samples == (11,)
    assert [each.partition(" (")[0] for each in incident.provenance] == ["buffer.lists['old'][11]", "before[11]"]
    assert "is taken from buffer.batch" not in " ".join(incident.provenance)


def test_a_value_of_a_buffer_that_is_nan(tmp_path: Path) -> None:
    incident = incident_of_rollout(tmp_path, masked_action_at=None, old_at=3)
    assert incident is not None
    assert [each.partition(" (")[0] for each in incident.provenance] == ["buffer.lists['old'][3]", "before[3]"]


def test_allowed_actions_only(tmp_path: Path) -> None:
    """-Inf that no action has is a mask."""
    assert incident_of_rollout(tmp_path, masked_action_at=None) is None


def evaluated(folder: Path, *, bad_at: int | None) -> list[Incident]:
    """A rollout: the model acts on what the environment gave in the round before."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), 0.1), run_dir=folder, quiet=True)
    space = SimpleNamespace(high=np.array([4.8, math.inf]), low=np.array([-4.8, -math.inf]))
    env = SimpleNamespace(space=SimpleNamespace(observations=space), best=math.inf)

    def react(actions: Tensor, t: int) -> Any:
        seen = np.full((3, 4), 0.5)
        if t == bad_at:
            seen[1, 2] = math.nan
        return seen, float(actions.sum())

    env.step = react
    state = torch.zeros(3, 4)
    for t in range(6):
        with torch.no_grad():
            scores = model(state)
        seen, _ = env.step(scores.argmax(-1), t)
        state = torch.tensor(seen, dtype=torch.float32)
    guard.close()
    return [Incident.from_dict(json.loads(path.read_text())) for path in folder.glob("incidents/*/incident.json")]


def test_an_observation_in_an_evaluation(tmp_path: Path) -> None:
    """Assigned behind the call, in the round before; bounds of Inf that the environment has are not its reason."""
    (incident,) = evaluated(tmp_path, bad_at=3)
    assert incident.during == "evaluation"
    assert incident.causes[0].summary == "the input batch already contains NaN: input, first in seen[1, 2]"
    assert "from env.step (react, test_provenance.py:" in incident.provenance[0]
    assert incident.provenance[0].endswith("): seen, _ = env.step(scores.argmax(-1), t)")
    assert [each.partition(" (")[0] for each in incident.provenance] == ["seen[1, 2]", "state[1, 2]"]


def test_a_finite_rollout(tmp_path: Path) -> None:
    assert evaluated(tmp_path, bad_at=None) == []


def test_bounds_of_inf_are_no_data() -> None:
    """Inf deep in an object is meant; NaN there is not, and Inf in a list that the object itself has is data."""
    bounds = SimpleNamespace(space=SimpleNamespace(high=np.array([1.0, math.inf])), best=math.inf)
    assert first_bad(bounds, "env") is None
    bounds.space.high[0] = math.nan
    found = first_bad(bounds, "env")
    assert found is not None
    assert found.path == "env.space.high[0]"
    found = first_bad(SimpleNamespace(rewards=[0.0, math.inf]), "buffer")
    assert found is not None
    assert found.path == "buffer.rewards[1]"


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize(("count", "slug"), [(1, "std_of_one_element"), (4, "bad_input_data")])
def test_a_variable_that_is_normalised_under_its_own_name(tmp_path: Path, count: int, slug: str) -> None:
    """What it was before is gone. One value gives NaN whatever it was; of four it depends on what they were."""
    torch.manual_seed(0)
    policy = nn.Linear(4, 2)
    guard = nantrap.Guard(policy, torch.optim.SGD(policy.parameters(), 0.1), run_dir=tmp_path, quiet=True)
    observed, actions = torch.randn(count, 4), torch.zeros(count, dtype=torch.long)
    returns = torch.tensor([1.0, math.inf, 0.5, 0.0][:count] if count > 1 else [2.0])
    returns = (returns - returns.mean()) / (returns.std() + 1e-9)
    for _ in range(1):
        logprobs = policy(observed).log_softmax(1).gather(1, actions[:, None])[:, 0]
        guard.backward(-(logprobs * returns).mean())
        guard.step()
    guard.close()
    (path,) = tmp_path.glob("incidents/*/incident.json")
    incident = Incident.from_dict(json.loads(path.read_text()))
    assert incident.causes[0].slug == slug
    said = "what returns held before is gone: the statement gives NaN for other finite values of its shape as well"
    assert (said in incident.notes) == (count == 1)


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize(("count", "found"), [(1, "advantages"), (4, None)])
def test_a_model_whose_parts_are_called(tmp_path: Path, count: int, found: str | None) -> None:
    """The guard saw no call, and only the graph could be read: the program's own variables are searched."""
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1))
    guard = nantrap.Guard(policy, torch.optim.SGD(policy.parameters(), 0.1), run_dir=tmp_path, quiet=True)
    rewards = torch.arange(1.0, count + 1)
    for _ in range(1):
        advantages = rewards * 0.5
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        ratio = policy[0](torch.ones(count, 4)).sum(-1).exp()
        loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2)).mean()
        shown = loss.item()  # NaN as well, and no reason
        guard.backward(loss)
        guard.step()
    guard.close()
    incidents = [
        Incident.from_dict(json.loads(path.read_text())) for path in tmp_path.glob("incidents/*/incident.json")
    ]
    assert len(incidents) == (1 if found else 0)
    assert math.isnan(shown) == bool(found)
    for incident in incidents:
        assert (incident.causes[0].slug, incident.causes[0].proven) == ("std_of_one_element", True)
        assert incident.provenance[0].startswith(
            "advantages[0] (1 of 1 values is NaN), assigned at test_provenance.py:"
        )


class Distance(torch.autograd.Function):
    """A fused distance between two policies. It saves nothing that shows what it was given."""

    @staticmethod
    def forward(ctx: Any, logprobs: Tensor, reference: Tensor) -> Tensor:
        difference = reference - logprobs
        ctx.save_for_backward(difference.exp().clamp(max=1.0))
        return difference.exp() - difference - 1

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, None]:
        return given[0] * (1 - ctx.saved_tensors[0].nan_to_num()), None


class Trainer:
    """A trainer whose loss is computed in a method that writes an attribute, so that it is not computed again."""

    def __init__(self, policy: nn.Module) -> None:
        self.policy, self.last = policy, ""

    def loss(self, inputs: dict[str, Tensor]) -> Tensor:
        self.last = "loss"
        logprobs = self.policy(inputs["states"]).log_softmax(-1)
        distances: Tensor = Distance.apply(logprobs, inputs["reference"])
        return (logprobs * inputs["advantages"]).mean() + 0.1 * distances.where(inputs["kept"], 0.0).mean()

    def scored(self, bad: str, count: int) -> dict[str, Tensor]:
        states, reference, kept = torch.randn(8, 4), torch.randn(8, 4), torch.ones(8, 4, dtype=torch.bool)
        reference.view(-1)[:count] = float(bad)
        kept.view(-1)[1:count] = False
        return {"states": states, "reference": reference, "kept": kept, "advantages": torch.randn(8, 1)}


@pytest.mark.parametrize(
    ("bad", "count", "named"),
    [
        pytest.param("nan", 1, True, id="NaN"),
        pytest.param("-inf", 1, True, id="one log-probability of -Inf"),
        pytest.param("-inf", 20, False, id="many are a mask"),
    ],
)
def test_a_value_without_a_graph_where_the_loss_is_not_computed_again(
    tmp_path: Path, bad: str, count: int, named: bool
) -> None:
    torch.manual_seed(0)
    policy = nn.Linear(4, 4)
    guard = nantrap.Guard(policy, torch.optim.SGD(policy.parameters(), 1e-3), run_dir=tmp_path, quiet=True)
    trainer, best = Trainer(policy), math.inf
    for step in range(3):
        inputs = trainer.scored(bad if step == 2 else "0", count)
        loss = trainer.loss(inputs)
        guard.backward(loss)
        guard.step()
        best = min(best, loss.item())
    guard.close()
    (path,) = tmp_path.glob("incidents/*/incident.json")
    incident = Incident.from_dict(json.loads(path.read_text()))
    said = "the program holds a non-finite value that was made without a graph: inputs['reference'][0, 0]"
    assert any(cause.summary.startswith(said) for cause in incident.causes) == named
    for cause in incident.causes if named else ():
        assert not cause.proven
        assert cause.evidence[0].text.endswith("; whether the loss reads it was not seen")
        assert cause.fix is not None
        assert cause.fix.text == "look where inputs['reference'][0, 0] is made, and leave such values out"
