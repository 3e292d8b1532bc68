"""Operations that have no finite value at a point, or leave the range by their exponent: each is named by its cause."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import nantrap
from causes.programs import Diagnose
from nantrap.incident import Cause, Incident

PROGRAM = """
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4{dtype}))
        def forward(self, x):
            h = self.weight * x
            return {expression}

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = [torch.tensor([{values}]{dtype})]

    def loss_fn(batch):
        return model(batch)
"""


def program(expression: str, values: str, dtype: str = "") -> str:
    return PROGRAM.format(expression=expression, values=values, dtype=dtype)


def first(incident: Incident) -> Cause:
    return incident.causes[0]


@pytest.mark.parametrize(
    ("expression", "values", "slug", "summary"),
    [
        (
            "torch.xlogy(h + 1, h).sum()", "0.5, 0.0, 0.7, 0.4", "log_of_zero",
            "the logarithm of zero gave -Inf in the model's own code",
        ),
        (
            "torch.special.xlog1py(h + 3, h).sum()", "0.5, -1.0, 0.7, 0.4", "log_of_zero",
            "the logarithm of zero gave -Inf in the model's own code",
        ),
        (
            "h.log10().sum()", "0.5, 0.0, 0.7, 0.4", "log_of_zero",
            "the logarithm of zero gave -Inf in the model's own code",
        ),
        (
            "(h * (x > 0).long().log()).sum()", "0.5, 0.0, 0.7, 0.4", "log_of_zero",
            "the logarithm of zero gave -Inf in the model's own code",
        ),
        (
            "(h * (4 / (x > 0).long())).sum()", "0.5, 0.0, 0.7, 0.4", "division_by_zero",
            "a division by exactly zero in the model's own code",
        ),
        (
            "h.atanh().sum()", "0.5, 1.0, 0.7, 0.4", "log_of_zero",
            "the logarithm of zero gave +Inf in the model's own code",
        ),
        (
            "torch.slogdet(torch.diag(h))[1]", "0.5, 0.0, 0.7, 0.4", "log_of_zero",
            "the log-determinant of a singular matrix is -Inf in the model's own code",
        ),
        (
            "torch.logdet(torch.diag(h))", "0.5, 0.0, 0.7, 0.4", "log_of_zero",
            "the log-determinant of a singular matrix is -Inf in the model's own code",
        ),
        (
            "torch.pow(h, torch.full_like(h, -1.5)).sum()", "0.5, 0.0, 0.7, 0.4", "division_by_zero",
            "a division by exactly zero in the model's own code",
        ),
        (
            "F.layer_norm(h, (4,), eps=0.0).square().sum()", "0.0, 0.0, 0.0, 0.0", "division_by_zero",
            "a normalisation divides by a deviation of exactly zero in the model's own code",
        ),
        (
            "F.group_norm(h[None], 2, eps=0.0).square().sum()", "0.0, 0.0, 0.0, 0.0", "division_by_zero",
            "a normalisation divides by a deviation of exactly zero in the model's own code",
        ),
        (
            "F.batch_norm(h[None], torch.zeros(4), h.detach(), eps=0.0).sum()", "0.5, 0.0, 0.7, 0.4",
            "division_by_zero",
            "a normalisation divides by a deviation of exactly zero in the model's own code",
        ),
        (
            "(1.01 ** (h * 10000.0)).sum()", "0.5, 1.0, 0.7, 0.4", "exp_overflow",
            "1.01 to the power of 10,000 exceeds the range of float32 in the model's own code",
        ),
        (
            "(torch.tensor(2.0) ** torch.arange(200) * h[0]).sum()", "0.5, 1.0, 0.7, 0.4", "exp_overflow",
            "2 to the power of 199 exceeds the range of float32 in the model's own code",
        ),
        (
            "h.repeat(100).cumprod(0).sum()", "3.0, 3.0, 3.0, 3.0", "exploding_recurrence",
            "cumprod multiplies 400 factors above 1 with each other in the model's own code",
        ),
        (
            "torch.xlogy(h, h).sum()", "0.5, 0.0, 0.7, 0.4", "singular_gradient_at_zero",
            "the derivative of x log y is infinite at exactly zero",
        ),
    ],
)  # fmt: skip
def test_the_cause_is_proven(expression: str, values: str, slug: str, summary: str, diagnose: Diagnose) -> None:
    cause = first(diagnose(program(expression, values)))
    assert (cause.slug, cause.proven) == (slug, True)
    assert cause.summary == summary


@pytest.mark.parametrize(
    ("expression", "values", "fact"),
    [
        ("h.atanh().sum()", "0.5, -1.0, 0.7, 0.4", "aten.atanh was given exactly -1 at 1 of 4 places"),
        (
            "torch.slogdet(torch.diag(h))[1]", "0.5, 0.0, 0.7, 0.4",
            "aten._linalg_slogdet: the determinant is exactly 0 for 1 of 1 matrix; every input is finite",
        ),
        (
            "F.layer_norm(h, (4,), eps=0.0).square().sum()", "0.0, 0.0, 0.0, 0.0",
            (
                "aten.native_layer_norm: the variance is 0 in 1 of 1 groups, and its eps does not keep the root from "
                "0; every input is finite"
            ),
        ),
        (
            "(1.01 ** (h * 10000.0)).sum()", "0.5, 0.95, 0.7, 0.4",
            "aten.pow: at all 1 bad places power · log|base| is above 88.72, where float32 ends",
        ),
    ],
)  # fmt: skip
def test_what_was_measured_and_that_the_remedy_helps(
    expression: str, values: str, fact: str, diagnose: Diagnose
) -> None:
    cause = first(diagnose(program(expression, values)))
    assert cause.evidence[0].text == fact
    assert cause.evidence[1].kind == "trial"


def test_a_fixed_power_of_a_large_number_is_no_exponential(diagnose: Diagnose) -> None:
    incident = diagnose(program("((h * 1e5) ** 20.0).sum()", "0.5, 0.6, 0.7, 0.4"))
    assert "exp_overflow" not in [cause.slug for cause in incident.causes]


def test_the_noise_of_a_gumbel_softmax_is_guilty_and_not_the_softmax(diagnose: Diagnose) -> None:
    incident = diagnose(program("torch.softmax(h - torch.log(-torch.log(h)), 0)[0]", "0.5, 1.0, 0.7, 0.4"))
    assert (incident.op, first(incident).slug, first(incident).proven) == ("aten.log", "log_of_zero", True)


def test_a_mask_made_by_a_logarithm_is_not_guilty(diagnose: Diagnose) -> None:
    incident = diagnose(program("torch.softmax(h + torch.log(h * 0.0), 0)[0]", "0.5, 1.0, 0.7, 0.4"))
    assert (incident.op, first(incident).slug) == ("aten._softmax", "softmax_fully_masked_row")


def test_gradients_that_float16_weights_cannot_hold_leave_the_overflow_a_guess(diagnose: Diagnose) -> None:
    cause = first(diagnose(program("(h * h).float().sum()", "0.5, 300.0, 0.7, 0.4", ", dtype=torch.float16")))
    assert (cause.slug, cause.proven) == ("fp16_forward_overflow", False)
    assert cause.evidence[1].text.startswith("computed in float32 the loss is 90001; the gradients of float16 weights")


UPDATE = """
    import torch

    class Own(torch.optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, {{"lr": lr}})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    {update}

    model = torch.nn.Linear(3, 1)
    optimizer = Own(model.parameters(), lr=1e-3)
    batches = [torch.zeros(2, 3)]

    def loss_fn(batch):
        return model(batch).square().mean()
"""


@pytest.mark.parametrize(
    ("update", "summary"),
    [
        (
            "p.sub_(p.grad * (p.norm() / p.grad.norm()))",
            "the update divides by the norm of something, which is exactly 0",
        ),
        ("p.sub_(p.grad / p.grad.abs())", "the update divides by exactly zero"),
    ],
)
def test_an_optimizer_that_divides_by_zero(update: str, summary: str, diagnose: Diagnose) -> None:
    incident = diagnose(UPDATE.format(update=update))
    assert (incident.phase, incident.op) == ("optimizer", "aten.div")
    assert (first(incident).slug, first(incident).proven) == ("division_by_zero", True)
    assert first(incident).summary == summary
    assert "optimizer_constant_rounding" not in [cause.slug for cause in incident.causes]


@pytest.mark.parametrize(("rate", "text"), [("float('inf')", "Inf"), ("float('nan')", "NaN"), ("1e38", "1e+38")])
def test_a_learning_rate_that_no_update_survives(rate: str, text: str, diagnose: Diagnose) -> None:
    cause = first(
        diagnose(
            f"""
            import torch

            model = torch.nn.Linear(3, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer.param_groups[0]["lr"] = {rate}  # a schedule that divides by the step number
            batches = [torch.ones(2, 3) * 100.0]

            def loss_fn(batch):
                return (model(batch) - 1e3).square().mean()
            """
        )
    )
    assert (cause.slug, cause.proven) == ("lr_too_high", True)
    assert cause.summary == f"a learning rate of {text} makes the update non-finite"
    assert [each.text for each in cause.evidence] == [
        f"lr={text} in a parameter group of the optimizer; the loss and the gradients are finite",
        "the same update with a learning rate of 1e-06 is finite",
    ]
    assert cause.fix is not None
    assert not cause.fix.verified


def test_a_buffer_that_the_code_around_the_model_writes() -> None:
    model = nn.Linear(3, 1)
    model.register_buffer("centre", torch.zeros(1))
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), max_grad_norm=None, quiet=True)
    out = model(torch.ones(2, 3))
    with torch.no_grad():
        model.get_buffer("centre").copy_(out.detach().mean(0) * 0.0 / torch.zeros(1))  # a count that starts at 0
    guard.backward(out.square().mean())
    incident = guard.step().incident
    assert incident is not None
    cause = first(incident)
    assert (cause.slug, cause.proven) == ("state_overwritten", True)
    assert cause.evidence[0].text == (
        "the code around the model wrote centre: 1 of 1 values is NaN; loss and gradients are finite"
    )
