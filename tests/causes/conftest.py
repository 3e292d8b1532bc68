"""Three ways to an incident: of a program, of the example of a page, and of a program while its case is open."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from causes.programs import Diagnose, IncidentOf, InspectCase, example, run
from nantrap.causes import Case, engine
from nantrap.incident import Incident


@pytest.fixture
def diagnose(tmp_path: Path) -> Diagnose:
    """The first incident of a program; there must be one."""

    def diagnosed(source: str) -> Incident:
        incident = run(source, tmp_path)
        assert incident is not None, "no incident"
        return incident

    return diagnosed


@pytest.fixture(scope="session")
def incident_of(tmp_path_factory: pytest.TempPathFactory) -> IncidentOf:
    """The incident of the example of a cause, by slug; each example is run once."""

    @functools.cache
    def incident(slug: str) -> Incident | None:
        return run(example(slug), tmp_path_factory.mktemp(slug))

    return incident


@pytest.fixture
def inspect_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InspectCase:
    """Runs a program and shows its case to a function, as the only rule there is. What that raises is raised."""

    def inspected(source: str, look: Callable[[Case], None]) -> None:
        seen: list[Exception | None] = []

        def ask(case: Case) -> None:
            try:
                look(case)
                seen.append(None)
            except Exception as error:
                seen.append(error)

        monkeypatch.setattr(engine, "RULES", {"unknown": ask})
        run(source, tmp_path)
        assert seen, "no case was opened"
        if seen[0] is not None:
            raise seen[0]

    return inspected
