"""A pickle is read, never run."""

from __future__ import annotations

import collections
import io
import os
import pickle
import pickletools
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nantrap.checkpoints.audit.pickles import OPCODES, Name, PickleCall, PickleError, read_pickle

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@settings(max_examples=60, deadline=None)
@given(plain, st.integers(2, 5))
def test_plain_values_come_out_as_themselves(value: Any, protocol: int) -> None:
    assert read_pickle(pickle.dumps(value, protocol)).value == value


@pytest.mark.parametrize("protocol", range(6))
def test_containers_become_plain_ones(protocol: int) -> None:
    lists: dict[str, Any] = collections.defaultdict(list, c=3)
    value = {"od": collections.OrderedDict(a=1, b=[2]), "dd": lists, "set": {4}}
    read = read_pickle(pickle.dumps(value, protocol))
    assert read.value == {"od": {"a": 1, "b": [2]}, "dd": {"c": 3}, "set": [4]}
    assert Name("collections", "OrderedDict") in read.names


class Payload:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", range(6))
def test_a_payload_is_named_and_not_run(tmp_path: Path, protocol: int) -> None:
    witness = tmp_path / "witness"
    raw = pickle.dumps([Payload(os.system, f"touch '{witness}'")], protocol)
    read = read_pickle(raw)
    assert isinstance(read.value, list)
    call = read.value[0]
    assert isinstance(call, PickleCall)
    assert call.function == Name(os.system.__module__, "system")
    assert call.arguments == (f"touch '{witness}'",)
    assert not witness.exists()
    pickle.loads(raw)
    assert witness.exists()  # the test can fail: the payload is real


def test_every_opcode_is_known() -> None:
    assert frozenset(opcode.code.encode("latin1") for opcode in pickletools.opcodes) == OPCODES


def test_every_way_to_call_is_only_recorded(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    text = f"touch '{witness}'".encode()
    ways = [
        b"(S'" + text + b"'\nios\nsystem\n.",  # INST
        b"(cos\nsystem\nS'" + text + b"'\no.",  # OBJ
        b"cos\nsystem\n(S'" + text + b"'\ntR.",  # REDUCE
        b"\x80\x02cos\nsystem\n(S'" + text + b"'\nt\x81.",  # NEWOBJ
        b"\x80\x04\x8c\x02os\x8c\x06system\x93(S'" + text + b"'\ntR.",  # STACK_GLOBAL
    ]
    for way in ways:
        read = read_pickle(way)
        assert read.names == (Name("os", "system"),)
        assert [call.function for call in read.calls] == [Name("os", "system")]
        assert isinstance(read.value, PickleCall)
    assert not witness.exists()


def test_subprocess_is_named() -> None:
    assert Name("subprocess", "Popen") in read_pickle(pickle.dumps(Payload(subprocess.Popen, ["true"]))).names


def test_state_given_to_an_object_is_kept_and_not_set() -> None:
    read = read_pickle(pickle.dumps(io.StringIO("text")))
    assert isinstance(read.value, PickleCall)
    assert read.value.state is not None


def test_a_cycle_and_a_deep_nest_come_to_an_end() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    read = read_pickle(pickle.dumps(cycle))
    assert isinstance(read.value, list)
    assert read.value[0] is read.value
    assert isinstance(read_pickle(b"\x80\x02" + b")" + b"\x85" * 200_000 + b".").value, tuple)


def test_a_deeply_nested_key_is_refused_instead_of_overflowing_the_stack() -> None:
    with pytest.raises(PickleError, match="deeply nested tuple as a key"):
        read_pickle(b"\x80\x02}" + b")" + b"\x85" * 200_000 + b"Ns.")


@pytest.mark.parametrize(
    ("raw", "words", "truncated"),
    [
        (pickle.dumps({"a": [1, 2, 3]})[:-4], "not enough data", True),
        (pickle.dumps({"a": [1, 2, 3]})[:-1], "exhausted", True),
        (b"\x80\x02X\xff\x00\x00\x00abc", "expected 255 bytes", True),
        (b"\x80\x02R.", "never put there", False),
        (b"\x80\x02h\x07.", "never put there", False),
        (b"\x80\x02K\x01K\x02a.", "appends to a int", False),
        (b"\x80\x02K\x01K\x02K\x03s.", "sets keys of a int", False),
        (b"\x80\x02}]K\x03s.", "unhashable", False),
        (b"\x80\x05\x97.", "NEXT_BUFFER is not allowed", False),
    ],
)
def test_damage_is_said_in_words(raw: bytes, words: str, truncated: bool) -> None:
    with pytest.raises(PickleError, match=words) as caught:
        read_pickle(raw)
    assert caught.value.truncated is truncated


def test_the_stream_is_left_behind_the_pickle() -> None:
    stream = io.BytesIO(pickle.dumps(1) + pickle.dumps(2) + b"rest")
    assert [read_pickle(stream).value, read_pickle(stream).value, stream.read()] == [1, 2, b"rest"]
