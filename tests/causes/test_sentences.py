"""Sentences are claims: each is said of a program of which it is true, and not of one of which it is false."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest

from causes import (
    sentence_programs,
    sentence_programs_edges,
    sentence_programs_more,
    sentence_rows,
    sentence_rows_edges,
    sentence_rows_more,
)
from causes.programs import TORCH_WARNS, IncidentOf, run, run_two_lines
from causes.sentence_programs import POSTLUDE, PRELUDE
from nantrap.incident import Incident

pytestmark = pytest.mark.filterwarnings(*TORCH_WARNS, "ignore:var", "ignore:Attempting to run")
Said = Callable[[str], str]

PROGRAMS = {
    **sentence_programs.PROGRAMS,
    **sentence_programs_more.PROGRAMS,
    **sentence_programs_edges.PROGRAMS,
}
SENTENCES = [
    *(
        (text, *programs)
        for rows in (sentence_rows.PAIRS, sentence_rows_more.PAIRS, sentence_rows_edges.PAIRS)
        for programs, texts in rows.items()
        for text in texts
    ),
    # what is said, of which program it is true, of which it is false
    ("before the forward pass, sample 1", "nan in the batch", "nan in a cached table"),
    ("the batch is non-finite before the forward pass", "nan in the batch", "nan in a cached table"),
    ("a cached table, a closure", "nan in a cached table", "nan in the batch"),
    ("in sample 2, though it is finite", "one value of 1e25", "a batch times 1e20"),
    ("in another scale than those before it", "ages in days", "sure of a far input"),
    ("with the batch in that range the step is finite", "ages in days", "an outlier within the scale"),
    ("the batch is far outside its usual range", "sure of a far input", "sure of the second input"),
    ("the loss is written for shares from 0 to 1", "percent for shares", "one sample alone"),
    ("with targets in [0, 1] is never negative", "masks of 255", "counts up to 5, and a likelihood below zero"),
    ("every label of the batch is ignored", "every label ignored", "class weights of 0"),
    ("every label of the batch has a class weight of 0", "class weights of 0", "every label ignored"),
    ("a quotient over a count of zero", "a mask that selects nothing", "a blank image over its sum"),
    ("a quotient over a count of zero", "a mask that selects nothing", "closed gates over their sum"),
    ("a division by exactly zero", "closed gates over their sum", "a mean of nothing"),
    ("a reduction over no element", "a mean of nothing", "a damaged file read in the step"),
    ("each group holds 1 element", "std of one", "division by zero"),
    ("the logarithm of zero gave -Inf", "log of zero", "logit of one"),
    ("was given exactly 1", "logit of one", "log of zero"),
    ("it came in with a constant of the program", "entropy of masked logits", "an overflow times zero"),
    ("does not remove an Inf", "entropy of masked logits", "division by zero"),
    ("; every input is finite", "division by zero", "root of minus infinity"),
    ("outside its domain", "root of a negative number", "log of zero"),
    ("exp of ", "exp overflows", "cosh overflows"),
    ("cosh of ", "cosh overflows", "exp overflows"),
    ("growth inside the step, not between steps", "a recurrence", "a recurrence and a loss that grows"),
    ("they were not selected", "where after log", "root of zero"),
    ("is infinite at exactly zero", "root of zero", "the end of acos"),
    ("x is exactly ±1", "the end of acos", "root of zero"),
    ("written by hand", "a hand-written backward divides by zero", "root of zero"),
    ("and so divides by its diagonal", "qr of a zero column", "svd of the identity"),
    ("differences of singular or eigen-values", "svd of the identity", "qr of a zero column"),
    ("an epsilon has no effect in float16", "an eps of 1e-8 in half", "a small probability in half"),
    ("an epsilon has no effect in bfloat16", "atanh of a clamp in bfloat16", "a small probability in half"),
    ("the optimizer's eps is 0 in float16", "Adam's eps in half", "an eps of 1e-50"),
    ("the optimizer's eps is 0 in float32", "an eps of 1e-50", "an optimizer that divides by the gradient"),
    ("its constant was rounded to 1", "a rounded beta", "an update divided by a norm of 0"),
    ("the update divides by the norm of something", "an update divided by a norm of 0", "a rounded beta"),
    ("the loss grew until it overflowed", "a rate too high", "gradients that grow alone"),
    ("an earlier batch has a far larger loss now", "a rate too high", "gradients that grow alone"),
    ("the learning rate jumped from 0.01 to 50", "a rate that a schedule raises", "a rate too high"),
    ("exactly 0 in each of the last 11 steps", "nothing was learned for long", "nan in the batch"),
    ("a bad checkpoint, or made so with the model", "weights bad from the start", "a damaged file read in the step"),
    ("was non-finite when it was loaded", "a damaged file read in the step", "weights bad from the start"),
    ("writes non-finite values over it inside the step", "a row copied in the step", "a row written between two steps"),
    ("the step writes them again", "a row written past PyTorch in the step", "a row written between two steps"),
    ("it was finite after the last step", "a row written between two steps", "weights bad from the start"),
    ("updated in the forward pass, holds", "a running average that swallowed Inf", "a codebook replaced by 0/0"),
    ("by the program itself", "a codebook replaced by 0/0", "a running average that swallowed Inf"),
    ("each sample was run alone", "two of the batch together", "one sample alone"),
    ("changed the batch in place", "a batch written in place", "one sample alone"),
    ("the replay is finite: ", "fails once", "one sample alone"),
]


@pytest.fixture(scope="module")
def incident_by_name(tmp_path_factory: pytest.TempPathFactory) -> IncidentOf:
    @functools.cache
    def incident(name: str) -> Incident | None:
        import textwrap

        of_another = name.removesuffix(", two lines")
        source = PRELUDE + textwrap.dedent(PROGRAMS.get(name) or PROGRAMS[of_another]) + POSTLUDE
        form = run if name == of_another else run_two_lines
        return form(source, tmp_path_factory.mktemp("sentence"))

    return incident


def sentences(incident: Incident) -> Iterator[str]:
    """Everything that an incident says about its cause."""
    yield from incident.notes
    for cause in (*incident.causes, *incident.refuted):
        yield cause.summary
        yield from (evidence.text for evidence in cause.evidence)
        if cause.fix is not None:
            yield cause.fix.text
    for trial in incident.trials:
        gave = {True: "finite", False: "not finite", None: trial.note}[trial.finite]
        yield f"{trial.change}: {gave}"


@pytest.mark.parametrize(("text", "program", "neighbour"), SENTENCES)
def test_said_where_it_is_true_and_only_there(
    text: str, program: str, neighbour: str, incident_by_name: IncidentOf
) -> None:
    true, false = incident_by_name(program), incident_by_name(neighbour)
    assert true is not None
    assert false is not None
    assert text in "\n".join(sentences(true))
    assert text not in "\n".join(sentences(false))
