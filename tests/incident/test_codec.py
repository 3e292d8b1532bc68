"""The versioned JSON of an incident: round trip, newer fields survive, a malformed file names the field."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nantrap
from nantrap import Action, Cause, Evidence, Finding, Incident, TensorStats, Trial
from nantrap.incident import BY_CODE, BY_SLUG, lookup

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """A strategy for a field by its type, so that a new field is tested the day it is added."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return json_values
    if origin in (Union, types.UnionType):
        (only,) = [a for a in arguments if a is not type(None)]
        return st.none() | values_of(only)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        return st.lists(values_of(arguments[0]), max_size=2).map(tuple)
    if origin is Mapping:
        return st.dictionaries(st.text(max_size=8), values_of(arguments[1]), max_size=2)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    if dataclasses.is_dataclass(hint):
        return instances(hint)
    return {int: st.integers(-(10**12), 10**12), float: st.floats(), bool: st.booleans(), str: st.text(max_size=12)}[
        hint
    ]


def instances(cls: Any) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls)
    fields = {spec.name: values_of(hints[spec.name]) for spec in dataclasses.fields(cls) if spec.name != "extra"}
    if cls is Cause:
        fields["slug"] = st.sampled_from(sorted(BY_SLUG))
    return st.builds(cls, **fields)


def same(left: Any, right: Any) -> bool:
    """Equal, with NaN equal to NaN."""
    if dataclasses.is_dataclass(left):
        return type(left) is type(right) and all(
            same(getattr(left, f.name), getattr(right, f.name)) for f in dataclasses.fields(left)
        )
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    return bool(left == right)


@given(instances(Incident))
def test_round_trip(incident: Incident) -> None:
    text = json.dumps(incident.to_dict(), allow_nan=False)  # plain JSON: no NaN in it
    back = Incident.from_dict(json.loads(text))
    assert same(incident, back)
    assert back.to_dict() == incident.to_dict()


@given(instances(Incident), st.dictionaries(st.sampled_from(["zeta", "later_field", "x-y"]), json_values, min_size=1))
def test_fields_of_a_newer_version_survive_everywhere(incident: Incident, newer: dict[str, Any]) -> None:
    document = incident.to_dict() | newer
    for kind in ("findings", "causes", "trials", "frames", "probes"):
        document[kind] = [entry | newer for entry in document[kind]]
    for cause in document["causes"]:
        cause["evidence"] = [entry | newer for entry in cause["evidence"]]
    assert Incident.from_dict(document).to_dict() == document


def test_a_cause_of_a_newer_version_keeps_its_code_and_title() -> None:
    document = Incident(step=1).to_dict()
    newer: dict[str, Any] = Incident(step=1, causes=(Cause("from_the_future"),)).to_dict()["causes"][0]
    document["causes"] = [newer | {"code": "NT299", "title": "new"}]
    back = Incident.from_dict(document)
    assert (back.causes[0].slug, back.causes[0].code, back.causes[0].title) == ("from_the_future", "NT299", "new")
    assert back.to_dict()["causes"] == document["causes"]


def test_what_a_reader_in_another_language_sees() -> None:
    stats = TensorStats(shape=(2, 3), dtype="float16", numel=6, nan=1, absmax=2.0)
    incident = Incident(
        step=17,
        rank=1,
        phase="backward",
        module="blocks.3",
        findings=(Finding("gradient", "w", "backward", stats=stats, value=math.inf),),
        causes=(Cause("softmax_fully_masked_row", proven=True, evidence=(Evidence("seen"),)),),
        trials=(Trial(1, "without_sample", "sample 2 left out", True),),
        action=Action.ROLLBACK,
        loss=math.nan,
        terms={"kl": -math.inf},
    )
    document = incident.to_dict()
    assert document["schema"] == "nantrap.incident/1"
    assert (document["loss"], document["terms"], document["findings"][0]["value"]) == ("nan", {"kl": "-inf"}, "inf")
    assert (document["causes"][0]["code"], document["action"]) == ("NT203", "rollback")
    assert document["findings"][0]["stats"]["shape"] == [2, 3]
    assert document["module"] == "blocks.3"


def good() -> dict[str, Any]:
    stats = TensorStats(shape=(2,), dtype="float32", numel=2)
    return Incident(step=3, findings=(Finding("loss", "loss", "forward", stats=stats),), lr=(0.1,)).to_dict()


def changed(path: list[Any], value: Any) -> dict[str, Any]:
    document = good()
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    if value is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return document


WHOLE = "expected a whole number, got"
SCHEMA = "field schema: expected nantrap.incident/1, got"
NOT_OURS = "this is not an incident.json of nantrap"
STATS = ["findings", 0, "stats"]


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (["step"], KeyError, "field step: missing"),
        (["step"], "3", "field step: expected a whole number, got a string '3'"),
        (["step"], 3.5, "field step: expected a whole number, got a number 3.5"),
        (["step"], True, "field step: expected a whole number, got a boolean True"),
        (["step"], None, "field step: expected a whole number, got null"),
        (["phase"], "up", "field phase: expected one of data, state, forward, backward, optimizer; got 'up'"),
        (["action"], "jump", "field action: expected one of apply, skip, rollback, stop; got 'jump'"),
        (["lr"], 0.1, "field lr: expected a list, got a number 0.1"),
        (["lr", 0], "fast", "field lr[0]: expected a number, got a string 'fast'"),
        (["terms"], [1], "field terms: expected an object, got a list"),
        (["findings", 0], "x", "field findings[0]: expected an object, got a string 'x'"),
        (["findings", 0, "name"], KeyError, "field findings[0].name: missing"),
        ([*STATS, "nan"], "1", f"field findings[0].stats.nan: {WHOLE} a string '1'"),
        ([*STATS, "shape"], [1, "a"], f"field findings[0].stats.shape[1]: {WHOLE} a string 'a'"),
        (["exact"], 1, "field exact: expected true or false, got a number 1"),
        (["module"], 7, "field module: expected a string, got a number 7"),
        (["schema"], "other/1", f"{SCHEMA} 'other/1'; {NOT_OURS}"),
        (["schema"], KeyError, f"{SCHEMA} None; {NOT_OURS}"),
    ],
)  # fmt: skip
def test_a_malformed_file_names_the_field(path: list[Any], value: Any, text: str) -> None:
    with pytest.raises(nantrap.FormatError) as caught:
        Incident.from_dict(changed(path, value))
    assert str(caught.value) == text
    assert isinstance(caught.value, nantrap.UsageError)


@pytest.mark.parametrize(("value", "kind"), [([], "a list"), ("x", "a string 'x'"), (None, "null"), (3, "a number 3")])
def test_something_else_altogether(value: Any, kind: str) -> None:
    with pytest.raises(nantrap.FormatError) as caught:
        Incident.from_dict(value)
    assert str(caught.value) == f"an incident is a JSON object, not {kind}"


@given(json_values)
def test_no_json_at_all_makes_it_stumble(value: Any) -> None:
    for key in ("findings", "source", "loss", "causes", "terms"):
        said = ""
        try:
            Incident.from_dict(good() | {key: value})
        except nantrap.FormatError as error:
            said = str(error)
        assert not said or said.startswith(f"field {key}")


def test_a_whole_number_that_no_float_holds() -> None:
    assert Incident.from_dict(good() | {"loss": 10**400}).loss == math.inf


def test_codes_and_slugs_are_one_to_one() -> None:
    assert len(BY_CODE) == len(BY_SLUG)
    assert lookup("nt203") is lookup("softmax_fully_masked_row") is BY_CODE["NT203"]
    assert Cause("nonsense").code == "NT000"
    with pytest.raises(nantrap.UsageError) as caught:
        lookup("NT999")
    assert str(caught.value) == "there is no cause 'NT999'; `nantrap explain` lists every code and slug"


@pytest.mark.parametrize("cls", [Incident, Finding, TensorStats, Cause, Evidence, Trial])
def test_frozen_and_slotted(cls: Any) -> None:
    assert cls.__dataclass_params__.frozen
    assert "__slots__" in vars(cls)


def test_action_is_its_string() -> None:
    assert Action.SKIP == "skip"
    assert f"{Action.ROLLBACK}" == "rollback"
    assert Incident(step=2, rank=1, module="m").site == nantrap.Site("forward", module="m", rank=1)
