"""The remedy that is shown is the one that was tried, and one that failed is not advised."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import nantrap
from causes.programs import Diagnose
from nantrap.incident import Fix, Incident


def fix_of(incident: Incident) -> Fix:
    fix = incident.causes[0].fix
    assert fix is not None
    return fix


def test_no_diff_of_a_division_that_was_tried_and_failed(diagnose: Diagnose) -> None:
    """The norm of zeros has an infinite slope itself: a quotient of 0 leaves it, a floor does not."""
    incident = diagnose(
        """
        import torch

        model = torch.nn.Linear(3, 4)
        torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [torch.ones(2, 3)]

        def length(x):
            return torch.pow(torch.pow(x, 2).sum(-1, keepdim=True), 0.5)

        def loss_fn(batch):
            x = model(batch)
            return (x / length(x) - 1).square().sum()
        """
    )
    assert [(trial.name, trial.finite) for trial in incident.trials] == [
        ("replaced:div", False),
        ("replaced:floor", True),
    ]
    assert (incident.causes[0].slug, fix_of(incident).verified) == ("division_by_zero", True)
    assert fix_of(incident).diff == ""


def test_a_scaler_is_advised_and_not_called_verified_by_a_scale_of_one(diagnose: Diagnose) -> None:
    incident = diagnose(
        """
        import torch

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [torch.ones(2, 3)]

        def loss_fn(batch):
            with torch.autocast("cpu", torch.float16):
                out = model(batch)
            return (out.float() - 5).square().mean() * 2.0**24
        """
    )
    assert (incident.causes[0].slug, incident.causes[0].proven) == ("loss_scale_misuse", True)
    assert not fix_of(incident).verified


def test_a_hook_on_a_gradient_is_called_so(diagnose: Diagnose) -> None:
    incident = diagnose(
        """
        import torch

        model = torch.nn.Linear(3, 1)
        model.weight.register_hook(lambda g: g / g.norm())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [torch.zeros(2, 3)]

        def loss_fn(batch):
            return (model(batch) - 1).square().mean()
        """
    )
    assert incident.causes[0].summary == "a division by exactly zero in a hook on a gradient"


@pytest.mark.parametrize(
    ("dtype", "expression", "eps"),
    [
        ("bfloat16", "torch.log1p(-h.clamp(max=1 - 1e-6))", "torch.log(1 + x + 1e-06)"),
        ("float16", "torch.log1p(-h.clamp(max=1 - 1e-6))", "torch.log(1 + x + 0.0001)"),
        ("float16", "torch.log(1 - h + 1e-8)", "torch.log(x + 0.0001)"),
    ],
)
def test_an_eps_that_the_dtype_holds_where_it_is_needed(
    dtype: str, expression: str, eps: str, diagnose: Diagnose
) -> None:
    incident = diagnose(
        f"""
        import torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.ones(2, dtype=torch.{dtype}))
            def forward(self, x):
                h = torch.sigmoid(self.weight * x)
                return {expression}.float().sum()

        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [torch.tensor([0.5, 50.0], dtype=torch.{dtype})]

        def loss_fn(batch):
            return model(batch)
        """
    )
    assert incident.causes[0].slug == "eps_underflow_half"
    assert f"{eps}: verified" in fix_of(incident).words


def test_selecting_before_a_division_is_written_as_a_division(diagnose: Diagnose) -> None:
    incident = diagnose(
        """
        import torch

        model = torch.nn.Linear(3, 3, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])]

        def loss_fn(batch):
            x = model(batch)
            n = x.abs().sum(-1, keepdim=True)
            return torch.where(n > 0, x / n, x).sum()
        """
    )
    assert incident.causes[0].slug == "where_unselected_branch"
    assert fix_of(incident).words.endswith(
        "not tried: select before the operation, not after it: a / torch.where(ok, b, 1.0), then torch.where on the "
        "result"
    )


def test_a_floor_under_a_logarithm_that_did_not_help_is_not_advised(diagnose: Diagnose) -> None:
    """The same zero is divided by afterwards."""
    incident = diagnose(
        """
        import torch

        model = torch.nn.Linear(2, 2, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [torch.zeros(1, 2)]

        def loss_fn(batch):
            x = model(batch)
            return (torch.log(x) + 1 / x).sum()
        """
    )
    assert (incident.causes[0].slug, incident.causes[0].proven) == ("log_of_zero", False)
    assert fix_of(incident).words == (
        "an argument that is kept from 0 where it is made; not enough: nantrap.ops.safe_log(x) (trial 1)"
    )


def test_two_losses_without_a_target_are_both_replaced(diagnose: Diagnose) -> None:
    incident = diagnose(
        """
        import torch
        from torch.nn import functional as F

        model = torch.nn.Linear(2, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [(torch.ones(3, 2), torch.full((3,), -100))]

        def loss_fn(batch):
            x, y = batch
            start = F.cross_entropy(model(x), y)
            end = F.cross_entropy(model(2 * x), y)
            return start + end
        """
    )
    assert (incident.causes[0].slug, incident.causes[0].proven) == ("empty_reduction", True)
    assert [trial.finite for trial in incident.trials] == [True]
    assert " and " in incident.trials[0].change


def test_a_parametrization_is_named_where_only_the_graph_can_be_read() -> None:
    last = nn.Linear(4, 1)
    nn.init.zeros_(last.weight)
    model = nn.ModuleDict({"critic": nn.Sequential(nn.Linear(3, 4), spectral_norm(last))})
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), max_grad_norm=None, quiet=True)
    guard.backward(model["critic"](torch.ones(2, 3)).mean())
    incident = guard.step().incident
    assert incident is not None
    assert incident.module == "critic.1.parametrizations.weight.0"
    assert (incident.causes[0].slug, incident.causes[0].proven) == ("division_by_zero", True)


def test_a_scaler_at_its_lowest_is_not_asked_to_go_lower() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)

    def loss(batch: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.float16):
            out = model(batch)
        return (out.float() - 5).square().mean() * 2.0**24

    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), scaler=scaler, quiet=True) as guard:
        incident = guard.attempt(loss, torch.ones(2, 3)).incident
    assert incident is not None
    assert fix_of(incident).text == (
        "the scaler is at 1 already; the program itself multiplies the loss by 1.67772e+07"
    )
