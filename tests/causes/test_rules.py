"""What the rules say: the wording of a few causes of each family, and what every cause must keep to."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from causes.programs import TORCH_WARNS, Diagnose, IncidentOf, run_two_lines
from nantrap.incident import Cause, Incident
from nantrap.pages import cause_pages

pytestmark = pytest.mark.filterwarnings(*TORCH_WARNS)

SLUGS = [page.slug for page in cause_pages() if page.slug != "rank_divergence"]


def first(incident: Incident | None) -> Cause:
    assert incident is not None
    return incident.causes[0]


def evidence(cause: Cause) -> list[str]:
    return [each.text + (f" (trial {each.trial})" if each.trial is not None else "") for each in cause.evidence]


# ---- what every cause must keep to


@pytest.mark.parametrize("slug", SLUGS)
def test_proven_only_with_evidence(slug: str, incident_of: IncidentOf) -> None:
    incident = incident_of(slug)
    assert incident is not None
    for cause in incident.causes:
        assert cause.summary
        assert cause.evidence
        assert 0 <= cause.confidence <= 1
        if cause.slug != "unknown":
            assert cause.fix is not None
            assert cause.fix.words


@pytest.mark.parametrize("slug", SLUGS)
def test_verified_only_by_a_trial_that_was_finite(slug: str, incident_of: IncidentOf) -> None:
    incident = incident_of(slug)
    assert incident is not None
    trials = {trial.number: trial for trial in incident.trials}
    for cause in (*incident.causes, *incident.refuted):
        for each in cause.evidence:
            assert (each.kind == "trial") == (each.trial is not None)
            assert each.trial is None or each.trial in trials
        fix = cause.fix
        if fix is not None and fix.verified:
            assert fix.trial is not None
            assert trials[fix.trial].finite is True
        assert fix is None or not fix.diff or fix.verified, "a diff is shown only where a trial did it"


@pytest.mark.parametrize("slug", SLUGS)
def test_best_comes_first(slug: str, incident_of: IncidentOf) -> None:
    incident = incident_of(slug)
    assert incident is not None
    ranks = [(cause.proven, cause.confidence) for cause in incident.causes]
    assert ranks == sorted(ranks, reverse=True)
    assert len({cause.slug for cause in incident.causes}) == len(ranks)


# ---- data


def test_bad_input_data(incident_of: IncidentOf) -> None:
    cause = first(incident_of("bad_input_data"))
    assert cause.proven
    assert cause.summary == "the input batch already contains NaN"
    assert evidence(cause)[0].startswith("batch holds 1 NaN among 32 values before the forward pass, sample")
    assert evidence(cause)[1] == "without that sample the step is finite (trial 1)"


def test_finite_nonsense(diagnose: Diagnose) -> None:
    cause = first(
        diagnose(
            """
            import torch

            model = torch.nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            batches = [torch.randn(8, 4) for _ in range(2)]
            batches[1][3, 0] = 1e30

            def loss_fn(batch):
                return model(batch).square().mean()
            """
        )
    )
    assert (cause.slug, cause.proven) == ("bad_input_data", True)
    assert cause.summary == "the batch holds a value that is no measurement: batch reaches 1e+30"
    assert evidence(cause) == [
        "|batch| reaches 1e+30 in sample 3, though it is finite",
        "without that sample the step is finite (trial 1)",
    ]


def test_label_out_of_range(incident_of: IncidentOf) -> None:
    cause = first(incident_of("label_out_of_range"))
    assert (cause.slug, cause.proven) == ("label_out_of_range", True)
    assert cause.summary == "targets lie in [0, 255], binary_cross_entropy_with_logits accepts [0, 1]"
    assert evidence(cause)[-1].startswith("with targets in [0, 1] the same steps are finite (trial ")
    assert cause.fix is not None
    assert "a mask read as 0..255 needs / 255" in cause.fix.words


def test_mean_over_a_mask_that_selects_nothing(diagnose: Diagnose) -> None:
    cause = first(
        diagnose(
            """
            import torch

            model = torch.nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            batches = [(torch.randn(8, 4), torch.zeros(8, 1))]

            def loss_fn(batch):
                x, mask = batch
                return (model(x) * mask).sum() / mask.sum()
            """
        )
    )
    assert (cause.slug, cause.proven) == ("empty_reduction", True)
    assert cause.summary == "a quotient over a count of zero"
    assert evidence(cause)[-1] == "with the safe form the step is finite (trial 1)"
    assert cause.fix is not None
    assert cause.fix.verified
    assert cause.fix.words == (
        "a / b.clamp(min=1): verified, the step is finite with it (trial 1); "
        "not tried: nantrap.ops.masked_mean(x, mask)"
    )


def test_empty_reduction_says_that_nothing_is_to_be_rolled_back(incident_of: IncidentOf) -> None:
    assert evidence(first(incident_of("empty_reduction")))[:2] == [
        "all 4 targets are -100 (ignored): the mean is 0/0",
        "the gradients are all zero: nothing to roll back",
    ]


def test_ctc(incident_of: IncidentOf) -> None:
    cause = first(incident_of("ctc_infeasible_alignment"))
    assert cause.summary == "sample 0 needs 5 frames for its target, the input has 4"
    assert cause.fix is not None
    assert "zero_infinity=True hides them" in cause.fix.words


# ---- forward maths


def test_softmax(incident_of: IncidentOf) -> None:
    cause = first(incident_of("softmax_fully_masked_row"))
    assert cause.proven
    assert cause.summary == "softmax over a row in which every position is masked gave NaN, from sample 1"
    assert evidence(cause) == [
        "3 of 6 rows are -inf everywhere, and exactly those rows are NaN",
        "softmax of such a row is 0/0: exp(-inf - max) with max = -inf",
        "with a masked softmax the step is finite (trial 1)",
    ]
    assert cause.fix is not None
    assert cause.fix.verified
    assert "nantrap.ops.masked_softmax(x, dim=dim): verified" in cause.fix.words


def test_log_of_softmax_is_tried_in_log_space(incident_of: IncidentOf) -> None:
    cause = first(incident_of("log_of_zero"))
    assert evidence(cause)[0] == "aten.log was given exactly 0 at 12 of 24 places"
    assert evidence(cause)[1] == (
        "with log_softmax(x) instead of log(softmax(x)) in line 10 the step is finite (trial 1)"
    )
    assert cause.fix is not None
    assert cause.fix.verified
    assert cause.fix.words.startswith("log_softmax(x) instead of log(softmax(x)) in line ")


def test_division(incident_of: IncidentOf) -> None:
    cause = first(incident_of("division_by_zero"))
    assert evidence(cause)[0] == (
        "the denominator is exactly 0 at 1 of 4 places (row 1), made by aten.std; every input is finite"
    )


def test_exp(incident_of: IncidentOf) -> None:
    cause = first(incident_of("exp_overflow"))
    assert cause.summary == "exp of 99.87 exceeds the range of float32 in the loss"
    assert evidence(cause)[0] == "aten.exp was given 99.87; in float32 it overflows above 88.72"


SINKHORN = """
import torch

model = torch.nn.Linear(2, 8, bias=False)
torch.nn.init.constant_(model.weight, 1.0)
model.weight.data[2:4] = -1.0
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batches = [torch.full((2, 2), 0.5), torch.full((2, 2), 300.0)]

def loss_fn(batch):
    matrix = model(batch).unflatten(-1, (2, 2, 2)).exp()
    for _ in range(3):
        matrix = matrix / matrix.sum(-1, keepdim=True)
        matrix = matrix / matrix.sum(-2, keepdim=True)
    return (matrix * torch.arange(2.0)).mean()
"""
"""One row of the logits is 600, the other -600: without Inf there are still rows of zeros to divide by."""


def test_exp_that_is_normalised_needs_a_bound_on_both_sides(diagnose: Diagnose) -> None:
    cause = first(diagnose(SINKHORN))
    assert cause.slug == "exp_overflow"
    assert cause.proven
    assert evidence(cause) == [
        "aten.exp was given 600; in float32 it overflows above 88.72",
        "with torch.exp(x.clamp(-22, 22)) in line 11 the step is finite (trial 2)",
    ]


def test_recurrence(incident_of: IncidentOf) -> None:
    cause = first(incident_of("exploding_recurrence"))
    assert "by about 2 in each of " in cause.summary
    assert evidence(cause)[1] == "the factor per round is 2: growth inside the step, not between steps"


# ---- backward maths


def test_singular_gradient(incident_of: IncidentOf) -> None:
    incident = incident_of("singular_gradient_at_zero")
    assert incident is not None
    assert (incident.phase, incident.node) == ("backward", "SqrtBackward0")
    cause = first(incident)
    assert evidence(cause) == [
        "SqrtBackward0: the derivative of sqrt is infinite at exactly zero; what it divides by is 0 at 5 of 25 places",
        "with a bounded slope the step is finite (trial 1)",
    ]
    assert cause.fix is not None
    assert "an eps outside, sqrt(x) + eps, changes nothing" in cause.fix.words
    if sys.version_info >= (3, 11):
        assert cause.fix.diff.endswith("+    return nantrap.ops.safe_sqrt(squared).mean()")


def test_arccos_says_that_the_usual_clamp_does_not_help(incident_of: IncidentOf) -> None:
    fix = first(incident_of("arccos_boundary")).fix
    assert fix is not None
    assert fix.verified
    assert "before torch 2.15, to [-1, 1] is not enough" in fix.words


def test_where(incident_of: IncidentOf) -> None:
    cause = first(incident_of("where_unselected_branch"))
    assert cause.summary == "the branch of log that was not selected put NaN into the gradient"
    assert evidence(cause)[:2] == [
        (
            "the gradient that reaches LogBackward0 is exactly 0 at all 6 bad places, and also 0 where it leaves "
            "WhereBackward0: these places were not selected"
        ),
        "the local derivative of log is infinite there, and 0 · Inf = NaN",
    ]


# ---- precision


def test_fp16_forward(incident_of: IncidentOf) -> None:
    cause = first(incident_of("fp16_forward_overflow"))
    assert cause.proven
    assert evidence(cause) == [
        "the float32 result of aten.mm is 1.0889e+06, above float16's limit of 65504",
        "the same step in float32 is finite (trial 1)",
    ]


def test_eps(incident_of: IncidentOf) -> None:
    cause = first(incident_of("eps_underflow_half"))
    assert cause.summary == "an epsilon has no effect in float16: the argument of div is exactly 0"
    assert "in float16 1e-08 is 0" in evidence(cause)


def test_adam_eps(incident_of: IncidentOf) -> None:
    cause = first(incident_of("adam_eps_underflow_half"))
    assert evidence(cause) == [
        "what the update divides by is exactly 0 at 2 of 8 places in float16",
        "eps = 1e-08 is 0 in float16",
        "the same update in float32 is finite (trial 1)",
    ]


def test_loss_scale_is_reported_exactly(incident_of: IncidentOf) -> None:
    assert first(incident_of("loss_scale_misuse")).summary == "a loss scale of 1.04858e+06 overflows the gradients"


# ---- optimisation and history


def test_rate(incident_of: IncidentOf) -> None:
    cause = first(incident_of("lr_too_high"))
    assert cause.summary == "a learning rate of 50 is beyond the stability limit: the loss grew until it overflowed"
    assert cause.evidence[0].text.startswith("the updates since step 0 moved the weights by ")
    assert cause.evidence[1].text == "an earlier batch has a far larger loss now, with the same random numbers"
    assert cause.evidence[2].kind == "history"
    assert evidence(cause)[3] == "the same batches with a hundredth of the learning rate stay finite (trial 3)"


def test_a_learning_rate_that_diverges_later_is_not_called_stable(incident_of: IncidentOf) -> None:
    fix = first(incident_of("lr_too_high")).fix
    assert fix is not None
    assert "a tenth, 5, is stable here" not in fix.words


def test_resume(incident_of: IncidentOf) -> None:
    cause = first(incident_of("resume_lr_jump"))
    assert cause.summary == "the learning rate jumped from 0.02 to 50 at step 4"
    assert evidence(cause)[1] == "with the learning rate before the jump the same steps stay finite (trial 1)"


def test_norm_overflow_is_no_fault_of_the_kernel(incident_of: IncidentOf) -> None:
    incident = incident_of("grad_norm_overflow")
    assert "clipping would silently zero the update" in first(incident).summary


def test_initialisation(incident_of: IncidentOf) -> None:
    cause = first(incident_of("bad_initialisation"))
    assert evidence(cause)[0].startswith("24 weights multiply the scale of their input by more than 4; ")
    assert evidence(cause)[-1] == "with those weights rescaled the step is finite (trial 1)"


# ---- state and platform


def test_checkpoint(incident_of: IncidentOf) -> None:
    incident = incident_of("corrupt_checkpoint")
    assert incident is not None
    assert incident.phase == "state"
    assert evidence(first(incident))[0] == "weight holds 1 NaN among 24 values before the first step"


def test_optimizer_state(incident_of: IncidentOf) -> None:
    assert evidence(first(incident_of("corrupt_optimizer_state"))) == [
        "momentum_buffer of weight holds 4 NaN among 8 values before the step",
        "weights and gradients are finite",
        "with a fresh optimizer state the same update is finite (trial 1)",
    ]


def test_buffers(incident_of: IncidentOf) -> None:
    cause = first(incident_of("bn_buffers_poisoned"))
    assert cause.summary == "0.running_var, updated in the forward pass, holds non-finite values"


def test_flipped_bit(incident_of: IncidentOf) -> None:
    cause = first(incident_of("hardware_fault"))
    assert cause.summary == "one value of weight has the bits of a damaged number"
    assert not cause.proven
    assert cause.fix is not None
    assert "replace" not in cause.fix.words


def test_a_foreign_kernel_is_a_guess(incident_of: IncidentOf) -> None:
    cause = first(incident_of("backend_or_kernel_bug"))
    assert not cause.proven
    assert cause.summary == "the kernel nantrap_page.softmax made non-finite values"


MINUS_INF_BIAS = """
import torch
import nantrap

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def loss_fn(batch):
    return torch.nn.functional.cross_entropy(model(batch), torch.zeros(4, dtype=torch.long), label_smoothing=0.1)

guard = nantrap.Guard(model, optimizer, quiet=True)
for _ in range(2):
    guard.attempt(loss_fn, torch.randn(4, 3))
model[1].bias.data[1] = -float("inf")
batches = [torch.randn(4, 3)]
"""


def test_minus_inf_in_a_trained_weight_is_no_mask(diagnose: Diagnose) -> None:
    incident = diagnose(MINUS_INF_BIAS)
    assert (incident.phase, incident.causes[0].slug, incident.causes[0].proven) == ("state", "state_overwritten", True)
    assert incident.causes[0].summary == "1.bias was overwritten with a non-finite value by the program itself"


CODEBOOK = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.ModuleDict({"enc": nn.Linear(4, 3), "dec": nn.Linear(3, 4)})  # not called as a whole
model.register_buffer("codes", torch.eye(4, 3))
model.register_buffer("running_mean", torch.zeros(3))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batches = [torch.randn(8, 4) for _ in range(4)]
numbers = iter(range(4))

def loss_fn(x):
    number = next(numbers)  # a side effect: the loss is not computed again
    z = model["dec"](model["enc"](x))
    if number == 2:
        with torch.no_grad():
            model.NAME.copy_(model.NAME / 0.0)
    return z.square().mean()
"""


@pytest.mark.parametrize(("name", "proven"), [("codes", False), ("running_mean", True)])
def test_a_buffer_that_nothing_was_seen_to_write_is_called_an_average_by_its_name(
    tmp_path: Path, name: str, proven: bool
) -> None:
    incident = run_two_lines(CODEBOOK.replace("NAME", name), tmp_path)
    assert incident is not None
    assert incident.causes[0].slug == "bn_buffers_poisoned"
    assert incident.causes[0].proven == proven
