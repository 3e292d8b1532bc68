"""The best cause of every program of the zoo that was looked at, and no proof of a wrong one."""

from __future__ import annotations

import pytest

from torch_habits import is_possible
from zoo.judging import Tally, measure
from zoo.loading import find
from zoo.tools.nantrap import Guarded


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("collection", "form", "at_most_missed"),
    [
        ("other_forms", "attempt", 0),
        ("written_from_the_causes", "attempt", 0),
        ("written_from_the_causes", "two lines", 1),
        ("traps_for_rules", "attempt", 1),
        ("traps_for_rules", "two lines", 2),
        ("before_the_rules_were_read", "two lines", 0),
        pytest.param("models_of_many_kinds", "attempt", 0, marks=pytest.mark.slow),
        ("models_of_many_kinds", "two lines", 0),
        pytest.param("real_models", "attempt", 0, marks=pytest.mark.slow),
        ("real_models", "two lines", 0),
        ("wrong_cause_is_close", "attempt", 1),
        ("wrong_cause_is_close", "two lines", 2),
        pytest.param("tempting_causes", "attempt", 0, marks=pytest.mark.slow),
        ("tempting_causes", "two lines", 1),
        pytest.param("models_and_mechanisms", "attempt", 0, marks=pytest.mark.slow),
        ("models_and_mechanisms", "two lines", 1),
        pytest.param("mechanisms_of_many_fields", "attempt", 1, marks=pytest.mark.slow),
        ("mechanisms_of_many_fields", "two lines", 1),
        pytest.param("two_suspects", "attempt", 0, marks=pytest.mark.slow),
        ("two_suspects", "two lines", 0),
        pytest.param("made_to_mislead", "attempt", 0, marks=pytest.mark.slow),
        ("made_to_mislead", "two lines", 0),
    ],
)
def test_a_collection_of_the_zoo(collection: str, form: str, at_most_missed: int) -> None:
    tool = Guarded(form)
    tally = Tally([measure(tool, path) for path in filter(is_possible, find(collection))])
    assert tally.false_proofs == []
    assert tally.false_sentences == []
    assert tally.false_alarms == 0
    assert tally.bugs - tally.first <= at_most_missed
