"""Sentences are claims: each is said of a program of which it is true, and not of one of which it is false."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest

from causes.programs import TORCH_WARNS, IncidentOf, run, run_two_lines
from causes.sentences import POSTLUDE, PRELUDE, PROGRAMS, SENTENCES
from nantrap.incident import Incident

pytestmark = pytest.mark.filterwarnings(*TORCH_WARNS, "ignore:var", "ignore:Attempting to run")
Said = Callable[[str], str]


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
            yield cause.fix.words
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
