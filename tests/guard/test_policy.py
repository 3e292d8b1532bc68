"""`Policy`: short forms, groups, and the names from before there were groups."""

from __future__ import annotations

import copy
import pickle
import warnings
from dataclasses import replace
from typing import Any

import pytest

import nantrap
from nantrap import Bundle, Policy, Rollback, Skips, Spikes


def test_a_word_stands_for_a_group() -> None:
    assert Policy(spikes="off", bundle="full") == Policy(spikes=Spikes(action="off"), bundle=Bundle(kind="full"))


def test_the_defaults_are_those_of_the_groups() -> None:
    policy = Policy()
    assert (policy.skips, policy.rollback, policy.spikes, policy.bundle) == (Skips(), Rollback(), Spikes(), Bundle())


def test_an_old_name_is_set_and_read_with_a_warning_that_names_the_new_one() -> None:
    words = r"^Policy\(anchor_every=\.\.\.\) is now Policy\(rollback=nantrap\.Rollback\(anchor_every=\.\.\.\)\)"
    with pytest.warns(FutureWarning, match=words) as caught:
        policy = Policy(anchor_every=4)
    assert caught[0].filename == __file__
    assert policy == Policy(rollback=Rollback(anchor_every=4))
    with pytest.warns(FutureWarning, match=words) as caught:
        assert policy.anchor_every == 4
    assert caught[0].filename == __file__


def test_an_old_name_is_added_to_what_is_given() -> None:
    with pytest.warns(FutureWarning, match="Bundle"):
        policy = Policy(bundle="full", bundle_data=True)
    assert policy.bundle == Bundle(kind="full", data=True)
    changes: dict[str, Any] = {"spike_threshold": 3.0}
    with pytest.warns(FutureWarning, match="Spikes"):
        changed = replace(Policy(spikes=Spikes(window=64)), **changes)
    assert changed.spikes == Spikes(window=64, threshold=3.0)


@pytest.mark.parametrize("name", sorted(set(Policy().as_written()) - set(Policy.__slots__)))
def test_every_old_name_works(name: str) -> None:
    value = Policy().as_written()[name]
    with pytest.warns(FutureWarning, match=f"^Policy.{name}="):
        policy = Policy(**{name: value})
    with pytest.warns(FutureWarning, match=f"^Policy.{name}="):
        assert getattr(policy, name) == value
    assert policy == Policy()


def test_run_json_has_one_level_with_the_names_it_always_had() -> None:
    written = Policy(bundle=Bundle(kind="full", most=3)).as_written()
    assert (written["bundle"], written["max_bundles"], written["spikes"]) == ("full", 3, "warn")
    assert len(written) == 38


def test_an_unknown_name() -> None:
    with pytest.raises(TypeError, match=r"^Policy\(\) has no field 'anchors'; help\(nantrap\.Policy\) lists them$"):
        Policy(anchors=3)
    with pytest.raises(AttributeError, match=r"^Policy has no field 'anchors'$"):
        _ = Policy().anchors


def test_strict_and_observe_take_the_same_fields() -> None:
    assert nantrap.Policy.strict(bundle="off") == Policy(on_incident="raise", bundle="off")
    assert nantrap.Policy.observe(diagnose="off") == Policy(on_incident="observe", diagnose="off")


def test_copies() -> None:
    policy = Policy(spikes=Spikes(window=64), then="stop")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert copy.deepcopy(policy) == pickle.loads(pickle.dumps(policy)) == replace(policy) == policy
