"""Text files are read in pieces, by any worker, with or without pyarrow: the report is always the same."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nantrap.doctor.data import check_data
from nantrap.doctor.data.readers import text_pieces
from nantrap.doctor.data.rows import line_digests
from nantrap.engines import Threads


class Backwards:
    """Gives the results in the reverse order."""

    def run(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        done = [(number, function(item)) for number, item in enumerate(items)]
        yield from reversed(done)


def reports(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """In one piece and in many, by one worker and by several, in the reverse order, with and without pyarrow."""
    made = []
    for without in ((), ("pyarrow.csv", "pyarrow.json")):
        for size, engine in ((1 << 20, Threads(1)), (400, Backwards()), (1000, Threads(4))):
            with monkeypatch.context() as patch:
                patch.setattr(text_pieces, "PIECE", size)
                for name in without:
                    patch.setitem(sys.modules, name, None)
                made.append(check_data(path, engine=engine).to_dict())
    return made


def numbers(count: int = 200) -> list[list[Any]]:
    rng = random.Random(0)
    return [[n, round(rng.gauss(0, 1), 4), rng.randrange(1, 9), f"name{n}"] for n in range(count)]


def as_csv(rows: list[list[Any]], end: str = "\n", delimiter: str = ",") -> str:
    return end.join(delimiter.join(map(str, row)) for row in [["id", "x", "count", "name"], *rows]) + end


def changed(changes: dict[tuple[int, int], Any]) -> list[list[Any]]:
    rows = numbers()
    for (row, column), value in changes.items():
        rows[row][column] = value
    return rows


TABLES = {
    "plain": as_csv(numbers()),
    "empty cells and text": as_csv(changed({(5, 1): "", (150, 1): "NA", (160, 1): "oops", (170, 2): "nan"})),
    "infinite": as_csv(changed({(77, 1): "inf", (78, 1): "-Infinity"})),
    "an outlier": as_csv(changed({(99, 1): 1e6})),
    "copies far apart": as_csv([*numbers(), numbers()[3], numbers()[150]]),
    "windows line ends": as_csv(changed({(5, 1): ""}), end="\r\n"),
    "old line ends": as_csv(changed({(5, 1): ""}), end="\r"),
    "semicolons": as_csv(changed({(5, 1): ""}), delimiter=";"),
    "spaces behind commas": as_csv(changed({(5, 1): ""}), delimiter=", "),
    "blank lines": as_csv(numbers()).replace("\n", "\n\n") + "\n\n",
    "quotes": as_csv(changed({(n, 3): f'"name, {n}"' for n in range(0, 200, 3)})),
    "lines inside of quotes": as_csv(changed({(n, 3): '"first\nsecond"' for n in range(0, 200, 7)})),
    "an open quote": as_csv(changed({(40, 3): '5" pipe', (120, 3): '7" pipe'})),
    "rows of another width": as_csv([*numbers(), [1, 2], [1, 2, 3, 4, 5]]),
    "no header": as_csv(numbers()).partition("\n")[2],
    "hexadecimal": as_csv(changed({(n, 3): hex(n) for n in range(200)})),
    "large whole numbers": as_csv(changed({(n, 0): 10**19 + n for n in range(200)})),
    "not UTF-8": as_csv(changed({(5, 1): "", (9, 3): "\udce9"})),
    "a mark at the beginning": "\ufeff" + as_csv(changed({(5, 1): ""})),
    "no line end at the end": as_csv(changed({(199, 1): ""})).rstrip("\n"),
    "only a header": "id,x,count\n",
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(TABLES[name].encode("utf-8", "surrogateescape"))
    first, *others = reports(path, monkeypatch)
    assert all(other == first for other in others)


def record(number: int) -> dict[str, Any]:
    rng = random.Random(number)
    return {
        "id": number,
        "x": [round(rng.gauss(0, 1), 3) for _ in range(4)],
        "input_ids": [rng.randrange(2, 99) for _ in range(16 + number % 3)],
        "meta": {"score": rng.random(), "text": f"t{number}", "when": "2020-01-01"},
        "turns": [{"role": "user", "content": "hello"}],
    }


def lines(*changes: tuple[int, str, Any], count: int = 60) -> str:
    made = [record(number) for number in range(count)]
    for number, key, value in changes:
        if value is KeyError:
            del made[number][key]
        else:
            made[number][key] = value
    return "".join(json.dumps(each) + "\n" for each in made)


RECORDS = {
    "plain": lines(),
    "null": lines((7, "x", None), (40, "meta", {"score": None, "text": "t", "when": ""})),
    "a key that is missing": lines((7, "x", KeyError)),
    "nan": lines((33, "x", [0.0, float("nan"), 1.0, 2.0])),
    "another length": lines((33, "x", [0.0, 1.0])),
    "another rank": lines((33, "x", [[0.0, 1.0], [2.0, 3.0]])),
    "an empty list": lines((33, "input_ids", [])),
    "copies": lines((50, "input_ids", record(4)["input_ids"])),
    "text for a number": lines((33, "id", "thirty-three")),
    "blank lines": lines().replace("\n", "\n\n"),
    "a broken line": lines().replace('"id": 20,', '"id" 20,'),
    "a cut line": lines()[:-30],
    "two objects in a line": lines().replace("}\n", "}", 1),
    "no object": lines() + "3\n[1, 2]\n",
    "a mark at the beginning": "\ufeff" + lines((33, "x", [0.0, 1.0])),
    "not JSON at all": "hello\nworld\n" * 60,
}


@pytest.mark.parametrize("name", RECORDS)
def test_records(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(RECORDS[name], encoding="utf-8")
    first, *others = reports(path, monkeypatch)
    assert all(other == first for other in others)


def test_what_is_found_in_many_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_pieces, "PIECE", 300)
    (tmp_path / "a.csv").write_text(as_csv([*changed({(150, 1): "", (180, 1): "inf"}), numbers()[3]]))
    (tmp_path / "b.jsonl").write_text(lines((33, "x", [0.0, 1.0])).replace('"id": 50,', '"id" 50,'))
    found = [(each.slug, each.field, each.indices, each.message) for each in check_data(tmp_path).findings]
    assert found == [
        ("non_finite", "x", (150, 180), "2 samples with 1 Inf, 1 missing value: 150, 180"),
        ("duplicate_sample", None, (200,), "1 sample repeated: 200"),
        ("shape_mismatch", "x", (33,), "1 sample of another shape (2, most are 4): 33"),
        ("unreadable_file", None, (50,), "1 line is not JSON: line index 50"),
    ]  # fmt: skip


def test_digests_of_lines() -> None:
    rng = random.Random(0)
    texts = [bytes(rng.randrange(256) for _ in range(rng.randrange(1, 40))) for _ in range(300)]
    texts += [texts[5], texts[5] + b"\0", b"\0", b"\0\0", b"", b"a" * 100_000, b"a" * 99_999 + b"b"]
    ends = np.cumsum([len(text) for text in texts])
    data = np.frombuffer(b"".join(texts), dtype=np.uint8)
    made = line_digests(data, ends - [len(text) for text in texts], ends)
    equal = {(i, j) for i in range(len(texts)) for j in range(i) if made[i] == made[j]}
    assert equal == {(i, j) for i in range(len(texts)) for j in range(i) if texts[i] == texts[j]}
