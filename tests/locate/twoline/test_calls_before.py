"""A loss of several calls of the model whose outputs nothing holds any more: each call is known when it fails."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap.incident import Incident

AGAIN = "the loss was computed again from its source"
Compute = Callable[[nn.Module, Any], Any]


def first_incident(compute: Compute, model: nn.Module, *, drawn: bool = False) -> Incident:
    draw = torch.Generator().manual_seed(0)
    pairs = [(torch.randn(4, 3, generator=draw), torch.randn(4, 3, generator=draw)) for _ in range(3)]
    pairs[1][0][2] = 0.0
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), quiet=True) as guard:
        for pair in pairs:
            if drawn:
                torch.rand(())
            guard.backward(compute(model, pair))
            incident = guard.step().incident
            if incident is not None:
                return incident
    raise AssertionError("no incident")


def calls_in_one_expression(model: nn.Module, pair: tuple[Tensor, Tensor]) -> Any:
    weight = 1.0 / pair[0].abs().sum(-1)  # no node keeps what the model returned
    return (weight * sum(model(x)[:, :2].log_softmax(-1).sum(-1) for x in pair)).mean()


def calls_in_one_function(model: nn.Module, pair: tuple[Tensor, Tensor]) -> Any:
    chosen = model(pair[0])[:, :2].log_softmax(-1).sum(-1)
    rejected = model(pair[1])[:, :2].log_softmax(-1).sum(-1)
    return ((chosen - rejected) * (1.0 / pair[0].abs().sum(-1))).mean()


@pytest.mark.parametrize("compute", [calls_in_one_function, calls_in_one_expression])
def test_every_call_is_known(compute: Compute) -> None:
    torch.manual_seed(0)
    incident = first_incident(compute, nn.Linear(3, 3))
    assert any(note.startswith(AGAIN) for note in incident.notes)
    assert incident.source is not None
    assert "1.0 / pair[0]" in incident.source.text
    assert (incident.causes[0].slug, incident.causes[0].proven) == ("division_by_zero", True)


@pytest.mark.parametrize("drawn", [False, True])
def test_random_numbers_drawn_by_the_first_call_are_not_made_up(drawn: bool) -> None:
    """The first call is not recorded. Its draws are known only if the loop drew nothing since the step before."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    incident = first_incident(calls_in_one_function, model, drawn=drawn)
    assert any(note.startswith(AGAIN) for note in incident.notes) == (not drawn)


class Held:
    """What a graph saves in the place of a tensor, so that it is seen when the graph is gone."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@pytest.mark.parametrize("size", [8, 2_000_000])
def test_no_graph_and_no_large_input_of_an_earlier_call_is_held(size: int) -> None:
    model = nn.Linear(size, 1)
    kept: list[weakref.ref[Any]] = []

    def pack(tensor: Tensor) -> Held:
        held = Held(tensor)
        kept.append(weakref.ref(held))
        return held

    def loss_fn() -> Any:
        x = torch.ones(1, size)
        kept.append(weakref.ref(x))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor):
            model(x)
        del x
        return model(torch.zeros(1, size)).sum()

    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), quiet=True) as guard:
        loss = loss_fn()
        gc.collect()
        given, *graph = (ref() is not None for ref in kept)
        assert not any(graph)
        assert given == (size == 8)
        guard.backward(loss)
        guard.step()
