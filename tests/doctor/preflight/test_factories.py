"""Factories with known weaknesses: the right checks complain, with the right cause, and no others."""

from __future__ import annotations

import pytest

from doctor.preflight.factories import SOUND, WEAK, Factory
from nantrap.doctor.preflight import preflight


def complaints(make: Factory) -> dict[str, str]:
    found = {}
    for check in preflight(make).checks:
        if check.status in ("warn", "fail"):
            cause = check.values.get("cause")
            found[check.name] = f"{check.status}:{cause}" if cause else check.status
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", WEAK)
def test_a_weak_factory(name: str) -> None:
    make, expected = WEAK[name]
    found = complaints(make)
    for check, wanted in expected.items():
        status, _, cause = wanted.partition(":")
        assert found.get(check, "").startswith(f"{status}:{cause}" if cause else status), (check, found)
    assert set(found) <= set(expected), found


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_factory(name: str) -> None:
    assert complaints(SOUND[name]) == {}
