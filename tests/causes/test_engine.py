"""The engine: asks every rule, ranks what they say, and survives the one that fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import nantrap
from causes.programs import run
from nantrap.causes import Case, Rule, engine
from nantrap.incident import BY_SLUG, Cause, Evidence, Incident

PROGRAM = """
import torch

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [torch.zeros(4, 3)]

def loss_fn(batch):
    return (model(batch).squeeze(-1) * torch.lgamma(batch.sum(-1))).mean()
"""
"""lgamma(0) is Inf, and no rule knows lgamma."""

Ask = Callable[[Case], "Cause | None"]


@pytest.fixture
def ask_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Ask]], Incident]:
    """The incident of the program above, with these rules only."""

    def asked(rules: dict[str, Ask]) -> Incident:
        monkeypatch.setattr(engine, "RULES", {slug: Rule(BY_SLUG[slug], ask) for slug, ask in rules.items()})
        incident = run(PROGRAM, tmp_path)
        assert incident is not None
        return incident

    return asked


AskOnly = Callable[[dict[str, Ask]], Incident]


def test_a_rule_that_raises_is_noted_and_passed_over(ask_only: AskOnly) -> None:
    def broken(case: Case) -> Cause | None:
        raise ZeroDivisionError("by design")

    incident = ask_only({"log_of_zero": broken, "exp_overflow": lambda _: Cause("exp_overflow", confidence=0.5)})
    assert [cause.slug for cause in incident.causes] == ["exp_overflow"]
    (note,) = [note for note in incident.notes if note.startswith("the rule for")]
    assert note.startswith("the rule for log_of_zero failed: ZeroDivisionError: by design (broken, line ")


def test_proven_comes_before_confident(ask_only: AskOnly) -> None:
    incident = ask_only(
        {
            "log_of_zero": lambda _: Cause("log_of_zero", confidence=0.99),
            "exp_overflow": lambda _: Cause("exp_overflow", proven=True, confidence=0.6),
            "lr_too_high": lambda _: None,
            "mask_overflow": lambda _: Cause("mask_overflow", proven=True, confidence=0.8),
        }
    )
    assert [cause.slug for cause in incident.causes] == ["mask_overflow", "exp_overflow", "log_of_zero"]


def test_of_equals_the_one_asked_first(ask_only: AskOnly) -> None:
    names = ("exp_overflow", "log_of_zero", "mask_overflow")
    incident = ask_only({name: lambda _, name=name: Cause(name, confidence=0.5) for name in names})  # type: ignore[misc]
    assert tuple(cause.slug for cause in incident.causes) == names


def test_what_a_trial_contradicts_is_refuted(ask_only: AskOnly) -> None:
    def asked(case: Case) -> Cause | None:
        trial = case.lab.again()
        case.refute("lr_too_high", trial, "the same again does not help")
        return None

    incident = ask_only({"lr_too_high": asked})
    (refuted,) = incident.refuted
    assert refuted.slug == "lr_too_high"
    assert refuted.evidence == (Evidence("the same again does not help", kind="trial", trial=1),)
    assert [trial.name for trial in incident.trials] == ["again"]
    assert incident.causes[0].slug == "unknown"


def test_rules_without_torch_are_all_there() -> None:
    from nantrap.causes import RULES

    assert set(RULES) == set(BY_SLUG) - {"unknown"}
    assert next(iter(RULES)) == "uninitialised_memory", "the state is asked first: it is the cheapest"


# ---- nothing fits


def _unknown(incident: Incident) -> str:
    (cause,) = incident.causes
    assert (cause.slug, cause.code, cause.proven) == ("unknown", "NT000", False)
    assert cause.summary == "no cause could be established"
    (evidence,) = cause.evidence
    return evidence.text


def test_unknown_says_that_no_rule_knows_the_operation(ask_only: AskOnly) -> None:
    text = _unknown(ask_only({}))
    assert text == "no rule knows this operation; the frames and statistics above are all that was measured"


def test_unknown_asks_for_attempt_in_the_two_line_form() -> None:
    model = torch.nn.Linear(3, 1)
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), max_grad_norm=None, quiet=True)
    guard.backward(torch.lgamma(model(torch.zeros(4, 3)) * 0).mean())
    incident = guard.step().incident
    assert incident is not None
    assert _unknown(incident) == "guard.attempt(fn, batch) would allow a replay and trials"


def test_unknown_says_that_the_failure_did_not_repeat() -> None:
    model = torch.nn.Linear(3, 1)
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), max_grad_norm=None, quiet=True)
    calls: list[int] = []

    def loss_fn(batch: torch.Tensor) -> torch.Tensor:
        calls.append(1)  # another loss each time, so that two replays do not agree either
        return torch.lgamma(model(batch).square() * (len(calls) - 1)).mean()

    incident = guard.attempt(loss_fn, torch.ones(4, 3)).incident
    assert incident is not None
    assert _unknown(incident) == "the failure did not repeat, so nothing could be tried on it"
