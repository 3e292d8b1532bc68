"""The engine: asks every rule, ranks what they say, and survives the one that fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import nantrap
from causes.programs import run
from nantrap.causes import Case, engine
from nantrap.causes.claim import Claim
from nantrap.incident import BY_SLUG, Evidence, Incident
from nantrap.incident.codes import CAUSES

PROGRAM = """
import torch

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [torch.zeros(4, 3)]

def loss_fn(batch):
    return (model(batch).squeeze(-1) * torch.lgamma(batch.sum(-1))).mean()
"""
"""lgamma(0) is Inf, and no rule knows lgamma."""

Ask = Callable[[Case], "Claim | None"]


@pytest.fixture
def ask_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Ask]], Incident]:
    """The incident of the program above, with these rules only."""

    def asked(rules: dict[str, Ask]) -> Incident:
        monkeypatch.setattr(engine, "RULES", rules)
        incident = run(PROGRAM, tmp_path)
        assert incident is not None
        return incident

    return asked


AskOnly = Callable[[dict[str, Ask]], Incident]


def test_a_rule_that_raises_is_noted_and_skipped(ask_only: AskOnly) -> None:
    def broken(case: Case) -> Claim | None:
        raise ZeroDivisionError("by design\nand a page that says no more")

    incident = ask_only({"log_of_zero": broken, "exp_overflow": lambda _: Claim("hint", "perhaps", ("it is",))})
    assert [cause.slug for cause in incident.causes] == ["exp_overflow"]
    (note,) = [note for note in incident.notes if note.startswith("the rule for")]
    assert note.startswith("the rule for log_of_zero failed: ZeroDivisionError: by design (broken, line ")
    assert "page" not in note, "the first line is enough"


def test_proven_comes_first_then_what_was_measured_then_hints(ask_only: AskOnly) -> None:
    incident = ask_only(
        {
            "bad_input_data": lambda _: Claim("hint", "perhaps the data", ("it is",)),
            "softmax_fully_masked_row": lambda _: Claim("tried", "nothing was tried", ("it is",)),
            "exp_overflow": lambda _: Claim("measured", "it is exp", ("it is",)),
            "lr_too_high": lambda _: None,
        }
    )
    slugs = [cause.slug for cause in incident.causes]
    assert slugs == ["exp_overflow", "softmax_fully_masked_row", "bad_input_data"]
    assert [cause.proven for cause in incident.causes] == [True, False, False]


def test_only_one_cause_remains_proven_and_precedence_decides(ask_only: AskOnly) -> None:
    claim = Claim("measured", "so it is", ("it is",))
    incident = ask_only(
        {"exp_overflow": lambda _: claim, "log_of_zero": lambda _: claim, "mask_overflow": lambda _: claim}
    )
    assert [cause.slug for cause in incident.causes] == ["mask_overflow", "log_of_zero", "exp_overflow"]
    assert [cause.proven for cause in incident.causes] == [True, False, False]
    assert incident.causes[1].evidence[-1].text.startswith("holds as well; mask_overflow comes earlier")


def test_every_slug_has_a_place_in_the_order() -> None:
    assert len({entry.precedence for entry in CAUSES}) == len(CAUSES) == len(BY_SLUG)
    assert max(CAUSES, key=lambda entry: entry.precedence).slug == "unknown"
    assert {entry.risk for entry in CAUSES} == {"high", "medium", "low"}


def test_what_a_trial_contradicts_is_refuted(ask_only: AskOnly) -> None:
    def asked(case: Case) -> Claim | None:
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


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("bad", ["nan", "inf"])
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_sparse_part_of_the_batch_is_read_like_a_dense_one(layout: torch.layout, bad: str) -> None:
    said = {"nan": "NaN", "inf": "Inf"}[bad]
    model = torch.nn.Linear(3, 2)
    graph = torch.eye(5)
    graph[1, 3] = float(bad)
    batch = {"x": torch.randn(5, 3), "graph": graph.to_sparse(layout=layout)}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nantrap.Guard(model, optimizer, max_grad_norm=None, quiet=True) as guard:
        incident = guard.attempt(lambda b: (b["graph"] @ model(b["x"])).relu().mean(), batch).incident
    assert incident is not None
    assert (incident.causes[0].slug, incident.causes[0].proven) == ("bad_input_data", True)
    assert incident.causes[0].summary == f"the input batch already contains {said}: graph"
    assert incident.samples == (), "a row of a graph is no sample"
    assert not any("failed" in note for note in incident.notes)


# ---- nothing fits


def _unknown(incident: Incident) -> str:
    (cause,) = incident.causes
    assert (cause.slug, cause.code, cause.proven) == ("unknown", "NT000", False)
    assert cause.summary == "no cause could be established"
    (evidence,) = cause.evidence
    return evidence.text


def test_unknown_says_that_nothing_fits(ask_only: AskOnly) -> None:
    assert _unknown(ask_only({})) == "no rule of nantrap fits the inputs of this operation"


def test_unknown_says_that_a_table_was_bad_before_it_was_read() -> None:
    class Kept:
        tables = (torch.tensor([1.0, float("inf")]),)  # no variable of a running function leads to it

    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nantrap.Guard(model, optimizer, max_grad_norm=None, quiet=True) as guard:
        incident = guard.attempt(lambda batch: (model(batch) * Kept.tables[0]).mean(), torch.randn(4, 3)).incident
    assert incident is not None
    words = "the place is known; the tensor that was read there was bad before, and what made it is not known"
    assert _unknown(incident) == words


def test_unknown_asks_for_attempt_in_the_two_line_form(graph_only: None) -> None:
    model = torch.nn.Linear(3, 1)
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), max_grad_norm=None, quiet=True)
    guard.backward(torch.lgamma(model(torch.zeros(4, 3)) * 0).mean())
    incident = guard.step().incident
    assert incident is not None
    assert _unknown(incident) == "guard.attempt(fn, batch) would allow a replay and trials"


def test_unknown_says_that_the_failure_did_not_repeat() -> None:
    model = torch.nn.Linear(3, 1)
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), max_grad_norm=None, quiet=True)
    turn = iter(range(99))  # not restored by a replay: another loss each time, so that two replays do not agree either

    def loss_fn(batch: torch.Tensor) -> torch.Tensor:
        return torch.lgamma(model(batch).square() * next(turn)).mean()

    incident = guard.attempt(loss_fn, torch.ones(4, 3)).incident
    assert incident is not None
    assert _unknown(incident) == "the failure did not repeat, so nothing could be tried on it"
