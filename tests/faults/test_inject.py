"""Faults on purpose: each kind does what it says, where it says, and leaves no hook behind."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap.errors import UsageError
from nantrap.faults import Injected


class Loop:
    """A plain loop over a small model: the losses, and what was not finite after each part of a step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.batches = [torch.randn(6, 4) for _ in range(6)]

    def run(self, steps: int = 6) -> Iterator[set[str]]:
        for step in range(steps):
            bad = {name for name, tensor in self.tensors(self.batches[step]) if not tensor.isfinite().all()}
            loss = self.model(self.batches[step]).square().mean()
            after = {name for name, tensor in self.tensors(self.batches[step]) if not tensor.isfinite().all()}
            loss.backward()
            grads = {f"grad {n}" for n, p in self.model.named_parameters() if not p.grad.isfinite().all()}  # type: ignore[union-attr]
            yield (after - bad) | grads | (set() if loss.isfinite() else {"loss"})
            if bad | after | grads:
                return
            self.optimizer.step()
            self.optimizer.zero_grad()

    def tensors(self, batch: Tensor) -> Iterator[tuple[str, Tensor]]:
        yield "batch", batch
        yield from self.model.named_parameters()
        yield from ((name, buffer) for name, buffer in self.model.named_buffers() if buffer.is_floating_point())
        for state in self.optimizer.state.values():
            yield from ((f"state {key}", value) for key, value in state.items() if value.dim())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batch:step=2", {"batch", "loss"}),
        ("param:step=2,where=3.bias", {"3.bias", "loss"}),
        ("buffer:step=2,where=1.running_mean", {"1.running_mean"}),
        ("optimizer:step=2,where=0.weight.exp_avg", {"state exp_avg"}),
        ("grad:step=2,where=0.weight", {"grad 0.weight"}),
        ("activation:step=2,where=3", {"loss"}),
        ("loss:step=2", {"loss"}),
    ],
)
@pytest.mark.parametrize("everywhere", [False, True])
def test_each_kind(text: str, expected: set[str], everywhere: bool) -> None:
    loop = Loop()
    with nantrap.inject(text, model=None if everywhere else loop.model) as faults:
        bad = list(loop.run())
    assert bad[:2] == [set(), set()]
    assert expected <= bad[2]
    assert [(each.step, each.kind) for each in faults.injected] == [(2, text.partition(":")[0])]
    assert faults.missed == []


def test_the_same_plan_gives_the_same_faults() -> None:
    def drill() -> list[Injected]:
        loop = Loop()
        with nantrap.inject("grad:0.5,seed=3;bitflip:step=1,bit=2", model=loop.model) as faults:
            for batch in loop.batches:
                loop.model(batch).square().mean().backward()
        return faults.injected

    assert drill() == drill()
    assert len(drill()) > 2


def test_a_flipped_bit() -> None:
    loop = Loop()
    before = {name: parameter.clone() for name, parameter in loop.model.named_parameters()}
    with nantrap.inject("bitflip:step=0,bit=30", model=loop.model) as faults:
        loop.model(loop.batches[0])
    changed = [(n, p[p != before[n]]) for n, p in loop.model.named_parameters() if not torch.equal(p, before[n])]
    assert len(changed) == 1
    assert changed[0][1].numel() == 1
    assert changed[0][1].abs().item() > 1e30
    assert faults.injected[0].place.startswith(changed[0][0])


def test_a_saved_file_is_bad_and_the_memory_is_not(tmp_path: object) -> None:
    loop = Loop()
    first, second = io.BytesIO(), io.BytesIO()
    with nantrap.inject("checkpoint:step=1") as faults:
        torch.save({"model": loop.model.state_dict()}, first)
        torch.save({"model": loop.model.state_dict()}, second)
    for file, good in ((first, True), (second, False)):
        file.seek(0)
        state = torch.load(file, weights_only=True)["model"]
        assert all(tensor.isfinite().all() for tensor in state.values()) == good
    assert all(parameter.isfinite().all() for parameter in loop.model.parameters())
    assert [each.place for each in faults.injected] == ["save 1"]
    assert torch.save.__module__ == "torch.serialization"


def test_a_file_of_safetensors(tmp_path: Path) -> None:
    from safetensors import torch as files

    original = files.save_file
    weight = torch.ones(3)
    with nantrap.inject("checkpoint:step=0") as faults:
        files.save_file({"weight": weight}, tmp_path / "model.safetensors")
    assert not files.load_file(tmp_path / "model.safetensors")["weight"].isfinite().all()
    assert weight.isfinite().all()
    assert [each.place for each in faults.injected] == ["save 0"]
    assert files.save_file is original


def test_the_optimizer_is_chosen_in_the_order_of_steps() -> None:
    def drill() -> list[Injected]:
        models = [nn.Linear(3, 2) for _ in range(6)]
        optimizers = [torch.optim.Adam(model.parameters()) for model in models]
        whole = nn.ModuleList(models)
        with nantrap.inject("optimizer:step=1,seed=5", model=whole.append(nn.Identity())) as faults:
            whole.forward = lambda x: torch.stack([model(x) for model in models]).sum()  # type: ignore[assignment]
            for _ in range(2):
                whole(torch.ones(1, 3)).backward()
                for optimizer in optimizers:
                    optimizer.step()
        return faults.injected

    places = {drill()[0].place for _ in range(5)}
    assert len(places) == 1


def test_inputs_by_keyword_without_a_model() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 1)

        def forward(self, *, x: Tensor) -> Tensor:
            return self.inner(x)  # type: ignore[no-any-return]

    model, x = Model(), torch.ones(2, 3)
    with nantrap.inject("batch:step=1") as faults:
        for _ in range(3):
            model(x=x).sum().backward()
    assert [(each.step, each.kind) for each in faults.injected] == [(1, "batch")]
    assert not x.isfinite().all()
    assert not model._forward_pre_hooks


def test_nothing_to_hit_is_said() -> None:
    model = nn.Linear(2, 2)
    with nantrap.inject("buffer:step=0;grad:step=0,where=no.such.*", model=model) as faults:
        model(torch.ones(1, 2)).sum().backward()
    assert [(each.kind, each.place) for each in faults.missed] == [
        ("buffer", "nothing to hit"),
        ("grad", "no parameter matches"),
    ]


def test_evaluation_is_left_alone_and_no_hook_stays() -> None:
    loop = Loop()
    with nantrap.inject("loss:step=0", model=loop.model):
        loop.model.eval()
        assert loop.model(loop.batches[0]).isfinite().all()
        loop.model.train()
        with torch.no_grad():
            assert loop.model(loop.batches[0]).isfinite().all()
        assert not loop.model(loop.batches[0]).isfinite().any()
    assert loop.model(loop.batches[0]).isfinite().all()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in loop.model.modules())


@pytest.mark.parametrize("kind", ["batch", "activation", "loss", "grad"])
def test_a_guarded_loop_survives(kind: str, tmp_path: object) -> None:
    loop = Loop()
    policy = nantrap.Policy(diagnose="locate")
    guard = nantrap.Guard(loop.model, loop.optimizer, run_dir=str(tmp_path), policy=policy)
    with nantrap.inject(f"{kind}:step=3", model=loop.model) as faults:
        outcomes = [guard.attempt(lambda batch: loop.model(batch).square().mean(), batch) for batch in loop.batches]
    assert len(faults.injected) == 1
    assert [outcome.applied for outcome in outcomes] == [True, True, True, False, True, True]
    assert all(parameter.isfinite().all() for parameter in loop.model.parameters())


def test_wrong_use() -> None:
    with pytest.raises(UsageError, match="inject takes text"), nantrap.inject([1]):  # type: ignore[list-item]
        pass


def test_a_loss_that_calls_the_model_twice_is_one_step() -> None:
    whole = nn.Sequential(nn.Linear(3, 2))
    with nantrap.inject("loss:step=1;grad:step=2", model=whole) as faults:
        for _ in range(4):
            (whole(torch.ones(1, 3)) - whole(torch.zeros(1, 3))).square().sum().backward()
    assert [(each.step, each.kind) for each in faults.injected] == [(1, "loss"), (2, "grad")]
    assert faults.step == 3


def test_each_backward_pass_ends_a_step() -> None:
    whole = nn.Sequential(nn.Linear(3, 2))
    with nantrap.inject("grad:step=3", model=whole) as faults:
        for _ in range(2):
            for _ in range(2):  # two micro-batches
                whole(torch.ones(1, 3)).sum().backward()
    assert [each.step for each in faults.injected] == [3]
