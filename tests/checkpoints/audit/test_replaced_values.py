"""Harmless files in which one value is replaced by an object that acts whatever is done with it.

Whatever code a listed class has, it touches its state and its arguments by methods and attributes. So each value of a
real file is replaced by an object whose every method and property leaves a marker. Where torch leaves the marker, the
audit must not have said `ok`.
"""

from __future__ import annotations

import io
import os
import pickletools
import random
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoints.audit.gadgets import NS, L, build, call, lst, n, new, part, sd, t, tup
from checkpoints.audit.test_corpus import FIXTURES
from checkpoints.audit.test_differential import left_by
from nantrap.checkpoints.audit import audit

_SPECIAL = (
    "hash eq ne lt le gt ge iter next len bool index int float complex str repr format bytes getitem setitem contains "
    "call array array_interface array_ufunc array_function torch_function fspath enter exit add radd sub mul rmul mod "
    "or ror and neg abs round reversed length_hint copy deepcopy sizeof buffer get set missing getnewargs"
)
_NAMED = (
    "keys items values get setdefault update copy to detach clone view dtype device shape size lower upper split strip "
    "encode decode replace join read write seek pop data untyped_storage _untyped_storage item tolist numpy layout"
)
LIBRARY = "\n".join((
    "import os",
    "def plan(*given, **named):\n    os.makedirs('marker', exist_ok=True)\n    return 1",
    "class Acts:",
    *(f"    def __{name}__(self, *a, **k):\n        plan(); raise RuntimeError" for name in _SPECIAL.split()),
    *(f"    @property\n    def {name}(self):\n        plan(); raise AttributeError" for name in _NAMED.split()),
))  # fmt: skip

_PLAN = part(n(L, "plan"))
_SAVES = part(n("numpy", "savetxt"), t("marker"), lst(b"K\x01"))
_METHODS = [*_NAMED.split(), "__array__", "__array_interface__", "__torch_function__"]
_ACTS = new(n(L, "Acts"))
_DEFAULT = call(n("collections", "defaultdict"), n(L, "plan"))
HOSTILE = (
    _ACTS,
    NS(**dict.fromkeys(_METHODS, _PLAN)),
    NS(**dict.fromkeys(_METHODS, _SAVES)),
    build(call(n("collections", "OrderedDict")), sd(**dict.fromkeys(_METHODS, _SAVES))),
    build(new(n("collections", "UserList")), sd(data=_ACTS)),
    build(new(n("collections", "ChainMap")), sd(maps=lst(_DEFAULT))),
    _DEFAULT,
    call(n("collections", "defaultdict"), _SAVES),
    _SAVES,
    lst(_SAVES),
    _PLAN,
    n(L, "plan"),
    n(L, "Acts"),
    lst(_ACTS),
    tup(_ACTS, _ACTS),
    sd(a=_ACTS),
    b"}" + _ACTS + b"Ns",
    lst(tup(t("x"), _ACTS)),
)
KNOWN = tuple(value for value in HOSTILE if L.encode() not in value)
"""Those that need nothing but numpy and Python, so that a file may be `ok` in which they are only kept."""
_VALUES = {
    "BININT", "BININT1", "BININT2", "LONG1", "NONE", "NEWTRUE", "NEWFALSE", "BINUNICODE", "SHORT_BINUNICODE",
    "BINBYTES", "SHORT_BINBYTES", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_TUPLE", "BINFLOAT", "BINGET", "LONG_BINGET",
}  # fmt: skip


def pickle_of(raw: bytes) -> tuple[bytes, Callable[[bytes], bytes]] | None:
    """The pickle of a file, and a function that makes the file with another one."""
    if raw[:1] == b"\x80":
        return raw, lambda pickled: pickled
    if raw[:2] != b"PK":
        return None
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    place = next(name for name in records if name.endswith("data.pkl"))

    def whole(pickled: bytes) -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            for name, data in {**records, place: pickled}.items():
                archive.writestr(zipfile.ZipInfo(name), data)
        return stream.getvalue()

    return records[place], whole


def with_one_replaced(raw: bytes, dice: random.Random) -> bytes | None:
    found = pickle_of(raw)
    if found is None:
        return None
    pickled, whole = found
    starts = [(opcode.name, position or 0) for opcode, _, position in pickletools.genops(pickled)]
    ends = [position for _, position in starts[1:]]
    values = [(start, end) for (name, start), end in zip(starts, ends, strict=False) if name in _VALUES]
    if not values:
        return None
    start, end = dice.choice(values)
    return whole(pickled[:start] + dice.choice(dice.choice((HOSTILE, KNOWN))) + pickled[end:])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="loads in forked children")
@pytest.mark.parametrize("count", [250, pytest.param(8000, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])])
def test_no_replaced_value_acts_in_a_file_that_is_ok(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, files = tmp_path / "library", tmp_path / "files"
    library.mkdir()
    files.mkdir()
    (library / f"{L}.py").write_text(LIBRARY)
    monkeypatch.setenv("PYTHONPATH", str(library))
    monkeypatch.syspath_prepend(str(library))
    with tarfile.open(FIXTURES / "saved-by-people.tar.xz") as archive:
        seeds = [file.read() for member in archive if (file := archive.extractfile(member))]
    dice = random.Random(count)
    healthy = 0
    for number in range(count):
        raw = with_one_replaced(dice.choice(seeds), dice)
        place = files / f"{number:05d}.pt"
        place.write_bytes(raw or b"")
        verdict = audit(place).checkpoints[0].verdict if raw else ""
        healthy += verdict == "ok"
        if verdict != "ok" and number % 3:  # some of these are loaded, to know that torch acts at all
            place.unlink()
    made = left_by(files, seconds=5)
    acting = [name for name, names in made.items() if names]
    assert healthy > count // 20
    assert len(acting) > count // 100
    assert [name for name in acting if audit(files / name).checkpoints[0].verdict == "ok"] == []
