"""A slope that is finite next to zero, and too steep for the gradient in float16."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nantrap
from nantrap.incident import Incident


class Rsqrt(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-20)


class Power(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * (x.square().mean(-1, keepdim=True) + 1e-20) ** -0.5


class Quotient(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x / (x.abs().sum(-1, keepdim=True) + 1e-12)


class Unit(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x.float(), dim=-1)


NORMS = {
    "rsqrt": Rsqrt(),
    "x ** a": Power(),
    "a / b": Quotient(),
    "normalize": Unit(),
    "layer_norm": nn.LayerNorm(8, eps=1e-20),
    "group_norm": nn.GroupNorm(2, 8, eps=1e-20),
    "rms_norm": nn.RMSNorm(8, eps=1e-20),
}


class Net(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.into, self.norm, self.out = nn.Linear(4, 8, bias=False), norm, nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            result: Tensor = self.out(self.norm(self.into(x)))
        return result


def incident_of(norm: nn.Module, *, repeatable: bool = True, gain: float = 1.0) -> Incident:
    """Train on a batch with a silent row, which no normalisation can scale."""
    torch.manual_seed(0)
    model = Net(norm)
    batch = torch.randn(8, 4)
    batch[2] = 0.0

    def loss_of(x: Tensor) -> Tensor:
        return gain * model(x).float().square().mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nantrap.Guard(model, optimizer, quiet=True) as guard:
        if repeatable:
            incident = guard.attempt(loss_of, batch).incident
        else:
            guard.backward(loss_of(batch))
            incident = guard.step().incident
    assert incident is not None
    return incident


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("name", NORMS)
def test_a_slope_too_steep_for_float16_is_proven_with_a_larger_eps(name: str) -> None:
    if name == "rms_norm" and not hasattr(torch.ops.aten, "_fused_rms_norm"):
        pytest.skip("this torch computes it in float16, where the eps is 0: a division by zero")
    cause = incident_of(NORMS[name]).causes[0]
    assert (cause.slug, cause.proven) == ("singular_gradient_at_zero", True)
    assert cause.fix is not None
    assert cause.fix.verified
    assert cause.evidence[-1].text == "with the argument kept further from zero the step is finite"


@pytest.mark.parametrize("name", ["rsqrt", "layer_norm"])
def test_what_two_lines_can_see_of_it_is_said_and_not_called_proven(name: str, graph_only: None) -> None:
    cause = incident_of(NORMS[name], repeatable=False).causes[0]
    assert (cause.slug, cause.proven) == ("singular_gradient_at_zero", False)


def test_its_words_name_the_product_the_cast_and_the_line() -> None:
    incident = incident_of(NORMS["rsqrt"])
    cause = incident.causes[0]
    assert (incident.op, incident.node) == ("aten._to_copy", "ToCopyBackward0")
    assert cause.summary == "the slope of rsqrt next to zero makes a gradient that float16 cannot hold"
    assert cause.evidence[0].text.startswith("MulBackward0 multiplies the gradient by up to ")
    assert cause.evidence[0].text.endswith(": rsqrt was computed almost at 0")
    assert cause.evidence[1].text == (
        "aten._to_copy writes it in float16, which ends at 65,504; without that factor it fits"
    )
    assert cause.fix is not None
    assert cause.fix.text.startswith("torch.rsqrt(x.clamp(min=1e-05)) in line ")
    assert "not tried: a larger eps for rsqrt in line " in cause.fix.words
    assert " of Rsqrt.forward, for example 1e-05; " in cause.fix.words
    fused = incident_of(NORMS["layer_norm"]).causes[0]
    assert fused.evidence[0].text.endswith(": what layer_norm divides by is almost 0")


def test_a_loss_scale_that_overflows_a_sound_norm_stays_a_loss_scale() -> None:
    cause = incident_of(nn.LayerNorm(8), gain=2.0**24).causes[0]
    assert (cause.slug, cause.proven) == ("loss_scale_misuse", True)
